"""Categories of operators and kernels, by rules on their names.

The first matching rule of one table decides. The names are those of PyTorch's operators
(`aten::…`), oneDNN's and MKL's operators, cuDNN, cuBLAS and cuBLASLt, CUTLASS, Triton (as
TorchInductor names its kernels), NCCL and CUPTI's copies; tests compare it with observed names. A
name that no rule matches is `unnamed` and shown as that.
"""

from __future__ import annotations

import re
from functools import lru_cache

CONVOLUTION = "convolution"
MATRIX = "matrix product"
POINTWISE = "normalization and elementwise"
POOLING = "pooling"
COMMUNICATION = "communication"
COPIES = "copies"
OPTIMIZER = "optimizer"
UNNAMED = "unnamed"

_RULES: tuple[tuple[str, str], ...] = (
    (
        COMMUNICATION,
        r"nccl|c10d(_functional)?::|gloo|all_?reduce|all_?gather|reduce_?scatter|^memcpy ptop|"
        r"of_ranks_kernel",
    ),
    (
        OPTIMIZER,
        r"multi_tensor_apply|_fused_(sgd|adam|adamw|adagrad)|(fused|master)_?(sgd|adam)|_foreach_",
    ),
    (
        COPIES,
        r"^memcpy|^memset|copy_device_to_device|direct_copy_kernel|copykernel|catarraybatched",
    ),
    (COPIES, r"^aten::(to|_to_copy|copy_|contiguous|clone|pin_memory|lift_fresh)$"),
    (COPIES, r"nchwtonhwc|nhwctonchw|nchw_?to_?nhwc|nhwc_?to_?nchw|transpose_readwrite"),
    (POOLING, r"pool"),
    (POINTWISE, r"^triton_|cpp_fused|## call compiledfxgraph"),
    (POINTWISE, r"batch_?norm|bn_(fw|bw)|layer_?norm|group_?norm|rmsnorm|local_?response|lrn"),
    (POINTWISE, r"softmax|nll_loss|cross_entropy|dropout|bernoulli|distribution|philox"),
    (MATRIX, r"sdpa|cudnn::fusion::(compute_dot_do_o|convert_dq)"),  # cuDNN's attention
    (
        CONVOLUTION,
        r"conv(?!ert)|fprop|dgrad|wgrad|winograd|implicit_|cudnn_infer|xmma.*(nhwc|nchw)|"
        r"fft\d?d?_|flip_filter|cudnn::\w+::(scalepackedtensor|kern_precompute_indices)",
    ),
    (
        MATRIX,
        r"gemm|gemv|nvjet|cublas|cutlass|splitk|s\d+_xmma|wgmma|flash|fmha|attention|mha_",
    ),
    (
        MATRIX,
        r"^(aten|mkl|mkldnn|onednn)::_?(mkl_)?(addmm|mm|bmm|baddbmm|matmul|linear|einsum|lstm|"
        r"linear_pointwise|mkldnn_rnn\w*)|dot_kernel|lstm|rnn|gru",
    ),
    (
        POINTWISE,
        r"elementwise|crop_kernel|relu_\w*kernel|scores_\w+_kernel|reduce_kernel|vectorized|unrolled|indexing|"
        r"index_|embedding|gather|scatter|fill|cumsum|sort|^detach$",
    ),
    (
        POINTWISE,
        r"^aten::_?(relu|threshold|clamp|gelu|tanh|sigmoid|silu|add|sub|mul|div|sum|mean|stack|cat|"
        r"zero|ones|log|exp|sqrt|pow|where|neg|native_|masked|random|rand|norm|isfinite|amp_|"
        r"cudnn_batch|std|var|rsqrt|max|min|eq|ne|lt|gt|flip|bitwise|detach|view|reshape|flatten|"
        r"transpose|permute|t$|expand|slice|select|split|unbind|squeeze|unsqueeze|as_strided|empty|"
        r"resize|set_|resolve|alias|narrow|chunk|item|_local_scalar|is_nonzero|arange|tril|triu)",
    ),
)
_COMPILED = tuple((category, re.compile(rule, re.IGNORECASE)) for category, rule in _RULES)


@lru_cache(maxsize=4096)
def category_of(name: str) -> str | None:
    """Category of an operator or kernel; None where no rule matches its name."""
    for category, rule in _COMPILED:
        if rule.search(name):
            return category
    return None


_CALLS: tuple[tuple[str, str], ...] = (
    ("launch", r"launch"),
    ("synchronize", r"synchronize"),
    ("malloc", r"malloc|hostalloc|memalloc|memcreate|memmap"),
    ("free", r"free|memunmap|memrelease"),
    ("copy", r"memcpy|memset"),
    ("event", r"event|streamwait"),
)
_COMPILED_CALLS = tuple((kind, re.compile(rule, re.IGNORECASE)) for kind, rule in _CALLS)


@lru_cache(maxsize=512)
def call_of(name: str) -> str:
    """Kind of a runtime call: launch, synchronize, malloc, free, copy, event or other."""
    return next((kind for kind, rule in _COMPILED_CALLS if rule.search(name)), "other")
