// Steps without products of their own: the image in bytes, pools, sums, response normalization.
// A team of threads divides the lines of an output.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "arrays.h"

struct View {
    uint8_t* data;
    const ArrayInfo* info;
    uint8_t* pixel(long image, long h, long w) const {
        return data + image * info->image_bytes + (h * info->width + w) * info->pitch * (info->floats ? 4 : 1);
    }
};

static inline __m128i bytes_of(__m512 real, __m512i zero, __m512i low) {
    const __m512 most = _mm512_set1_ps(1e6f), least = _mm512_set1_ps(-1e6f);
    __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(real, least), most));
    whole = _mm512_max_epi32(_mm512_add_epi32(whole, zero), low);
    return _mm512_cvtusepi32_epi8(_mm512_max_epi32(whole, _mm512_setzero_si512()));
}

static inline __mmask16 mask_of(long left) { return left >= 16 ? 0xffff : (1u << left) - 1; }

static inline __m512i quantized(const float* x, __mmask16 mask, __m512 scale, __m512i zero) {
    const __m512 real = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, x), scale);
    return _mm512_cvtepu8_epi32(bytes_of(real, zero, _mm512_setzero_si512()));
}

// A line of three planes as words of three bytes, with zeros before and after.
static inline void store_line(uint32_t* line, long pixels, long left, const float* x, long plane, long width,
                              __m512 scale, __m512i zero) {
    const uint32_t nothing = static_cast<uint32_t>(_mm512_cvtsi512_si32(zero)) * 0x010101u;
    for (long w = 0; w < pixels; w++) line[w] = nothing;
    for (long w = 0; x && w < width; w += 16) {
        const __mmask16 mask = mask_of(width - w);
        __m512i word = quantized(x + w, mask, scale, zero);
        word = _mm512_or_si512(word, _mm512_slli_epi32(quantized(x + plane + w, mask, scale, zero), 8));
        word = _mm512_or_si512(word, _mm512_slli_epi32(quantized(x + 2 * plane + w, mask, scale, zero), 16));
        _mm512_mask_storeu_epi32(line + left + w, mask, word);
    }
}

// Planes of float32 become pixels of bytes with a border; with fold 2, 2 × 2 pixels become one.
static inline void store_image(const StepInfo& s, const View& y, const float* x, long channels, long height,
                               long width, long image, long from, long to, uint8_t* scratch) {
    const __m512 scale = _mm512_set1_ps(static_cast<float>(s.factor));
    const __m512i zero = _mm512_set1_epi32(static_cast<int>(y.info->zero));
    const long fold = s.fold, pixel_bytes = y.info->pitch, pixels = y.info->width * fold;
    // the output may be narrower than the input
    const long given = std::min(width, pixels - s.left);
    for (long row = from; row < to; row++) {
        uint8_t* out = y.pixel(image, row, 0);
        if (channels == 3) {
            uint32_t* lines[2];
            for (long sub = 0; sub < fold; sub++) {
                const long h = row * fold + sub - s.top;
                lines[sub] = reinterpret_cast<uint32_t*>(scratch) + sub * pixels;
                store_line(lines[sub], pixels, s.left, h >= 0 && h < height ? x + h * width : nullptr, height * width,
                           given, scale, zero);
            }
            for (long w = 0; w < y.info->width; w++, out += pixel_bytes) {
                if (fold == 1) {
                    memcpy(out, lines[0] + w, 3);
                    continue;
                }
                const uint32_t *a = lines[0] + 2 * w, *b = lines[1] + 2 * w;
                const uint64_t low = a[0] | static_cast<uint64_t>(a[1]) << 24 | static_cast<uint64_t>(b[0]) << 48;
                const uint32_t high = b[0] >> 16 | b[1] << 8;
                memcpy(out, &low, 8);
                memcpy(out + 8, &high, 4);
            }
            continue;
        }
        memset(out, static_cast<int>(y.info->zero), y.info->width * pixel_bytes);
        for (long sub = 0; sub < fold; sub++) {
            const long h = row * fold + sub - s.top;
            if (h < 0 || h >= height) continue;
            for (long c = 0; c < channels; c++) {
                const float* plane = x + (c * height + h) * width;
                for (long w = 0; w < given; w += 16) {
                    const __m512i bytes = quantized(plane + w, mask_of(given - w), scale, zero);
                    _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch + w), _mm512_cvtepi32_epi8(bytes));
                }
                uint8_t* at = out + sub * fold * channels + c;
                for (long w = 0; w < given; w++)
                    at[(w + s.left) / fold * pixel_bytes + (w + s.left) % fold * channels] = scratch[w];
            }
        }
    }
}

