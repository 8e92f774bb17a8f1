// Convolutions and matrix products of unsigned bytes with signed ones. An output is
//     round(sum · multiplier + (residual · residual_factor + offset)) + zero, in 0 … 255,
// with an exact 32-bit sum that begins with the bias; the two additions and products in float32 are
// fused ones. Weights are packed as (output / 32, tap, input / 4, 32 outputs, 4 inputs).
//
// A table has, for each tap and output pixel of an image, where in the image of the input the tap
// reads, or -1 beyond the border. So strides, borders and dilations cost no copies, and tiles
// reach across lines and images.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "arrays.h"
#include "tiles.h"

constexpr long OUTPUTS = 32;  // output channels of a block
constexpr long PIXELS = 14;   // of a block of VNNI
constexpr long TILE_PIXELS = 32;
constexpr long MOST_FETCHED = 64 << 10;  // of weights that are fetched before they are needed
constexpr long PANEL_BLOCKS = 30;         // of VNNI
constexpr long PANEL_BYTES = 192 << 10;  // of weights or rows that blocks in a row use again

struct Product {
    long outputs, taps, row_bytes, padded_bytes, pixels;
    const int8_t* weights;
    const float* multipliers;
    const int32_t* biases;
    const int32_t* table;     // (taps, pixels)
    const int32_t* strides;   // (taps, pixels / 16): distance of the rows of a tile, 0 if not constant; or null
    const uint8_t* zero_row;  // what a tap beyond the border reads
    long x_image_bytes, y_pitch, residual_pitch;
    long linear;  // bytes from each pixel that the only tap reads to the next, across images; or 0
    float residual_factor, offset;
    bool floats, relu;
    uint8_t zero, low;
};

struct Operands {
    const uint8_t* x;
    uint8_t* y;
    const uint8_t* residual;
    long images;
};

// What is the same for all rows of a block, in registers: bytes that are stored may alias all else.
template <bool RESIDUAL>
struct Rounding {
    __m512 m0, m1, offset, factor;
    __m512i order, zero, low;
    Rounding(const Product& p, long output)
        : m0(_mm512_loadu_ps(p.multipliers + output)),
          m1(_mm512_loadu_ps(p.multipliers + output + 16)),
          offset(RESIDUAL ? _mm512_set1_ps(p.offset) : _mm512_setzero_ps()),
          factor(RESIDUAL ? _mm512_set1_ps(p.residual_factor) : _mm512_setzero_ps()),
          order(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)),
          zero(_mm512_set1_epi16(p.zero)),
          low(_mm512_set1_epi8(static_cast<char>(p.low))) {}
};

// Two rows of 32 sums become bytes.
template <bool RESIDUAL>
static inline __attribute__((always_inline)) __m512i to_bytes(const Rounding<RESIDUAL>& t, __m512i a0, __m512i a1, __m512i b0,
                                                              __m512i b1, const uint8_t* ra, const uint8_t* rb) {
    auto rounded = [&](__m512i sum, __m512 multiplier, const uint8_t* r) {
        __m512 x = _mm512_cvtepi32_ps(sum);
        if (RESIDUAL) {
            __m512 other = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(r))));
            x = _mm512_fmadd_ps(x, multiplier, _mm512_fmadd_ps(other, t.factor, t.offset));
        } else {
            x = _mm512_mul_ps(x, multiplier);
        }
        return _mm512_cvtps_epi32(x);
    };
    __m512i a = _mm512_packs_epi32(rounded(a0, t.m0, ra), rounded(a1, t.m1, ra + 16));
    __m512i b = _mm512_packs_epi32(rounded(b0, t.m0, rb), rounded(b1, t.m1, rb + 16));
    __m512i both = _mm512_packus_epi16(_mm512_adds_epi16(a, t.zero), _mm512_adds_epi16(b, t.zero));
    return _mm512_permutexvar_epi32(t.order, _mm512_max_epu8(both, t.low));
}

static inline void store_bytes(uint8_t* at, __m256i bytes, __mmask32 mask) {
    if (mask == 0xffffffffu)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), bytes);
    else
        _mm256_mask_storeu_epi8(at, mask, bytes);
}

