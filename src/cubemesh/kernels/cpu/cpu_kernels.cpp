// CPU kernels: batch normalization with residual add and ReLU, max pooling, dropout; each in the fewest
// passes over memory.
//
//     norm forward    sums of x │ y = relu((x − mean) · scale + bias + residual)     read, read, write
//     norm backward   gradient where y > 0, its sums │ gradient of x                    the same
//
// │ is a barrier of the threads. For the layout and the parts of a normalization see batch_norm.h. Each
// thread has a contiguous range of rows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>

#include "batch_norm.h"

namespace {

typedef uint8_t bytes __attribute__((vector_size(16), aligned(1)));

// Philox4x32-10 (Salmon et al. 2011): from a counter and a key four random numbers of 32 bits.
// Sixteen counters at once.
constexpr long drawn = 4 * lanes;
typedef uint32_t numbers __attribute__((vector_size(64)));
typedef uint64_t products __attribute__((vector_size(128)));

inline void multiply(numbers a, uint32_t by, numbers& high, numbers& low) {
    const products p = __builtin_convertvector(a, products) * by;
    high = __builtin_convertvector(p >> 32, numbers);
    low = a * by;
}

inline void draw(uint64_t block, uint64_t key, uint32_t* to) {
    numbers c0, c1 = {}, c2 = {}, c3 = {};
    for (int i = 0; i < lanes; i++) c0[i] = uint32_t(block * lanes + i);
    c1 += uint32_t((block * lanes) >> 32);
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    for (int round = 0; round < 10; round++) {
        numbers high0, low0, high2, low2;
        multiply(c0, 0xD2511F53u, high0, low0);
        multiply(c2, 0xCD9E8D57u, high2, low2);
        c0 = high2 ^ c1 ^ k0;
        c1 = low2;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    std::memcpy(to, &c0, sizeof c0);
    std::memcpy(to + lanes, &c1, sizeof c1);
    std::memcpy(to + 2 * lanes, &c2, sizeof c2);
    std::memcpy(to + 3 * lanes, &c3, sizeof c3);
}

}  // namespace

extern "C" {

// y, mean and 1 / standard deviation from x; updates the running statistics. `residual` may be null;
// with one, the ReLU mask is stored in `bits`.
void batch_norm_forward(const float* x, const float* residual, float* y, uint16_t* bits,
                  const float* weight, const float* bias, float* running_mean, float* running_var,
                  float* mean, float* rstd, long rows, long channels, float epsilon, float momentum,
                  int relu, int threads) {
    const Norm n{weight, bias, mean, rstd, rows, channels};
    const Running running{running_mean, running_var, epsilon, momentum};
    std::vector<Sums> found(threads, Sums(channels));
    std::vector<float> pivot(x, x + channels), scale(channels);
    const Normalize run = normalizes[2 * (residual != nullptr) + relu];
#pragma omp parallel num_threads(threads)
    {
        const int t = omp_get_thread_num();
        long first, end;
        share(rows, t, omp_get_num_threads(), first, end);
        Sums& own = found[t];
        float *sum = own.fp32.data(), *squares = sum + channels;
        for (long row = end - 1; row >= first; row--) {  // the last rows are in the cache
            const float* at = x + row * channels;
            for (long c = 0; c < channels; c += lanes) {
                values d = load(at + c) - load(pivot.data() + c);
                store(sum + c, load(sum + c) + d);
                store(squares + c, load(squares + c) + d * d);
            }
            if ((row - first) % rows_in_float32 == 0) own.flush();
        }
#pragma omp barrier
#pragma omp for
        for (long c = 0; c < channels; c++)
            finish_statistics(found, n, running, pivot[c], mean, rstd, scale.data(), c);
        run(n, x, residual, y, bits, scale.data(), first, end);
    }
}

// The gradients of x, residual, weight and bias from one or two gradients of y (`other` may be
// null). With a residual and a ReLU its `bits` are needed, without a residual `dresidual` is null.
void batch_norm_backward(const float* one, const float* other, const float* x, const uint16_t* bits,
                   const float* weight, const float* bias, const float* mean, const float* rstd,
                   float* dx, float* dresidual, float* dweight, float* dbias, long rows,
                   long channels, int relu, int threads) {
    const Norm n{weight, bias, mean, rstd, rows, channels};
    std::vector<Sums> found(threads, Sums(channels));
    std::vector<float> scale(channels), means(2 * channels);
    for (long c = 0; c < channels; c++) scale[c] = weight[c] * rstd[c];
    const Given given{one, other, x, bits, scale.data()};
    const int which = 4 * (other != nullptr) + 2 * (dresidual != nullptr) + relu;
#pragma omp parallel num_threads(threads)
    {
        const int t = omp_get_thread_num();
        long first, end;
        share(rows, t, omp_get_num_threads(), first, end);
        gradient_sums_of[which](n, given, dresidual, found[t], first, end);
#pragma omp barrier
#pragma omp for
        for (long c = 0; c < channels; c++)
            finish_gradients(found, n, dweight, dbias, means.data(), c);
        gradients_of_x[which](n, given, dresidual, means.data(), dx + first * channels, channels, first,
                           end);
    }
}

// y and the argmax of each window, the first of equal values. `relu`: where no value is positive, y is
// 0 and the argmax 255.
void pool_forward(const float* x, float* y, uint8_t* argmax, long batch, long channels, int height,
                  int width, int out_height, int out_width, int kernel_h, int kernel_w,
                  int stride_h, int stride_w, int pad_h, int pad_w, int relu, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long line = 0; line < batch * out_height; line++) {
        const int top = int(line % out_height) * stride_h - pad_h;
        const float* image = x + line / out_height * height * width * channels;
        for (int out = 0; out < out_width; out++) {
            const int left = out * stride_w - pad_w;
            const long to = (line * out_width + out) * channels;
            for (long c = 0; c < channels; c += lanes) {
                values best = all(-INFINITY);
                places place = {};
                for (int i = std::max(0, -top); i < kernel_h && top + i < height; i++) {
                    for (int j = std::max(0, -left); j < kernel_w && left + j < width; j++) {
                        const long at = long(top + i) * width + left + j;
                        const values v = load(image + at * channels + c);
                        const places wins = (v > best) | (v != v);
                        best = wins ? v : best;
                        place = wins ? places{} + (i * kernel_w + j) : place;
                    }
                }
                if (relu) {
                    place = best <= 0 ? places{} + 255 : place;
                    best = best <= 0 ? values{} : best;
                }
                store(y + to + c, best);
                *reinterpret_cast<bytes*>(argmax + to + c) = __builtin_convertvector(place, bytes);
            }
        }
    }
}

// The same for windows that do not overlap: each gradient goes to one cell of its window.
static void pool_backward_disjoint(const float* gradient, const uint8_t* argmax, float* dx, long batch,
                                long channels, int height, int width, int out_height,
                                int out_width, int kernel_h, int kernel_w, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long line = 0; line < batch * height; line++) {
        const int h = int(line % height), out_h = h / kernel_h;
        const long from = (line / height * out_height + out_h) * out_width * channels;
        float* to = dx + line * width * channels;
        const int covered = out_h < out_height ? std::min(width, out_width * kernel_w) : 0;
        std::memset(to + covered * channels, 0, (width - covered) * channels * sizeof(float));
        for (int out = 0; out < out_width && covered; out++) {
            const float* given = gradient + from + out * channels;
            const uint8_t* won = argmax + from + out * channels;
            for (int j = 0; j < kernel_w && out * kernel_w + j < width; j++, to += channels) {
                const int own = h % kernel_h * kernel_w + j;
                for (long c = 0; c < channels; c += lanes) {
                    const places place = __builtin_convertvector(
                        *reinterpret_cast<const bytes*>(won + c), places);
                    store(to + c, place == own ? load(given + c) : values{});
                }
            }
        }
    }
}