struct Reach {
    long h0, h1, w0, w1;
};

// The part of a window inside the input.
static inline Reach reach_of(const StepInfo& s, const ArrayInfo& x, long h, long w) {
    const long top = h * s.stride_h - s.top, left = w * s.stride_w - s.left;
    return {std::max(0L, top), std::min<long>(x.height, top + s.kernel_h), std::max(0L, left),
            std::min<long>(x.width, left + s.kernel_w)};
}

// Bytes of another scale: round((x - zero) · factor) + zero.
static inline void rescale_row(const StepInfo& s, const View& x, const View& y, const uint8_t* from, uint8_t* to) {
    const __m512 factor = _mm512_set1_ps(static_cast<float>(s.factor));
    const __m512i zero_x = _mm512_set1_epi32(static_cast<int>(x.info->zero));
    const __m512i zero_y = _mm512_set1_epi32(static_cast<int>(y.info->zero)), low = _mm512_set1_epi32(static_cast<int>(s.low));
    for (long c = 0; c < y.info->channels; c += 16) {
        const __mmask16 mask = mask_of(y.info->channels - c);
        const __m512i q = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, from + c));
        const __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(q, zero_x)), factor);
        _mm_mask_storeu_epi8(to + c, mask, bytes_of(real, zero_y, low));
    }
}

static void max_pool(const StepInfo& s, const View& x, const View& y, long image, long from, long to) {
    const long channels = y.info->channels;
    const bool same = s.factor == 1.0 && x.info->zero == y.info->zero;
    const __m512i low = _mm512_set1_epi8(static_cast<char>(same && s.low > 0 ? s.low : 0));
    for (long h = from; h < to; h++)
        for (long w = 0; w < y.info->width; w++) {
            const Reach r = reach_of(s, *x.info, h, w);
            uint8_t* out = y.pixel(image, h, w);
            for (long c = 0; c < channels; c += 64) {
                const __mmask64 mask = channels - c >= 64 ? ~0ull : (1ull << (channels - c)) - 1;
                __m512i most = low;
                for (long i = r.h0; i < r.h1; i++)
                    for (long j = r.w0; j < r.w1; j++)
                        most = _mm512_max_epu8(most, _mm512_maskz_loadu_epi8(mask, x.pixel(image, i, j) + c));
                if (mask == ~0ull)
                    _mm512_storeu_si512(out + c, most);
                else
                    _mm512_mask_storeu_epi8(out + c, mask, most);
            }
            if (!same) rescale_row(s, x, y, out, out);
        }
}

// round((sum - pixels · zero) · multiplier[pixels]) + zero, or the same in float32.
static void average_pool(const StepInfo& s, const View& x, const View& y, long image, long from, long to) {
    const __m512i zero = _mm512_set1_epi32(static_cast<int>(y.info->zero)), low = _mm512_set1_epi32(static_cast<int>(s.low));
    const __m512 least = _mm512_set1_ps(s.low >= 0 ? 0.0f : -__builtin_inff());
    for (long h = from; h < to; h++)
        for (long w = 0; w < y.info->width; w++) {
            const Reach r = reach_of(s, *x.info, h, w);
            const long pixels = std::max(0L, r.h1 - r.h0) * std::max(0L, r.w1 - r.w0);
            const __m512 multiplier = _mm512_set1_ps(s.multipliers[pixels]);
            uint8_t* out = y.pixel(image, h, w);
            for (long c = 0; c < y.info->channels; c += 16) {
                const __mmask16 mask = mask_of(y.info->channels - c);
                __m512i sum = _mm512_set1_epi32(-static_cast<int>(pixels * x.info->zero));
                for (long i = r.h0; i < r.h1; i++)
                    for (long j = r.w0; j < r.w1; j++)
                        sum = _mm512_add_epi32(sum, _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, x.pixel(image, i, j) + c)));
                const __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), multiplier);
                if (y.info->floats)
                    _mm512_mask_storeu_ps(reinterpret_cast<float*>(out) + c, mask, _mm512_max_ps(real, least));
                else
                    _mm_mask_storeu_epi8(out + c, mask, bytes_of(real, zero, low));
            }
        }
}