// Rows r and r + 1 of a block in bytes, or only row r.
template <bool RESIDUAL, typename Sums>
static inline __attribute__((always_inline)) void store_pair(const Rounding<RESIDUAL>& t, uint8_t* y, long pitch,
                                                             const uint8_t* residual, long residual_pitch, int r,
                                                             bool two, __mmask32 mask, Sums sums) {
    const int s = two ? r + 1 : r;
    const uint8_t* other = two ? residual + residual_pitch : residual;
    const __m512i bytes = to_bytes<RESIDUAL>(t, sums(r, 0), sums(r, 1), sums(s, 0), sums(s, 1), residual, other);
    store_bytes(y, _mm512_castsi512_si256(bytes), mask);
    if (two) store_bytes(y + pitch, _mm512_extracti64x4_epi64(bytes, 1), mask);
}

// Rows `first` to first + rows - 1 of the result, 32 outputs; `sums(row, half)` gives 16 sums. With
// N rows the loops are unrolled, so that sums can stay in registers.
template <int N, typename Sums>
static inline __attribute__((always_inline)) void store_rows(const Product& p, const Operands& o, long first, int rows,
                                                             long output, Sums sums) {
    const long left = p.outputs - output, pitch = p.y_pitch, residual_pitch = p.residual_pitch;
    const __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
    const int all = N ? N : rows;
    if (p.floats) {
        const Rounding<false> t(p, output);
        const __m512 least = _mm512_set1_ps(p.relu ? 0.0f : -__builtin_inff());
        float* y = reinterpret_cast<float*>(o.y) + first * pitch + output;
#pragma GCC unroll 14
        for (int r = 0; r < all; r++, y += pitch) {
            const __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(sums(r, 0)), t.m0);
            const __m512 b = _mm512_mul_ps(_mm512_cvtepi32_ps(sums(r, 1)), t.m1);
            _mm512_mask_storeu_ps(y, static_cast<__mmask16>(mask), _mm512_max_ps(a, least));
            _mm512_mask_storeu_ps(y + 16, static_cast<__mmask16>(mask >> 16), _mm512_max_ps(b, least));
        }
        return;
    }
    uint8_t* y = o.y + first * pitch + output;
    if (o.residual) {
        const Rounding<true> t(p, output);
        const uint8_t* residual = o.residual + first * residual_pitch + output;
#pragma GCC unroll 7
        for (int r = 0; r < all; r += 2, y += 2 * pitch, residual += 2 * residual_pitch)
            store_pair<true>(t, y, pitch, residual, residual_pitch, r, r + 1 < all, mask, sums);
    } else {
        const Rounding<false> t(p, output);
#pragma GCC unroll 7
        for (int r = 0; r < all; r += 2, y += 2 * pitch)
            store_pair<false>(t, y, pitch, nullptr, 0, r, r + 1 < all, mask, sums);
    }
}

// VNNI: `rows` of at most N pixels from `first` on, 32 outputs.
template <int N>
static __attribute__((noinline)) void vnni_block(const Product& p, const Operands& o, long first, int rows,
                                                 long output) {
    const uint8_t* image[N];
    int32_t pixel[N];
    const uint8_t* a[N];
    if (p.linear && rows == N) {
        const uint8_t* start = o.x + first * p.linear;
#pragma GCC unroll 16
        for (int i = 0; i < N; i++, start += p.linear) a[i] = start;
    } else {
        long number = first / p.pixels, at = first % p.pixels;
        for (int i = 0; i < N; i++) {
            image[i] = o.x + number * p.x_image_bytes;
            pixel[i] = static_cast<int32_t>(at);
            if (i + 1 < rows && ++at == p.pixels) at = 0, number++;
        }
    }
    __m512i sum[N][2];
    const __m512i bias0 = _mm512_loadu_si512(p.biases + output), bias1 = _mm512_loadu_si512(p.biases + output + 16);
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) sum[i][0] = bias0, sum[i][1] = bias1;
    const int8_t* w = p.weights + output * p.taps * p.padded_bytes;
    for (long tap = 0; tap < p.taps; tap++) {
        if (!p.linear || rows < N) {
            const int32_t* offsets = p.table + tap * p.pixels;
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) {
                const int32_t offset = offsets[pixel[i]];
                a[i] = offset < 0 ? p.zero_row : image[i] + offset;
            }
        }
#pragma GCC unroll 4
        for (long k = 0; k < p.row_bytes; k += 4, w += 128) {
            const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) {
                int32_t four;
                memcpy(&four, a[i] + k, 4);
                const __m512i x = _mm512_set1_epi32(four);
                sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], x, w0);
                sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], x, w1);
            }
        }
        w += (p.padded_bytes - p.row_bytes) * 32;
    }
    if (rows == N) {
        store_rows<N>(p, o, first, N, output, [&](int r, int half) { return sum[r][half]; });
        return;
    }
    alignas(64) int32_t stored[N][2][16];
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) {
        _mm512_store_si512(stored[i][0], sum[i][0]);
        _mm512_store_si512(stored[i][1], sum[i][1]);
    }
    store_rows<0>(p, o, first, rows, output, [&](int r, int half) { return _mm512_load_si512(stored[r][half]); });
}

