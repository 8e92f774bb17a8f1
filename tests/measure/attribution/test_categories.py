"""Names that PyTorch, its compiler and NVIDIA's libraries give their operators and kernels."""

import re
from pathlib import Path

import pytest

import cubemesh.kernels
from cubemesh.measure.attribution.categories import (
    COMMUNICATION,
    CONVOLUTION,
    COPIES,
    MATRIX,
    OPTIMIZER,
    POINTWISE,
    POOLING,
    call_of,
    category_of,
)

SEEN = {
    CONVOLUTION: (
        "aten::conv2d",
        "aten::convolution_backward",
        "aten::mkldnn_convolution",
        "mkldnn::_convolution_pointwise",
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_"
        "warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn",
        "sm90_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64",
        "sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_cudnn",
        "cudnn::winograd_nonfused::winogradForwardFilter4x4<float, float>",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true>",
        "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false>",
        "cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8",
        "void cudnn::engines_precompiled::wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>",
        "void cudnn::engines_precompiled::scalePackedTensor_kernel<float, float>(long, float*)",
        "void cudnn::cnn::kern_precompute_indices<false>(int*, int, int, int, int, int)",
        "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int, int, int)",
        "void fft2d_c2r_32x32<float, false, false, 0u, false, false>(float*, float2 const*)",
        "void flip_filter<float, float>(float*, float const*, int, int, int, int)",
    ),
    MATRIX: (
        "aten::addmm",
        "aten::bmm",
        "mkl::_mkl_linear",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
        "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn>",
        "ampere_sgemm_128x64_tn",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4>",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1",
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)",
        "void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*, unsigned int)",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::mkldnn_rnn_layer",
    ),
    POINTWISE: (
        "detach",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>",
        "void cudnn::batchnorm_bwtr_nhwc_semiPersist<__nv_bfloat16, __nv_bfloat16, float>",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float>",
        "triton_poi_fused_add_native_batch_norm_backward_relu_threshold_backward_12",
        "triton_per_fused__native_batch_norm_legit_functional_convolution_4",
        "triton_red_fused_native_batch_norm_backward_1",
        "aten::relu_",
        "aten::threshold_backward",
        "aten::native_batch_norm",
        "aten::cross_entropy_loss",
        "aten::_log_softmax_backward_data",
        "aten::sum",
        "aten::dropout",
        "## Call CompiledFxGraph fledgtntm3ut44t64khfou4ojhxh6jkh5ux6 ##",
    ),
    POOLING: (
        "aten::max_pool2d_with_indices_backward",
        "aten::adaptive_avg_pool2d",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float>",
        "void cudnn::pooling_fw_4d_kernel<float, float, cudnn::maxpooling_func<float, 0>>",
    ),
    COMMUNICATION: (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t",
        "c10d::allreduce_",
        "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
        "Memcpy PtoP (Device -> Device)",
        "average_of_ranks_kernel",
    ),
    COPIES: (
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "aten::copy_",
        "aten::to",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 2>",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
    ),
    OPTIMIZER: (
        "aten::_fused_sgd_",
        "aten::_fused_adamw_",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedSgdMathFunctor>",
        "aten::_foreach_mul_",
    ),
}


@pytest.mark.parametrize(
    ("category", "name"), [(c, name) for c, names in SEEN.items() for name in names]
)
def test_an_observed_name_has_its_category(category, name):
    assert category_of(name) == category


OWN = {
    "pool": POOLING,
    "conv": CONVOLUTION,
    "batch_norm": POINTWISE,
    "crop": POINTWISE,
    "scores": POINTWISE,
    "relu": POINTWISE,
    "cross_entropy": POINTWISE,
    "master": OPTIMIZER,
}
"""A word in the name of a Triton kernel → its category."""
KERNELS = {
    name
    for file in (Path(cubemesh.kernels.__file__).parent / "triton").rglob("*.py")
    for name in re.findall(r"^def (\w+_kernel)\(", file.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("word", OWN)
def test_every_handwritten_kernel_has_its_category(word):
    names = {name for name in KERNELS if word in name}
    assert names
    assert {category_of(name) for name in names} == {OWN[word]}


@pytest.mark.parametrize("name", ["my_own_kernel", "void foo<int>()", "", "converter"])
def test_a_name_without_a_rule_has_no_category(name):
    assert category_of(name) is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("launch", "cudaLaunchKernel"),
        ("launch", "cudaLaunchKernelExC"),
        ("launch", "cuLaunchKernelEx"),
        ("launch", "cudaGraphLaunch"),
        ("synchronize", "cudaStreamSynchronize"),
        ("synchronize", "cudaEventSynchronize"),
        ("synchronize", "cudaDeviceSynchronize"),
        ("malloc", "cudaMalloc"),
        ("malloc", "cudaHostAlloc"),
        ("free", "cudaFree"),
        ("free", "cudaFreeHost"),
        ("copy", "cudaMemcpyAsync"),
        ("copy", "cudaMemsetAsync"),
        ("event", "cudaEventRecordWithFlags"),
        ("event", "cudaEventQuery"),
        ("event", "cudaStreamWaitEvent"),
        ("other", "cudaStreamIsCapturing"),
        ("other", "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"),
    ],
)
def test_a_runtime_call_has_its_kind(kind, name):
    assert call_of(name) == kind