// dx from the gradient of y and the argmax: each value once, from the windows that cover it.
void pool_backward(const float* gradient, const uint8_t* argmax, float* dx, long batch, long channels,
                   int height, int width, int out_height, int out_width, int kernel_h,
                   int kernel_w, int stride_h, int stride_w, int pad_h, int pad_w, int threads) {
    if (kernel_h == stride_h && kernel_w == stride_w && pad_h == 0 && pad_w == 0) {
        pool_backward_disjoint(gradient, argmax, dx, batch, channels, height, width, out_height,
                            out_width, kernel_h, kernel_w, threads);
        return;
    }
    const int covers_h = (kernel_h + stride_h - 1) / stride_h;
    const int covers_w = (kernel_w + stride_w - 1) / stride_w;
#pragma omp parallel for num_threads(threads)
    for (long line = 0; line < batch * height; line++) {
        const int h = int(line % height) + pad_h;
        const long image = line / height * out_height;
        for (int col = 0; col < width; col++) {
            const int w = col + pad_w, last_h = h / stride_h, last_w = w / stride_w;
            float* to = dx + (line * width + col) * channels;
            for (long c = 0; c < channels; c += lanes) {
                values sum = {};
                for (int i = 0; i < covers_h; i++) {
                    const int out_h = last_h - i, place_h = h - out_h * stride_h;
                    if (out_h < 0 || out_h >= out_height || place_h >= kernel_h) continue;
                    for (int j = 0; j < covers_w; j++) {
                        const int out_w = last_w - j, place_w = w - out_w * stride_w;
                        if (out_w < 0 || out_w >= out_width || place_w >= kernel_w) continue;
                        const long at = ((image + out_h) * out_width + out_w) * channels + c;
                        const places won = __builtin_convertvector(
                            *reinterpret_cast<const bytes*>(argmax + at), places);
                        const values given = load(gradient + at);
                        sum += won == place_h * kernel_w + place_w ? given : values{};
                    }
                }
                store(to + c, sum);
            }
        }
    }
}

// y = x · scale where the number drawn for its index is at least `dropped` of 2^32, else 0. The same
// key draws the same numbers, so the backward pass draws them again instead of storing a mask.
void dropout(const float* x, float* y, long size, uint64_t key, uint32_t dropped, float scale,
             int threads) {
#pragma omp parallel for num_threads(threads)
    for (long block = 0; block < (size + drawn - 1) / drawn; block++) {
        uint32_t numbers[drawn];
        draw(uint64_t(block), key, numbers);
        const long first = block * drawn, end = std::min(size, first + drawn);
#pragma omp simd
        for (long i = first; i < end; i++) y[i] = numbers[i - first] >= dropped ? x[i] * scale : 0;
    }
}

}
