// 1×1 convolution fused with batch normalization, residual add and ReLU, for a CPU.
//
//     forward    y = x Wᵀ and its sums │ result = relu((y − mean) · scale + bias + residual)
//     backward   gradient, its sums │ by blocks of rows: gradient of y; of x: that · W; of W: thatᵀ x
//
// │ is a barrier of the threads. The sums are computed while rows are in the cache, and the gradient of
// y never leaves it: saves one read of y forward, two reads and a write backward.
//
// Arrays are channels-last, rows by channels, in fp32. See batch_norm.h for the elementwise parts and
// matrices.h for the products.

#include <algorithm>
#include <vector>

#include <omp.h>

#include "matrices.h"

namespace {

constexpr long group = 12;  // rows; threads and blocks have whole groups
constexpr long block_values = 40 << 10, fewest = 48, most = 384;

// A convolution from `from` channels to `to`.
struct Shape {
    long rows, from, to;
    long block() const {
        return std::clamp(block_values / (from + to), fewest, most) / group * group;
    }
    // Values of a block that is copied, and of a panel of its inputs.
    long copy() const { return block() * (std::max(from, to) + lanes); }
    long panel() const { return block() * narrow_panel * lanes; }
};

// Sums of differences from `pivot` and of their squares, of `width` columns of `count` rows.
void column_sums(Rows<const float> y, long count, const float* pivot, float* plain, float* squares,
                 long width) {
    for (long c = 0; c < width; c += lanes) {
        values one[2] = {}, two[2] = {};
        const values from = load(pivot + c);
        for (long row = 0; row < count; row++) {
            const values d = load(y.from(row, c).at) - from;
            one[row % 2] += d;
            two[row % 2] += d * d;
        }
        store(plain + c, load(plain + c) + one[0] + one[1]);
        store(squares + c, load(squares + c) + two[0] + two[1]);
    }
}

const auto no_callback = [](long, long) {};

}  // namespace

extern "C" {

// Size of the workspace of the two functions below, in floats.
long conv_batch_norm_floats(long rows, long from, long to, int gradient, int threads) {
    const Shape s{rows, from, to};
    return from * to + threads * (s.copy() + (gradient ? s.panel() + from * to : 0));
}

// `y`, the convolution, and `result`, with mean and 1 / standard deviation; the rest as in
// batch_norm_forward. `work` has conv_batch_norm_floats(…, 0, threads).
void conv_batch_norm_forward(const float* x, const float* filters, const float* residual, float* y,
                          float* result, uint16_t* bits, const float* weight, const float* bias,
                          float* running_mean, float* running_var, float* mean, float* rstd,
                          float* work, long rows, long from, long to, float epsilon,
                          float momentum, int relu, int threads) {
    const Shape s{rows, from, to};
    const Norm n{weight, bias, mean, rstd, rows, to};
    const Running running{running_mean, running_var, epsilon, momentum};
    std::vector<Sums> found(threads, Sums(to));
    std::vector<float> pivot(to), scale(to);
    const Normalize run = normalizes[2 * (residual != nullptr) + relu];
#pragma omp parallel num_threads(threads)
    {
        const int t = omp_get_thread_num(), all = omp_get_num_threads();
        const Rows<float> copy{work + from * to + t * s.copy(), from + lanes};
        pack(filters, to, from, false, work, t, all);
#pragma omp barrier
#pragma omp single
        {
            Ahead none;
            product({x, from}, work, from, to, {pivot.data(), to}, 1, none, no_callback);
        }
        long first, end;
        share(rows, t, all, first, end, group);
        Sums& own = found[t];
        float *plain = own.fp32.data(), *squares = plain + to;
        for (long row = first; row < end; row += s.block()) {
            const long count = std::min(s.block(), end - row), next = row + count;
            copy_rows({x + row * from, from}, count, from, copy);
            Ahead ahead;
            ahead.add(x + next * from, std::min(s.block(), end - next) * from);
            const Rows<float> made{y + row * to, to};
            const auto done = [&](long c, long width) {
                const Rows<const float> columns{made.at + c, to};
                column_sums(columns, count, pivot.data() + c, plain + c, squares + c, width);
            };
            product({copy.at, copy.step}, work, from, to, made, count, ahead, done);
            own.flush();
        }
#pragma omp barrier
#pragma omp for
        for (long c = 0; c < to; c++)
            finish_statistics(found, n, running, pivot[c], mean, rstd, scale.data(), c);
        run(n, y, residual, result, bits, scale.data(), first, end);
    }
}

// The gradients of x (null if not wanted), of the filters, and the rest as in batch_norm_backward; `y`
// is the convolution. `work` has conv_batch_norm_floats(…, 1, threads).
void conv_batch_norm_backward(const float* one, const float* other, const float* x,
                           const float* filters, const float* y, const uint16_t* bits,
                           const float* weight, const float* bias, const float* mean,
                           const float* rstd, float* dx, float* dfilters, float* dresidual,
                           float* dweight, float* dbias, float* work, long rows, long from,
                           long to, int relu, int threads) {
    const Shape s{rows, from, to};
    const Norm n{weight, bias, mean, rstd, rows, to};
    std::vector<Sums> found(threads, Sums(to));
    std::vector<float> scale(to), means(2 * to);
    for (long c = 0; c < to; c++) scale[c] = weight[c] * rstd[c];
    const Given given{one, other, y, bits, scale.data()};
    const int which = 4 * (other != nullptr) + 2 * (dresidual != nullptr) + relu;
    const float* gradients = dresidual != nullptr ? dresidual : one;
    float *copies = work + from * to, *panels = copies + threads * s.copy();
    float* sums = panels + threads * s.panel();
#pragma omp parallel num_threads(threads)
    {
        const int t = omp_get_thread_num(), all = omp_get_num_threads();
        const Rows<float> gradient{copies + t * s.copy(), to + lanes};
        float* mine = sums + t * from * to;
        long first, end;
        share(rows, t, all, first, end, group);
        gradient_sums_of[which](n, given, dresidual, found[t], first, end);
        if (dx != nullptr) pack(filters, to, from, true, work, t, all);
        std::fill(mine, mine + from * to, 0.f);
#pragma omp barrier
#pragma omp for
        for (long c = 0; c < to; c++) finish_gradients(found, n, dweight, dbias, means.data(), c);
        for (long last = end, row; last > first; last = row) {  // the last rows are still in the cache
            row = std::max(first, last - s.block());
            const long count = last - row, next = std::max(first, row - s.block());
            gradients_of_x[which](n, given, dresidual, means.data(), gradient.at, gradient.step, row, last);
            const Rows<const float> made{gradient.at, gradient.step};
            Ahead none, ahead;  // prefetching during the first product costs more than it gains
            if (dx != nullptr)
                product(made, work, to, from, {dx + row * from, from}, count, none, no_callback);
            ahead.add(y + next * to, (row - next) * to);
            ahead.add(x + next * from, (row - next) * from);
            ahead.add(gradients + next * to, (row - next) * to);
            correlate_all(made, to, {x + row * from, from}, from, count, panels + t * s.panel(),
                          mine, ahead);
        }
#pragma omp barrier
        share(from * to, t, all, first, end);
        for (long i = first; i < end; i++) {
            float sum = 0;
            for (int of = 0; of < all; of++) sum += sums[of * from * to + i];
            dfilters[i] = sum;
        }
    }
}

}