// round(x · factor + (other · other_factor + offset)) + zero
static void sum_arrays(const StepInfo& s, const View& x, const View& other, const View& y, long image, long from, long to) {
    const __m512 f = _mm512_set1_ps(static_cast<float>(s.factor)), g = _mm512_set1_ps(static_cast<float>(s.other_factor));
    const __m512 offset = _mm512_set1_ps(static_cast<float>(s.offset));
    const __m512i zero = _mm512_set1_epi32(static_cast<int>(y.info->zero)), low = _mm512_set1_epi32(static_cast<int>(s.low));
    for (long h = from; h < to; h++)
        for (long w = 0; w < y.info->width; w++) {
            const uint8_t *a = x.pixel(image, h, w), *b = other.pixel(image, h, w);
            uint8_t* out = y.pixel(image, h, w);
            for (long c = 0; c < y.info->channels; c += 16) {
                const __mmask16 mask = mask_of(y.info->channels - c);
                const __m512 p = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, a + c)));
                const __m512 q = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, b + c)));
                const __m512 real = _mm512_fmadd_ps(p, f, _mm512_fmadd_ps(q, g, offset));
                _mm_mask_storeu_epi8(out + c, mask, bytes_of(real, zero, low));
            }
        }
}

// Response normalization within a channel: (x - zero) · table[sum of the squares of a window].
static void normalize_windows(const StepInfo& s, const View& x, const View& y, long image, long from, long to) {
    const __m512i zero_x = _mm512_set1_epi32(static_cast<int>(x.info->zero));
    const __m512i zero = _mm512_set1_epi32(static_cast<int>(y.info->zero)), low = _mm512_set1_epi32(static_cast<int>(s.low));
    for (long h = from; h < to; h++)
        for (long w = 0; w < y.info->width; w++) {
            const Reach r = reach_of(s, *x.info, h, w);
            for (long c = 0; c < y.info->channels; c += 16) {
                const __mmask16 mask = mask_of(y.info->channels - c);
                auto difference = [&](long i, long j) {
                    const __m128i q = _mm_maskz_loadu_epi8(mask, x.pixel(image, i, j) + c);
                    return _mm512_maskz_sub_epi32(mask, _mm512_cvtepu8_epi32(q), zero_x);
                };
                __m512i sum = _mm512_setzero_si512();
                for (long i = r.h0; i < r.h1; i++)
                    for (long j = r.w0; j < r.w1; j++) {
                        const __m512i d = difference(i, j);
                        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(d, d));
                    }
                const __m512 factor = _mm512_i32gather_ps(sum, s.multipliers, 4);
                const __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(difference(h, w)), factor);
                _mm_mask_storeu_epi8(y.pixel(image, h, w) + c, mask, bytes_of(real, zero, low));
            }
        }
}

// Response normalization: (x - zero) · table[sum of the squares of neighbouring channels].
static void normalize(const StepInfo& s, const View& x, const View& y, long image, long from, long to, int32_t* squares) {
    const long channels = y.info->channels, before = (s.size - 1) / 2;
    const __m512i zero_x = _mm512_set1_epi32(static_cast<int>(x.info->zero));
    const __m512i zero = _mm512_set1_epi32(static_cast<int>(y.info->zero)), low = _mm512_set1_epi32(static_cast<int>(s.low));
    memset(squares, 0, (channels + s.size + 16) * 4);
    for (long h = from; h < to; h++)
        for (long w = 0; w < y.info->width; w++) {
            const uint8_t* in = x.pixel(image, h, w);
            uint8_t* out = y.pixel(image, h, w);
            for (long c = 0; c < channels; c += 16) {
                const __mmask16 mask = mask_of(channels - c);
                const __m512i d = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, in + c)), zero_x);
                _mm512_mask_storeu_epi32(squares + before + c, mask, _mm512_mullo_epi32(d, d));
            }
            for (long c = 0; c < channels; c += 16) {
                const __mmask16 mask = mask_of(channels - c);
                __m512i sum = _mm512_setzero_si512();
                for (long i = 0; i < s.size; i++) sum = _mm512_add_epi32(sum, _mm512_loadu_si512(squares + c + i));
                sum = _mm512_maskz_mov_epi32(mask, sum);
                const __m512i d = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, in + c)), zero_x);
                const __m512 real = _mm512_mul_ps(_mm512_cvtepi32_ps(d), _mm512_i32gather_ps(sum, s.multipliers, 4));
                _mm_mask_storeu_epi8(out + c, mask, bytes_of(real, zero, low));
            }
        }
}
