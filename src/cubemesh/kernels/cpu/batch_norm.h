// Batch normalisation with what follows it, in parts, for kernels that normalise arrays as they lie
// (cpu_kernels.cpp) or as products of matrices make them (conv_batch_norm.cpp).
//
// Arrays lie in channels-last, rows (batch, height, width) by channels, in float32; channels come
// sixteen at a time. Sums are of differences from a value near the mean, in float32 over a few rows
// and in float64 over these. What a ReLU after a sum let through is kept as one bit a value.

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

// A bit for each of sixteen values: whether a ReLU lets it through. What is no number passes.
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

// Two sums for each channel: of this thread in float64, of its last few rows in float32.
struct Sums {
    std::vector<double> wide;
    std::vector<float> narrow;
    explicit Sums(long channels) : wide(2 * channels), narrow(2 * channels) {}
    void widen() {
        for (size_t i = 0; i < wide.size(); i++) {
            wide[i] += narrow[i];
            narrow[i] = 0;
        }
    }
};

// What all threads found, added up; every thread calls it after a barrier.
double total(const std::vector<Sums>& of, long i) {
    double sum = 0;
    for (const Sums& own : of) sum += own.wide[i];
    return sum;
}

struct Norm {
    const float *weight, *bias, *mean, *rstd;
    long rows, channels;
};

// Where the running statistics are, and how far they move.
struct Running {
    float *mean, *var;
    float epsilon, momentum;
};

// Mean, 1 / standard deviation and weight · that of channel `c` from the sums of differences from
// `pivot` and of their squares; moves the running statistics.
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

// Of `wide` · 16 channels at once: their bits are one store.
template <bool add, bool relu, int wide>
inline void normalise_few(const Norm& n, const float* x, const float* residual, float* y,
                          uint16_t* bits, const float* scale, long at, long c) {
    uint64_t word = 0;
#pragma GCC unroll 4
    for (int i = 0; i < wide; i++, c += lanes) {
        values v = (load(x + at + c) - load(n.mean + c)) * load(scale + c) + load(n.bias + c);
        if (add) v += load(residual + at + c);
        if (add && relu) word |= uint64_t(passes(v)) << (i * lanes);
        if (relu) v = v < 0 ? values{} : v;  // what is no number stays none
        store(y + at + c, v);
    }
    if (add && relu) std::memcpy(bits + (at + c) / lanes - wide, &word, wide * sizeof(*bits));
}

template <bool add, bool relu>
void normalise(const Norm& n, const float* x, const float* residual, float* y, uint16_t* bits,
               const float* scale, long first, long end) {
    constexpr int wide = 4;
    for (long row = first; row < end; row++) {
        const long at = row * n.channels;
        long c = 0;
        for (; c + wide * lanes <= n.channels; c += wide * lanes)
            normalise_few<add, relu, wide>(n, x, residual, y, bits, scale, at, c);
        for (; c < n.channels; c += lanes)
            normalise_few<add, relu, 1>(n, x, residual, y, bits, scale, at, c);
    }
}

// What the backward pass is given: one or two gradients of the result, and what was kept.
struct Given {
    const float *one, *other, *x;
    const uint16_t* bits;
    const float* scale;
};

// The gradient of what was normalised: what the readers send back, where the ReLU let it through.
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

// Its sums; with a residual it is that one's gradient, and is written to `dresidual`.
template <bool two, bool add, bool relu>
void gradient_sums(const Norm& n, const Given& given, float* dresidual, Sums& sums, long first,
                long end) {
    for (long row = first; row < end; row++) {
        const long at = row * n.channels;
        float *plain = sums.narrow.data(), *weighted = plain + n.channels;
        for (long c = 0; c < n.channels; c += lanes) {
            values g = gradient_at<two, add, relu>(n, given, at, c);
            if (add) store(dresidual + at + c, g);
            store(plain + c, load(plain + c) + g);
            store(weighted + c, load(weighted + c) + g * (load(given.x + at + c) - load(n.mean + c)));
        }
        if ((row - first) % rows_in_float32 == rows_in_float32 - 1) sums.widen();
    }
    sums.widen();
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

// The gradient of x, of rows from `end` down to `first`, which are in the cache still; rows of `dx`
// begin with `first` and lie `step` values apart.
template <bool two, bool add, bool relu>
void gradient_of_x(const Norm& n, const Given& given, const float* dresidual, const float* means,
                float* dx, long step, long first, long end) {
    const float *plain = means, *weighted = means + n.channels;
    for (long row = end - 1; row >= first; row--) {
        const long at = row * n.channels;
        for (long c = 0; c < n.channels; c += lanes) {
            values g = add ? load(dresidual + at + c)
                            : gradient_at<two, add, relu>(n, given, at, c);
            values away = (load(given.x + at + c) - load(n.mean + c)) * load(weighted + c);
            store(dx + (row - first) * step + c, (g - load(plain + c) - away) * load(given.scale + c));
        }
    }
}

using Normalise = decltype(&normalise<false, false>);
constexpr Normalise normalises[4] = {
    normalise<false, false>, normalise<false, true>, normalise<true, false>, normalise<true, true>,
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
