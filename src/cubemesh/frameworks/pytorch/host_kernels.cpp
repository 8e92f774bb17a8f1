// Batch normalisation with what follows it, max pooling and dropout, for a CPU: each in as few passes
// over memory as it can do with.
//
// Arrays lie in channels-last, rows (batch, height, width) by channels, in float32; channels come
// sixteen at a time. A thread has rows of its own, one after the other as they lie in memory.
//
//     norm forward    sums of x │ y = relu((x − mean) · scale + bias + residual)     read, read, write
//     norm backward   slope where y > 0, its sums │ gradient of x                    the same
//
// At a │ the threads meet. Sums are of differences from a channel's first value, in float32 over a
// few rows and in float64 over these.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>

namespace {

constexpr long lanes = 16;
typedef float values __attribute__((vector_size(64), aligned(4)));
typedef int32_t places __attribute__((vector_size(64), aligned(4)));
typedef uint8_t bytes __attribute__((vector_size(16), aligned(1)));

inline values load(const float* from) { return *reinterpret_cast<const values*>(from); }
inline void store(float* to, values v) { *reinterpret_cast<values*>(to) = v; }
inline values all(float v) { return v - values{}; }

// Rows of thread `t` of `threads`.
inline void share(long rows, int t, int threads, long& first, long& end) {
    first = rows * t / threads;
    end = rows * (t + 1) / threads;
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

template <bool adds, bool rectifies>
void normalise(const Norm& n, const float* x, const float* residual, float* y, const float* scale,
               long first, long end) {
    for (long row = first; row < end; row++) {
        const long at = row * n.channels;
        for (long c = 0; c < n.channels; c += lanes) {
            values v = (load(x + at + c) - load(n.mean + c)) * load(scale + c) + load(n.bias + c);
            if (adds) v += load(residual + at + c);
            if (rectifies) v = v < 0 ? values{} : v;  // what is no number stays none
            store(y + at + c, v);
        }
    }
}

// The gradient of what was normalised: what the readers send back, where the ReLU let it through.
template <bool two, bool adds, bool rectifies>
inline values slope_at(const Norm& n, const float* one, const float* other, const float* x,
                       const float* y, const float* scale, long at, long c) {
    values g = load(one + at + c);
    if (two) g += load(other + at + c);
    if (rectifies) {
        values v = adds ? load(y + at + c)
                        : (load(x + at + c) - load(n.mean + c)) * load(scale + c) + load(n.bias + c);
        g = v <= 0 ? values{} : g;
    }
    return g;
}

template <bool two, bool adds, bool rectifies>
void slope_sums(const Norm& n, const float* one, const float* other, const float* x, const float* y,
                const float* scale, float* dresidual, Sums& sums, long first, long end) {
    for (long row = first; row < end; row++) {
        const long at = row * n.channels;
        float *plain = sums.narrow.data(), *weighted = plain + n.channels;
        for (long c = 0; c < n.channels; c += lanes) {
            values g = slope_at<two, adds, rectifies>(n, one, other, x, y, scale, at, c);
            if (adds) store(dresidual + at + c, g);
            store(plain + c, load(plain + c) + g);
            store(weighted + c, load(weighted + c) + g * (load(x + at + c) - load(n.mean + c)));
        }
        if ((row - first) % rows_in_float32 == rows_in_float32 - 1) sums.widen();
    }
    sums.widen();
}

template <bool two, bool adds, bool rectifies>
void slope_of_x(const Norm& n, const float* one, const float* other, const float* x, const float* y,
                const float* scale, const float* dresidual, const float* means, float* dx, long first,
                long end) {
    const float *plain = means, *weighted = means + n.channels;
    for (long row = end - 1; row >= first; row--) {  // the last rows are in the cache still
        const long at = row * n.channels;
        for (long c = 0; c < n.channels; c += lanes) {
            values g = adds ? load(dresidual + at + c)
                            : slope_at<two, adds, rectifies>(n, one, other, x, y, scale, at, c);
            values away = (load(x + at + c) - load(n.mean + c)) * load(weighted + c);
            store(dx + at + c, (g - load(plain + c) - away) * load(scale + c));
        }
    }
}

// Philox4x32-10 (Salmon et al. 2011): from a counter and a key four numbers of 32 bits, any of which
// is as good as random. Sixteen counters at once.
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

using Normalise = decltype(&normalise<false, false>);
constexpr Normalise normalises[4] = {
    normalise<false, false>, normalise<false, true>, normalise<true, false>, normalise<true, true>,
};
using SlopeSums = decltype(&slope_sums<false, false, false>);
constexpr SlopeSums slope_sums_of[8] = {
    slope_sums<false, false, false>, slope_sums<false, false, true>, slope_sums<false, true, false>,
    slope_sums<false, true, true>,   slope_sums<true, false, false>, slope_sums<true, false, true>,
    slope_sums<true, true, false>,   slope_sums<true, true, true>,
};
using SlopeOfX = decltype(&slope_of_x<false, false, false>);
constexpr SlopeOfX slopes_of_x[8] = {
    slope_of_x<false, false, false>, slope_of_x<false, false, true>, slope_of_x<false, true, false>,
    slope_of_x<false, true, true>,   slope_of_x<true, false, false>, slope_of_x<true, false, true>,
    slope_of_x<true, true, false>,   slope_of_x<true, true, true>,
};

}  // namespace

extern "C" {

// y, mean and 1 / standard deviation from x; moves the running statistics. `residual` may be null.
void norm_forward(const float* x, const float* residual, float* y, const float* weight,
                  const float* bias, float* running_mean, float* running_var, float* mean,
                  float* rstd, long rows, long channels, float epsilon, float momentum,
                  int rectifies, int threads) {
    const Norm n{weight, bias, mean, rstd, rows, channels};
    std::vector<Sums> found(threads, Sums(channels));
    std::vector<float> pivot(x, x + channels), scale(channels);
    const Normalise run = normalises[2 * (residual != nullptr) + rectifies];
#pragma omp parallel num_threads(threads)
    {
        const int t = omp_get_thread_num();
        long first, end;
        share(rows, t, omp_get_num_threads(), first, end);
        Sums& own = found[t];
        float *sum = own.narrow.data(), *squares = sum + channels;
        for (long row = end - 1; row >= first; row--) {  // the last rows were written last
            const float* at = x + row * channels;
            for (long c = 0; c < channels; c += lanes) {
                values d = load(at + c) - load(pivot.data() + c);
                store(sum + c, load(sum + c) + d);
                store(squares + c, load(squares + c) + d * d);
            }
            if ((row - first) % rows_in_float32 == 0) own.widen();
        }
#pragma omp barrier
#pragma omp for
        for (long c = 0; c < channels; c++) {
            const double shift = total(found, c) / rows;
            const double variance =
                std::max(total(found, channels + c) / rows - shift * shift, 0.0);
            mean[c] = float(pivot[c] + shift);
            rstd[c] = float(1 / std::sqrt(variance + epsilon));
            scale[c] = weight[c] * rstd[c];
            const double unbiased = variance * rows / std::max(rows - 1, 1L);
            running_mean[c] += momentum * (mean[c] - running_mean[c]);
            running_var[c] += momentum * (float(unbiased) - running_var[c]);
        }
        run(n, x, residual, y, scale.data(), first, end);
    }
}

// The gradients of x, residual, weight and bias from one or two gradients of y (`other` may be
// null). With a residual the result `y` is needed, without it `dresidual` and `y` are null.
void norm_backward(const float* one, const float* other, const float* x, const float* y,
                   const float* weight, const float* bias, const float* mean, const float* rstd,
                   float* dx, float* dresidual, float* dweight, float* dbias, long rows,
                   long channels, int rectifies, int threads) {
    const Norm n{weight, bias, mean, rstd, rows, channels};
    std::vector<Sums> found(threads, Sums(channels));
    std::vector<float> scale(channels), means(2 * channels);
    for (long c = 0; c < channels; c++) scale[c] = weight[c] * rstd[c];
    const int which = 4 * (other != nullptr) + 2 * (dresidual != nullptr) + rectifies;
#pragma omp parallel num_threads(threads)
    {
        const int t = omp_get_thread_num();
        long first, end;
        share(rows, t, omp_get_num_threads(), first, end);
        slope_sums_of[which](n, one, other, x, y, scale.data(), dresidual, found[t], first, end);
#pragma omp barrier
#pragma omp for
        for (long c = 0; c < channels; c++) {
            const double plain = total(found, c), weighted = total(found, channels + c) * rstd[c];
            dbias[c] = float(plain);
            dweight[c] = float(weighted);
            means[c] = float(plain / rows);
            means[channels + c] = float(weighted * rstd[c] / rows);
        }
        slopes_of_x[which](n, one, other, x, y, scale.data(), dresidual, means.data(), dx, first,
                           end);
    }
}

// y and the place of the largest value in each window, the first where two tie. `rectifies`: y is
// 0 where no value is larger, and nobody has won there: place 255.
void pool_forward(const float* x, float* y, uint8_t* winner, long batch, long channels, int height,
                  int width, int out_height, int out_width, int kernel_h, int kernel_w,
                  int stride_h, int stride_w, int pad_h, int pad_w, int rectifies, int threads) {
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
                if (rectifies) {
                    place = best <= 0 ? places{} + 255 : place;
                    best = best <= 0 ? values{} : best;
                }
                store(y + to + c, best);
                *reinterpret_cast<bytes*>(winner + to + c) = __builtin_convertvector(place, bytes);
            }
        }
    }
}

// The same where windows lie side by side: each gradient goes to one of the cells of its window.
static void pool_backward_apart(const float* slope, const uint8_t* winner, float* dx, long batch,
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
            const float* given = slope + from + out * channels;
            const uint8_t* won = winner + from + out * channels;
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

// dx from the gradient of y and the winners: each value once, from the windows that cover it.
void pool_backward(const float* slope, const uint8_t* winner, float* dx, long batch, long channels,
                   int height, int width, int out_height, int out_width, int kernel_h,
                   int kernel_w, int stride_h, int stride_w, int pad_h, int pad_w, int threads) {
    if (kernel_h == stride_h && kernel_w == stride_w && pad_h == 0 && pad_w == 0) {
        pool_backward_apart(slope, winner, dx, batch, channels, height, width, out_height,
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
                            *reinterpret_cast<const bytes*>(winner + at), places);
                        const values given = load(slope + at);
                        sum += won == place_h * kernel_w + place_w ? given : values{};
                    }
                }
                store(to + c, sum);
            }
        }
    }
}

// y = x · scale where a number drawn for its place is at least `dropped` of 2^32, else 0. The same
// key draws the same numbers, so that the backward pass draws them again instead of keeping them.
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
