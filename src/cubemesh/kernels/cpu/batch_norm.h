// Parts of batch normalization with residual add and ReLU, for kernels on whole arrays
// (cpu_kernels.cpp) or fused with matrix products (conv_batch_norm.cpp).
//
// Arrays are channels-last, rows (batch, height, width) by channels, in fp32; channels in multiples of
// sixteen. Sums are of differences from a value near the mean, in fp32 over a few rows and in fp64 over
// these. The ReLU mask after a residual add is stored as one bit per value.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

constexpr long lanes = 16;
typedef float values __attribute__((vector_size(64), aligned(4)));
typedef int32_t places __attribute__((vector_size(64), aligned(4)));

inline values load(const float* from) { return *reinterpret_cast<const values*>(from); }
inline void store(float* to, values v) { *reinterpret_cast<values*>(to) = v; }
inline values all(float v) { return v - values{}; }

// The ReLU mask of sixteen values, one bit each. NaN passes.
inline uint16_t passes(values v) {
#ifdef __AVX512F__
    return uint16_t(_mm512_cmp_ps_mask(__m512(v), _mm512_setzero_ps(), _CMP_NLE_UQ));
#else
    uint16_t bits = 0;
    for (int i = 0; i < lanes; i++) bits |= uint16_t(!(v[i] <= 0)) << i;
    return bits;
#endif
}

