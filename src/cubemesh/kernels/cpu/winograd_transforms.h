// Winograd's transforms of tiles, sixteen channels at a time: 4×4 of a result, 3×3 of a weight and 6×6
// of an input (F(4×4, 3×3), Lavin & Gray 2016, arXiv 1509.09308).
//
//     result            Aᵀ [ Σ over inputs (G w Gᵀ) · (Bᵀ x B) ] A      w: 3×3, x: 6×6
//     weight gradient   Aᵀ [ Σ over tiles  (G g Gᵀ) · (Bᵀ x B) ] A      g: 4×4 of the gradient
//
// The points of the interpolation are 0, ±5/8, ±3/2 and ∞, which err half as much as the usual 0, ±1,
// ±2 and ∞; the squares of all are exact.

#pragma once

namespace {

constexpr long lanes = 16;
typedef float values __attribute__((vector_size(64), aligned(4)));

inline values load(const float* from) { return *reinterpret_cast<const values*>(from); }
inline void store(float* to, values v) { *reinterpret_cast<values*>(to) = v; }

constexpr int side = 6, cells = 4, taps = 3, places = side * side;
constexpr float a = 0.625f, b = 1.5f, a2 = a * a, b2 = b * b, a3 = a * a2, b3 = b * b2;

// Bᵀ: six values → the six places.
struct Input {
    static inline __attribute__((always_inline)) void line(const values* d, values* t) {
        const values even_a = d[4] - b2 * d[2], odd_a = d[3] - b2 * d[1];
        const values even_b = d[4] - a2 * d[2], odd_b = d[3] - a2 * d[1];
        t[0] = a2 * b2 * d[0] - (a2 + b2) * d[2] + d[4];
        t[1] = even_a + a * odd_a;
        t[2] = even_a - a * odd_a;
        t[3] = even_b + b * odd_b;
        t[4] = even_b - b * odd_b;
        t[5] = a2 * b2 * d[1] - (a2 + b2) * d[3] + d[5];
    }
};

// G: three weights, or four values of a gradient → the six places.
template <int given>
struct Factor {
    static inline __attribute__((always_inline)) void line(const values* d, values* t) {
        constexpr float by_a = 1 / (2 * a2 * (a2 - b2)), by_b = 1 / (2 * b2 * (b2 - a2));
        const values even_a = by_a * d[0] + (by_a * a2) * d[2];
        const values even_b = by_b * d[0] + (by_b * b2) * d[2];
        values odd_a = (by_a * a) * d[1], odd_b = (by_b * b) * d[1];
        if (given == 4) {
            odd_a += (by_a * a3) * d[given - 1];
            odd_b += (by_b * b3) * d[given - 1];
        }
        t[0] = (1 / (a2 * b2)) * d[0];
        t[1] = even_a + odd_a;
        t[2] = even_a - odd_a;
        t[3] = even_b + odd_b;
        t[4] = even_b - odd_b;
        t[5] = d[given - 1];
    }
};

// Aᵀ: the six places → four values of a result, or three of a weight's gradient.
template <int made>
struct Result {
    static inline __attribute__((always_inline)) void line(const values* m, values* y) {
        const values even_a = m[1] + m[2], odd_a = m[1] - m[2];
        const values even_b = m[3] + m[4], odd_b = m[3] - m[4];
        y[0] = m[0] + even_a + even_b;
        y[1] = a * odd_a + b * odd_b;
        y[2] = a2 * even_a + b2 * even_b;
        if (made == 4) y[made - 1] = a3 * odd_a + b3 * odd_b;
        y[made - 1] += m[5];
    }
};

// from × from values that `read` gives → to × to that `write` takes, by columns and then by rows.
template <class Map, int from, int to, class Read, class Write>
inline void transform(Read read, Write write) {
    alignas(64) values half[to][from];
#pragma GCC unroll 6
    for (int j = 0; j < from; j++) {
        values in[from], out[to];
#pragma GCC unroll 6
        for (int i = 0; i < from; i++) in[i] = read(i, j);
        Map::line(in, out);
#pragma GCC unroll 6
        for (int i = 0; i < to; i++) half[i][j] = out[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < to; i++) {
        values out[to];
        Map::line(half[i], out);
#pragma GCC unroll 6
        for (int j = 0; j < to; j++) write(i, j, out[j]);
    }
}

}  // namespace