// One pixel, 128 outputs: four streams of weights.
static void vnni_pixel(const Product& p, const Operands& o, long output) {
    const long stride = OUTPUTS * p.taps * p.padded_bytes;
    __m512i sum[4][2];
    for (int c = 0; c < 4; c++)
        for (int half = 0; half < 2; half++) sum[c][half] = _mm512_loadu_si512(p.biases + output + 32 * c + 16 * half);
    const int8_t* w = p.weights + output * p.taps * p.padded_bytes;
    for (long tap = 0; tap < p.taps; tap++, w += (p.padded_bytes - p.row_bytes) * 32) {
        const uint8_t* a = p.table[tap * p.pixels] < 0 ? p.zero_row : o.x + p.table[tap * p.pixels];
        for (long k = 0; k < p.row_bytes; k += 4, w += 128) {
            int32_t four;
            memcpy(&four, a + k, 4);
            const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                sum[c][0] = _mm512_dpbusd_epi32(sum[c][0], x, _mm512_loadu_si512(w + c * stride));
                sum[c][1] = _mm512_dpbusd_epi32(sum[c][1], x, _mm512_loadu_si512(w + c * stride + 64));
            }
        }
    }
    for (int c = 0; c < 4 && output + 32 * c < p.outputs; c++)
        store_rows<0>(p, o, 0, 1, output + 32 * c, [&](int, int half) { return sum[c][half]; });
}

// A part of 0 … count: that of `rank` of `team`.
static inline void share(long count, long rank, long team, long& from, long& to) {
    from = count * rank / team;
    to = count * (rank + 1) / team;
}

template <int N>
static void vnni_blocks(const Product& p, const Operands& o, long rank, long team) {
    const long rows = o.images * p.pixels, blocks = (rows + N - 1) / N, columns = (p.outputs + OUTPUTS - 1) / OUTPUTS;
    long from = 0, to = blocks, first = 0, last = columns;
    if (blocks >= 4 * team || blocks >= columns)
        share(blocks, rank, team, from, to);
    else
        share(columns, rank, team, first, last);
    // panels of rows, so that these stay in the L2 with the weights; not where the weights do not
    const long column_bytes = OUTPUTS * p.taps * p.padded_bytes, weights = columns * column_bytes;
    const long panel = weights > 2 * PANEL_BYTES ? blocks : PANEL_BLOCKS;
    const bool few = column_bytes <= MOST_FETCHED;
    for (long start = from; start < to; start += panel) {
        const long end = std::min(to, start + panel), fetched = (column_bytes / (end - start) + 63) / 64 * 64;
        for (long column = first; column < last; column++)
            for (long block = start; block < end; block++) {
                if (few && column + 1 < last)  // a share of the next column's weights
                    for (long byte = 0; byte < fetched; byte += 64)
                        _mm_prefetch(p.weights + (column + 1) * column_bytes + (block - start) * fetched + byte, _MM_HINT_T1);
                const long at = rows < N ? 0 : std::min(block * N, rows - N);
                vnni_block<N>(p, o, at, static_cast<int>(std::min<long>(N, rows)), column * OUTPUTS);
            }
    }
}

static void vnni_product(const Product& p, const Operands& o, long rank, long team) {
    const long rows = o.images * p.pixels;
    if (rows == 1) {
        long first, last;
        share((p.outputs + 4 * OUTPUTS - 1) / (4 * OUTPUTS), rank, team, first, last);
        for (long column = first; column < last; column++) vnni_pixel(p, o, column * 4 * OUTPUTS);
    } else if (rows < 10)
        vnni_blocks<4>(p, o, rank, team);
    else if ((rows + 9) / 10 * 10 < (rows + PIXELS - 1) / PIXELS * PIXELS)
        vnni_blocks<10>(p, o, rank, team);
    else
        vnni_blocks<PIXELS>(p, o, rank, team);
}

// AMX: blocks of 32 pixels and 32 outputs. A tap's 16 rows are loaded where they are if their
// distance is constant, else from copies.
struct TileRows {
    const uint8_t* start;
    long stride;
};

struct TilePanel {
    std::vector<TileRows> rows;  // (block of 32 pixels, half, tap)
    uint8_t* copies;
};