inline values where(uint16_t bits, values v) {
    const places own = {1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                        1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
    return ((places{} + int32_t(bits)) & own) != 0 ? v : values{};
}

// Rows of thread `t` of `threads`, in whole groups of `step`.
inline void share(long rows, int t, int threads, long& first, long& end, long step = 1) {
    const long groups = (rows + step - 1) / step;
    first = std::min(groups * t / threads * step, rows);
    end = std::min(groups * (t + 1) / threads * step, rows);
}

constexpr long rows_in_float32 = 128;

// Two sums per channel: of this thread in fp64, of its last few rows in fp32.
struct Sums {
    std::vector<double> fp64;
    std::vector<float> fp32;
    explicit Sums(long channels) : fp64(2 * channels), fp32(2 * channels) {}
    void flush() {
        for (size_t i = 0; i < fp64.size(); i++) {
            fp64[i] += fp32[i];
            fp32[i] = 0;
        }
    }
};

// The sum over all threads; called by every thread after a barrier.
double total(const std::vector<Sums>& of, long i) {
    double sum = 0;
    for (const Sums& own : of) sum += own.fp64[i];
    return sum;
}

struct Norm {
    const float *weight, *bias, *mean, *rstd;
    long rows, channels;
};

// The running statistics and their momentum.
struct Running {
    float *mean, *var;
    float epsilon, momentum;
};

// Mean, 1 / standard deviation and weight · that of channel `c` from the sums of differences from
// `pivot` and of their squares; updates the running statistics.
void finish_statistics(const std::vector<Sums>& found, const Norm& n, const Running& running, float pivot,
            float* mean, float* rstd, float* scale, long c) {
    const double shift = total(found, c) / n.rows;
    const double variance = std::max(total(found, n.channels + c) / n.rows - shift * shift, 0.0);
    mean[c] = float(pivot + shift);
    rstd[c] = float(1 / std::sqrt(variance + running.epsilon));
    scale[c] = n.weight[c] * rstd[c];
    const double unbiased = variance * n.rows / std::max(n.rows - 1, 1L);
    running.mean[c] += running.momentum * (mean[c] - running.mean[c]);
    running.var[c] += running.momentum * (float(unbiased) - running.var[c]);
}

// `groups` · 16 channels at once: their bits are one store.
template <bool add, bool relu, int groups>
inline void normalize_few(const Norm& n, const float* x, const float* residual, float* y,
                          uint16_t* bits, const float* scale, long at, long c) {
    uint64_t word = 0;
#pragma GCC unroll 4
    for (int i = 0; i < groups; i++, c += lanes) {
        values v = (load(x + at + c) - load(n.mean + c)) * load(scale + c) + load(n.bias + c);
        if (add) v += load(residual + at + c);
        if (add && relu) word |= uint64_t(passes(v)) << (i * lanes);
        if (relu) v = v < 0 ? values{} : v;  // NaN stays NaN
        store(y + at + c, v);
    }
    if (add && relu) std::memcpy(bits + (at + c) / lanes - groups, &word, groups * sizeof(*bits));
}

template <bool add, bool relu>
void normalize(const Norm& n, const float* x, const float* residual, float* y, uint16_t* bits,
               const float* scale, long first, long end) {
    constexpr int groups = 4;
    for (long row = first; row < end; row++) {
        const long at = row * n.channels;
        long c = 0;
        for (; c + groups * lanes <= n.channels; c += groups * lanes)
            normalize_few<add, relu, groups>(n, x, residual, y, bits, scale, at, c);
        for (; c < n.channels; c += lanes)
            normalize_few<add, relu, 1>(n, x, residual, y, bits, scale, at, c);
    }
}

// Inputs of the backward pass: one or two gradients of the result, and what the forward pass saved.
struct Given {
    const float *one, *other, *x;
    const uint16_t* bits;
    const float* scale;
};

// The gradient before the ReLU: the sum of the readers' gradients, masked.
template <bool two, bool add, bool relu>
inline values gradient_at(const Norm& n, const Given& given, long at, long c) {
    values g = load(given.one + at + c);
    if (two) g += load(given.other + at + c);
    if (relu && add) return where(given.bits[(at + c) / lanes], g);
    if (relu) {
        const values v = (load(given.x + at + c) - load(n.mean + c)) * load(given.scale + c);
        g = v + load(n.bias + c) <= 0 ? values{} : g;
    }
    return g;
}

// Its sums; with a residual add it is the residual's gradient, written to `dresidual`.
template <bool two, bool add, bool relu>
void gradient_sums(const Norm& n, const Given& given, float* dresidual, Sums& sums, long first,
                long end) {
    for (long row = first; row < end; row++) {
        const long at = row * n.channels;
        float *plain = sums.fp32.data(), *weighted = plain + n.channels;
        for (long c = 0; c < n.channels; c += lanes) {
            values g = gradient_at<two, add, relu>(n, given, at, c);
            if (add) store(dresidual + at + c, g);
            store(plain + c, load(plain + c) + g);
            store(weighted + c, load(weighted + c) + g * (load(given.x + at + c) - load(n.mean + c)));
        }
        if ((row - first) % rows_in_float32 == rows_in_float32 - 1) sums.flush();
    }
    sums.flush();
}

// The gradients of weight and bias of channel `c`, and the means that the next needs, from the sums.
void finish_gradients(const std::vector<Sums>& found, const Norm& n, float* dweight, float* dbias,
                   float* means, long c) {
    const double plain = total(found, c), weighted = total(found, n.channels + c) * n.rstd[c];
    dbias[c] = float(plain);
    dweight[c] = float(weighted);
    means[c] = float(plain / n.rows);
    means[n.channels + c] = float(weighted * n.rstd[c] / n.rows);
}

// The gradient of x, of rows from `end` down to `first`, which are still in the cache; rows of `dx`
// begin with `first` and have a stride of `step` values.
template <bool two, bool add, bool relu>
void gradient_of_x(const Norm& n, const Given& given, const float* dresidual, const float* means,
                float* dx, long step, long first, long end) {
    const float *plain = means, *weighted = means + n.channels;
    for (long row = end - 1; row >= first; row--) {
        const long at = row * n.channels;
        for (long c = 0; c < n.channels; c += lanes) {
            values g = add ? load(dresidual + at + c)
                            : gradient_at<two, add, relu>(n, given, at, c);
            values offset = (load(given.x + at + c) - load(n.mean + c)) * load(weighted + c);
            store(dx + (row - first) * step + c, (g - load(plain + c) - offset) * load(given.scale + c));
        }
    }
}

using Normalize = decltype(&normalize<false, false>);
constexpr Normalize normalizes[4] = {
    normalize<false, false>, normalize<false, true>, normalize<true, false>, normalize<true, true>,
};
using GradientSums = decltype(&gradient_sums<false, false, false>);
constexpr GradientSums gradient_sums_of[8] = {
    gradient_sums<false, false, false>, gradient_sums<false, false, true>, gradient_sums<false, true, false>,
    gradient_sums<false, true, true>,   gradient_sums<true, false, false>, gradient_sums<true, false, true>,
    gradient_sums<true, true, false>,   gradient_sums<true, true, true>,
};
using GradientOfX = decltype(&gradient_of_x<false, false, false>);
constexpr GradientOfX gradients_of_x[8] = {
    gradient_of_x<false, false, false>, gradient_of_x<false, false, true>, gradient_of_x<false, true, false>,
    gradient_of_x<false, true, true>,   gradient_of_x<true, false, false>, gradient_of_x<true, false, true>,
    gradient_of_x<true, true, false>,   gradient_of_x<true, true, true>,
};

}  // namespace
