// Winograd convolution for a CPU: 3×3, stride 1, a quarter of the multiplications.
//
//     input  ─ transform ─┐
//                         ├─ 36 matrix products ─ transform back ─ result
//     weight ─ transform ─┘
//
// A tile, 4×4 of the result, has 36 positions after the transform, each a separate matrix product
// (winograd_transforms.h). The input gradient is the convolution of the gradient with the flipped
// weights.
//
// Arrays are channels-last, in fp32; channels in multiples of sixteen. Tiles are processed in blocks
// whose intermediates stay in a cache. For small layers each thread has its own blocks; where the
// weights fill a cache, all threads share a block, with barriers between the steps.

#include <algorithm>
#include <cmath>
#include <vector>

#include <omp.h>

#include "winograd_tiles.h"

namespace {

inline void share(long items, int part, int parts, long& first, long& end) {
    first = items * part / parts;
    end = items * (part + 1) / parts;
}

// Of `rows` tiles and `blocks` · 16 filters: sums over the inputs.
template <int blocks>
inline void multiply(const float* v, long step, const float* weight, long depth, float* to) {
    values sum[rows][blocks] = {};
    for (long k = 0; k < depth; k += lanes, v += step) {
        for (long input = 0; input < lanes; input++, weight += blocks * lanes) {
            values by[blocks];
            for (int j = 0; j < blocks; j++) by[j] = load(weight + j * lanes);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                const float x = v[i * lanes + input];
                for (int j = 0; j < blocks; j++) sum[i][j] += x * by[j];
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < blocks; j++) store(to + j * step + i * lanes, sum[i][j]);
}

// Of `inputs` inputs and `blocks` · 16 filters: sums over the tiles, added to those before.
template <int blocks>
inline void correlate(const float* v, const float* gradient, long step, long tiles, float* to,
                      long filters, bool add) {
    values sum[inputs][blocks] = {};
    for (long tile = 0; tile < tiles; tile++, v += lanes, gradient += lanes) {
        values by[blocks];
        for (int j = 0; j < blocks; j++) by[j] = load(gradient + j * step);
#pragma GCC unroll 16
        for (int i = 0; i < inputs; i++) {
            const float x = v[i];
            for (int j = 0; j < blocks; j++) sum[i][j] += x * by[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < inputs; i++) {
        for (int j = 0; j < blocks; j++) {
            float* at = to + i * filters + j * lanes;
            store(at, add ? load(at) + sum[i][j] : sum[i][j]);
        }
    }
}

// The products of a share of places and filters, for the first `tiles` of a block.
void multiply_share(const Sizes& s, const Plan& p, const float* v, const float* weights, float* to,
                    long tiles, int part, int parts) {
    const long across = (s.to + wide * lanes - 1) / (wide * lanes), step = p.block * lanes;
    long first, end;
    share(places * across, part, parts, first, end);
    for (long item = first; item < end; item++) {
        const long place = item / across, n = item % across * wide * lanes;
        const float* own = weights + place * p.weights_step(s) + n * s.from;
        const auto product = s.to - n < wide * lanes ? multiply<1> : multiply<wide>;
        for (long tile = 0; tile < tiles; tile += rows) {
            product(v + place * p.step(s.from) + tile * lanes, step, own, s.from,
                    to + place * p.step(s.to) + n * p.block + tile * lanes);
        }
    }
}

// The same of a weight gradient, by places and inputs.
void correlate_share(const Sizes& s, const Plan& p, const float* v, const float* gradient, float* to,
                     long tiles, bool add, int part, int parts) {
    const long down = s.from / inputs, step = p.block * lanes;
    long first, end;
    share(places * down, part, parts, first, end);
    for (long item = first; item < end; item++) {
        const long place = item / down, k = item % down * inputs;
        const float* own = v + place * p.step(s.from) + k / lanes * step + k % lanes;
        const float* other = gradient + place * p.step(s.to);
        float* at = to + place * p.weights_step(s) + k * s.to;
        for (long n = 0; n < s.to; n += wide * lanes) {
            const auto product = s.to - n < wide * lanes ? correlate<1> : correlate<wide>;
            product(own, other + n * p.block, step, tiles, at + n, s.to, add);
        }
    }
}

}  // namespace

extern "C" {

// Size of the workspace of the two functions below, in floats.
long winograd_floats(const Sizes* sizes, int gradient, int threads) {
    const Sizes& s = *sizes;
    const Plan p(s, gradient);
    const long teams = p.together ? 1 : threads;
    return (gradient ? teams : 1) * places * p.weights_step(s) +
           (1 + threads) * std::max(s.from, s.to) + teams * p.floats(s);
}

// y = x convolved with the weights (flipped if `turned`), plus a bias (may be null), with an optional
// ReLU. `work` has winograd_floats(sizes, 0, threads).
void winograd_convolve(const Sizes* sizes, const float* x, const float* weight,
                       const long* strides, const float* bias, float* y, float* work, int turned,
                       int relu, int threads) {
    const Sizes& s = *sizes;
    const Plan p(s, false);
    const Weights w{strides[0], strides[1], strides[2], strides[3]};
    const long most = std::max(s.from, s.to);
    float *weights = work, *zeros = weights + places * p.weights_step(s), *scratch = zeros + most;
    float* blocks = scratch + threads * most;
    std::fill(zeros, zeros + most, 0.f);
    const float* shift = bias != nullptr ? bias : zeros;
    const float least = relu ? 0 : -INFINITY;
    const auto take = [&](long number, float* block, long start) {
        read_input(s, p, x, zeros, number, block + (number - start) * lanes);
    };
#pragma omp parallel num_threads(threads)
    {
        const int own = omp_get_thread_num(), all = omp_get_num_threads();
        const auto give = [&](long number, const float* block, long start) {
            write_result(s, p, block + (number - start) * lanes, number, shift, least, y,
                        scratch + own * most);
        };
#pragma omp for
        for (long item = 0; item < s.from / lanes * (s.to / lanes); item++)
            read_weights(s, weight, w, turned, item, weights);
        float* v = blocks + (p.together ? 0 : own * p.floats(s));
        float* m = v + places * p.step(s.from);
        if (p.together) {
            for (long start = 0; start < p.tiles; start += p.block) {
                const long count = std::min(p.block, p.tiles - start);
                long first, end;
                share(count, own, all, first, end);
                for (long i = start + first; i < start + end; i++) take(i, v, start);
#pragma omp barrier
                multiply_share(s, p, v, weights, m, count, own, all);
#pragma omp barrier
                for (long i = start + first; i < start + end; i++) give(i, m, start);
            }
        } else {
#pragma omp for schedule(dynamic)
            for (long start = 0; start < p.tiles; start += p.block) {
                const long count = std::min(p.block, p.tiles - start);
                for (long i = start; i < start + count; i++) take(i, v, start);
                multiply_share(s, p, v, weights, m, count, 0, 1);
                for (long i = start; i < start + count; i++) give(i, m, start);
            }
        }
    }
}

// The gradients of the weights and of the bias (may be null), from the input and the gradient of
// the result. `work` has winograd_floats(sizes, 1, threads).
void winograd_weight_gradient(const Sizes* sizes, const float* x, const float* gradient,
                              float* dweight, const long* strides, float* dbias, float* work,
                              int threads) {
    const Sizes& s = *sizes;
    const Plan p(s, true);
    const Weights w{strides[0], strides[1], strides[2], strides[3]};
    const long most = std::max(s.from, s.to), teams = p.together ? 1 : threads;
    const long size = places * p.weights_step(s), blocks = (p.tiles + p.block - 1) / p.block;
    float *sums = work, *zeros = sums + teams * size, *gradient_sums = zeros + most;
    float* arrays = gradient_sums + threads * most;
    std::fill(zeros, arrays, 0.f);
    std::vector<double> totals(threads * s.to);
#pragma omp parallel num_threads(threads)
    {
        const int own = omp_get_thread_num(), all = omp_get_num_threads();
        // A team is all threads, or each thread with its own sums.
        const int team = p.together ? 0 : own, part = p.together ? own : 0;
        const int parts = p.together ? all : 1;
        float *v = arrays + team * p.floats(s), *g = v + places * p.step(s.from);
        float *mine = sums + team * size, *few = gradient_sums + own * most;
        long first_block = 0, end_block = blocks, first, end;
        if (!p.together) share(blocks, own, all, first_block, end_block);
        if (first_block == end_block) std::fill(mine, mine + size, 0.f);
        for (long block = first_block; block < end_block; block++) {
            const long start = block * p.block, count = std::min(p.block, p.tiles - start);
            share(count, part, parts, first, end);
            for (long i = first; i < end; i++) {
                read_input(s, p, x, zeros, start + i, v + i * lanes);
                read_gradient(s, p, gradient, zeros, start + i, g + i * lanes, few);
            }
            for (long c = 0; c < s.to; c++) {  // few values in fp32, these in fp64
                totals[own * s.to + c] += few[c];
                few[c] = 0;
            }
            if (p.together) {
#pragma omp barrier
            }
            correlate_share(s, p, v, g, mine, count, block > first_block, part, parts);
            if (p.together) {
#pragma omp barrier
            }
        }
        if (!p.together && all > 1) {
#pragma omp barrier
            share(size / lanes, own, all, first, end);
            for (long i = first * lanes; i < end * lanes; i += lanes) {
                values sum = load(sums + i);
                for (int other = 1; other < all; other++) sum += load(sums + other * size + i);
                store(sums + i, sum);
            }
#pragma omp barrier
        }
#pragma omp for
        for (long item = 0; item < s.from / lanes * (s.to / lanes); item++)
            write_weights(s, sums, item, dweight, w);
    }
    for (long c = 0; c < s.to && dbias != nullptr; c++) {
        double total = 0;
        for (int own = 0; own < threads; own++) total += totals[own * s.to + c];
        dbias[c] = float(total);
    }
}

}