static long tile_panel_blocks(const Product& p) {
    return std::max(1L, std::min(8L, 4 * PANEL_BYTES / (TILE_PIXELS * p.taps * p.padded_bytes)));
}

static inline TileRows tile_rows(const Product& p, const Operands& o, long first, int rows, long tap, uint8_t*& copy) {
    if (p.linear && rows == 16) return {o.x + first * p.linear, p.linear};
    long pixel = first % p.pixels;
    const uint8_t* image = o.x + first / p.pixels * p.x_image_bytes;
    const int32_t* offsets = p.table + tap * p.pixels;
    if (p.strides) {
        const long stride = p.strides[(tap * p.pixels + pixel) / 16];
        if (stride) return {image + offsets[pixel], stride};
    }
    const TileRows found{copy, p.padded_bytes};
    for (int i = 0; i < rows; i++) {
        const uint8_t* source = offsets[pixel] < 0 ? p.zero_row : image + offsets[pixel];
        if (++pixel == p.pixels) pixel = 0, image += p.x_image_bytes;
        for (long k = 0; k < p.padded_bytes; k += 64)
            _mm512_storeu_si512(copy + i * p.padded_bytes + k, _mm512_loadu_si512(source + k));
    }
    copy += 16 * p.padded_bytes;
    return found;
}

template <bool BOTH>
static inline void tile_block(const Product& p, const Operands& o, const TileRows* low, const TileRows* high,
                              long first, int rows, long output) {
    alignas(64) int32_t sums[32][32];
    const int32_t* bias = p.biases + output;
    TILE_LOAD(0, bias, 0);
    TILE_LOAD(1, bias + 16, 0);
    if (BOTH) {
        TILE_LOAD(2, bias, 0);
        TILE_LOAD(3, bias + 16, 0);
    }
    const int8_t* w = p.weights + output * p.taps * p.padded_bytes;
    for (long tap = 0; tap < p.taps; tap++)
        for (long k = 0; k < p.padded_bytes; k += 64, w += 32 * 64) {
            TILE_LOAD(6, w, 128);
            TILE_LOAD(7, w + 64, 128);
            TILE_LOAD(4, low[tap].start + k, low[tap].stride);
            TILE_DOT(0, 4, 6);
            TILE_DOT(1, 4, 7);
            if (BOTH) {
                TILE_LOAD(5, high[tap].start + k, high[tap].stride);
                TILE_DOT(2, 5, 6);
                TILE_DOT(3, 5, 7);
            }
        }
    TILE_STORE(0, sums[0], 128);
    TILE_STORE(1, sums[0] + 16, 128);
    if (BOTH) {
        TILE_STORE(2, sums[16], 128);
        TILE_STORE(3, sums[16] + 16, 128);
    }
    store_rows<0>(p, o, first, rows, output, [&](int r, int half) { return _mm512_load_si512(sums[r] + 16 * half); });
}

static void tile_product(const Product& p, const Operands& o, TilePanel& memory, long rank, long team) {
    const long rows = o.images * p.pixels, blocks = (rows + TILE_PIXELS - 1) / TILE_PIXELS;
    const long columns = (p.outputs + OUTPUTS - 1) / OUTPUTS;
    long from = 0, to = blocks, first = 0, last = columns;
    if (blocks >= 4 * team || blocks >= columns)
        share(blocks, rank, team, from, to);
    else
        share(columns, rank, team, first, last);
    const long panel = tile_panel_blocks(p);
    for (long start = from; start < to; start += panel) {
        const long end = std::min(to, start + panel);
        uint8_t* copy = memory.copies;
        TileRows* place = memory.rows.data();
        for (long block = start; block < end; block++)
            for (int half = 0; half < 2; half++)
                for (long tap = 0; tap < p.taps; tap++, place++) {
                    const long at = block * TILE_PIXELS + half * 16;
                    if (at < rows) *place = tile_rows(p, o, at, static_cast<int>(std::min(16L, rows - at)), tap, copy);
                }
        for (long column = first; column < last; column++)
            for (long block = start; block < end; block++) {
                const TileRows* low = memory.rows.data() + (block - start) * 2 * p.taps;
                const long at = block * TILE_PIXELS;
                const int here = static_cast<int>(std::min(TILE_PIXELS, rows - at));
                if (here > 16)
                    tile_block<true>(p, o, low, low + p.taps, at, here, column * OUTPUTS);
                else
                    tile_block<false>(p, o, low, low + p.taps, at, here, column * OUTPUTS);
            }
    }
}
