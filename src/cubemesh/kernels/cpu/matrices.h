// Matrix products a block of rows at a time, for kernels that use the rows while they are in the cache
// (conv_batch_norm.cpp).
//
// Weights are packed into panels of a few columns: [columns / across][rows][across]. A block is copied
// to a row stride that is no power of 2, to avoid cache set conflicts.

#pragma once

#include <algorithm>

#include "batch_norm.h"

namespace {

#ifdef __AVX512F__  // thirty-two registers of sixteen values
constexpr int few_rows = 6, many_rows = 12, narrow_panel = 2, wide_panel = 4;
#else
constexpr int few_rows = 4, many_rows = 4, narrow_panel = 1, wide_panel = 1;
#endif
// Of a product in registers: rows by columns, these in sixteens.

constexpr long depth = 128;  // values of a row that are multiplied at once

// Sixteens of columns in a panel.
constexpr long across(long columns) { return columns % (wide_panel * lanes) == 0 ? wide_panel : narrow_panel; }

// Rows of `channels` values, `step` apart.
template <class Value>
struct Rows {
    Value* at;
    long step;
    Rows from(long row, long column = 0) const { return {at + row * step + column, step}; }
};

// Prefetches the next rows, a cache line at a time, during a product.
struct Ahead {
    const float *at[3], *end[3];
    int left = 0;
    void add(const float* from, long size) {
        if (size <= 0) return;
        at[left] = from;
        end[left++] = from + size;
    }
    inline void step() {
        if (left == 0) return;
        __builtin_prefetch(at[left - 1], 0, 2);
        if ((at[left - 1] += lanes) >= end[left - 1]) left--;
    }
};

// to += or = a few rows of x · a panel, of `given` rows of its own.
template <int rows, int columns, bool add>
inline void multiply(Rows<const float> x, const float* panel, long given, Rows<float> to,
                     Ahead& ahead) {
    values sum[rows][columns] = {};
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) __builtin_prefetch(to.at + i * to.step, 1);
    for (long k = 0; k < given; k++, panel += columns * lanes) {
        ahead.step();
        values by[columns];
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) by[j] = load(panel + j * lanes);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const float v = x.at[i * x.step + k];
#pragma GCC unroll 4
            for (int j = 0; j < columns; j++) sum[i][j] += v * by[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            float* at = to.at + i * to.step + j * lanes;
            store(at, add ? load(at) + sum[i][j] : sum[i][j]);
        }
    }
}

template <int rows, int columns, bool add>
void multiply_rows(Rows<const float> x, const float* panel, long given, Rows<float> to, long count,
                   Ahead& ahead) {
    long row = 0;
    for (; row + rows <= count; row += rows)
        multiply<rows, columns, add>(x.from(row), panel, given, to.from(row), ahead);
    for (; row < count; row++)
        multiply<1, columns, add>(x.from(row), panel, given, to.from(row), ahead);
}

// to = `count` rows of x · weights in panels, of `given` rows and `made` columns; `done` is
// called with each panel's first column when it is complete.
template <class Done>
void product(Rows<const float> x, const float* weights, long given, long made, Rows<float> to,
             long count, Ahead& ahead, Done done) {
    using Run = decltype(&multiply_rows<1, 1, true>);
    const bool is_wide = across(made) == wide_panel;
    const Run first = is_wide ? Run(multiply_rows<few_rows, wide_panel, false>)
                              : Run(multiply_rows<many_rows, narrow_panel, false>);
    const Run others = is_wide ? Run(multiply_rows<few_rows, wide_panel, true>)
                               : Run(multiply_rows<many_rows, narrow_panel, true>);
    const long width = across(made) * lanes;
    for (long k = 0; k < given; k += depth) {
        const long now = std::min(depth, given - k);
        for (long n = 0; n < made; n += width) {
            const float* panel = weights + n * given + k * width;
            (k > 0 ? others : first)(x.from(0, k), panel, now, to.from(0, n), count, ahead);
            if (k + depth >= given) done(n, width);
        }
    }
}

// Weights, filters × inputs, → panels of filters, or `turned` of inputs; a thread's share of them.
void pack(const float* weight, long filters, long inputs, bool turned, float* to, int t,
          int threads) {
    const long made = turned ? inputs : filters, given = turned ? filters : inputs;
    const long width = across(made) * lanes;
    long first, end;
    share(made, t, threads, first, end, width);
    for (long n = first; n < end; n += width) {
        float* panel = to + n * given;
        if (turned) {
            for (long k = 0; k < given; k++)
                for (long c = 0; c < width; c++) panel[k * width + c] = weight[k * inputs + n + c];
        } else {
            for (long k = 0; k < given; k += lanes)
                for (long c = 0; c < width; c++)
                    for (long i = 0; i < lanes; i++)
                        panel[(k + i) * width + c] = weight[(n + c) * inputs + k + i];
        }
    }
}

void copy_rows(Rows<const float> x, long count, long channels, Rows<float> to) {
    for (long row = 0; row < count; row++)
        for (long c = 0; c < channels; c += lanes)
            store(to.from(row, c).at, load(x.from(row, c).at));
}

// to += gradientᵀ · x for a few filters and a panel of inputs, over `count` rows.
template <int filters>
inline void correlate(Rows<const float> gradient, const float* x, long count, Rows<float> to,
                      Ahead& ahead) {
    values sum[filters][narrow_panel] = {};
    for (long row = 0; row < count; row++, gradient.at += gradient.step, x += narrow_panel * lanes) {
        ahead.step();
        values by[narrow_panel];
#pragma GCC unroll 4
        for (int j = 0; j < narrow_panel; j++) by[j] = load(x + j * lanes);
#pragma GCC unroll 16
        for (int i = 0; i < filters; i++) {
            const float v = gradient.at[i];
#pragma GCC unroll 4
            for (int j = 0; j < narrow_panel; j++) sum[i][j] += v * by[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < filters; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < narrow_panel; j++) {
            float* at = to.at + i * to.step + j * lanes;
            store(at, load(at) + sum[i][j]);
        }
    }
}

// The same for all `filters` and `inputs`. `few` has room for a panel of inputs of each row.
void correlate_all(Rows<const float> gradient, long filters, Rows<const float> x, long inputs,
                   long count, float* few, float* to, Ahead& ahead) {
    for (long k = 0; k < inputs; k += narrow_panel * lanes) {
        copy_rows(x.from(0, k), count, narrow_panel * lanes, {few, narrow_panel * lanes});
        long n = 0;
        for (; n + many_rows <= filters; n += many_rows)
            correlate<many_rows>(gradient.from(0, n), few, count, {to + n * inputs + k, inputs}, ahead);
        for (; n < filters; n += 2)
            correlate<2>(gradient.from(0, n), few, count, {to + n * inputs + k, inputs}, ahead);
    }
}

}  // namespace
