// Tiles of arrays into a block and out of it again, transformed, and weights; see winograd.cpp.

#pragma once

#include <algorithm>

#include "winograd_transforms.h"

// What is convolved with what, the result's size given; winograd.py fills it in this order.
struct Sizes {
    long batch, height, width, from, out_height, out_width, to, pad_h, pad_w;
};

namespace {

#ifdef __AVX512F__  // thirty-two registers of sixteen values
constexpr int rows = 12, wide = 2, inputs = 8;
#else
constexpr int rows = 6, wide = 1, inputs = 4;
#endif
// Of a product in registers: tiles (of a weight gradient inputs) by filters, these in sixteens.

constexpr long block_bytes = 384 << 10;     // of a thread's own tiles
constexpr long together_bytes = 8 << 20;    // of tiles that all threads work at
constexpr long own_weights_bytes = 3 << 20; // transformed; beyond it all work at the same
constexpr long fewest_together = 96;        // tiles

// The tiles of a result, and their blocks.
struct Plan {
    long across, tiles_of_image, tiles, block;
    bool together;  // whether all threads work at the same block
    Plan(const Sizes& s, bool gradient) {
        across = (s.out_width + cells - 1) / cells;
        tiles_of_image = across * ((s.out_height + cells - 1) / cells);
        tiles = tiles_of_image * s.batch;
        const long tile_bytes = places * (s.from + s.to) * long(sizeof(float));
        together = places * s.from * s.to * long(sizeof(float)) > own_weights_bytes;
        long fits = std::max(block_bytes / tile_bytes, 2L * rows);
        if (gradient) {  // its sums are read and written once a block
            fits = std::max(fits, s.from * s.to / (s.from + s.to));
        } else if (together) {
            fits = std::max(together_bytes / tile_bytes, fewest_together);
        }
        const long blocks = std::max((tiles + fits - 1) / fits, 1L);
        block = ((tiles + blocks - 1) / blocks + rows - 1) / rows * rows;
    }
    // Values between two places of a block; a line more than they take, since places at a distance of
    // a power of 2 would share a few lines of a cache.
    long step(long channels) const { return channels * block + lanes; }
    // The same of transformed weights, and of their gradients before they are.
    static long weights_step(const Sizes& s) { return s.from * s.to + lanes; }
    // Values of a block, before the products and after them.
    long floats(const Sizes& s) const { return places * (step(s.from) + step(s.to)); }
};

struct Tile {
    long image, top, left;
    Tile(const Plan& p, long number)
        : image(number / p.tiles_of_image),
          top(number % p.tiles_of_image / p.across * cells),
          left(number % p.across * cells) {}
};

// Addresses of the cells of a window of an image; of those outside of it, `outside`.
template <int across, class Value>
inline void addresses(Value* array, Value* outside, long image, long top, long left, long height,
                 long width, long channels, Value** at) {
    for (long row = top; row < top + across; row++) {
        for (long col = left; col < left + across; col++) {
            const bool inside = row >= 0 && row < height && col >= 0 && col < width;
            *at++ = inside ? array + ((image * height + row) * width + col) * channels : outside;
        }
    }
}

// Layout of a block: place, sixteen channels, tile: [36][channels / 16][block][16].

// A tile of the input into the block.
void read_input(const Sizes& s, const Plan& p, const float* x, const float* zeros, long number,
                float* to) {
    const Tile tile(p, number);
    const float* at[places];
    addresses<side>(x, zeros, tile.image, tile.top - s.pad_h, tile.left - s.pad_w, s.height, s.width,
               s.from, at);
    for (long c = 0; c < s.from; c += lanes) {
        transform<Input, side, side>(
            [&](int i, int j) { return load(at[i * side + j] + c); },
            [&, own = to + c * p.block, step = p.step(s.from)](int i, int j, values v) {
                store(own + (i * side + j) * step, v);
            });
    }
}

// A tile of the gradient into the block; its sums are added to `sums`.
void read_gradient(const Sizes& s, const Plan& p, const float* gradient, const float* zeros, long number,
                float* to, float* sums) {
    const Tile tile(p, number);
    const float* at[cells * cells];
    addresses<cells>(gradient, zeros, tile.image, tile.top, tile.left, s.out_height, s.out_width, s.to, at);
    for (long c = 0; c < s.to; c += lanes) {
        values sum = load(sums + c);
        transform<Factor<cells>, cells, side>(
            [&](int i, int j) {
                const values v = load(at[i * cells + j] + c);
                sum += v;
                return v;
            },
            [&, own = to + c * p.block, step = p.step(s.to)](int i, int j, values v) {
                store(own + (i * side + j) * step, v);
            });
        store(sums + c, sum);
    }
}

// A tile of the block into the result, with the bias, and no less than `least`.
void write_result(const Sizes& s, const Plan& p, const float* from, long number, const float* bias,
                 float least, float* y, float* scratch) {
    const Tile tile(p, number);
    float* at[cells * cells];
    addresses<cells>(y, scratch, tile.image, tile.top, tile.left, s.out_height, s.out_width, s.to, at);
    for (long c = 0; c < s.to; c += lanes) {
        transform<Result<cells>, side, cells>(
            [&, own = from + c * p.block, step = p.step(s.to)](int i, int j) {
                return load(own + (i * side + j) * step);
            },
            [&, shift = load(bias + c), floor = least - values{}](int i, int j, values v) {
                v += shift;
                store(at[i * cells + j] + c, v < floor ? floor : v);  // NaN stays NaN
            });
    }
}

// Strides of the weights: of filters, inputs, rows and columns.
struct Weights {
    long filters, inputs, down, across;
    long at(long n, long k, long tap) const {
        return n * filters + k * inputs + tap / taps * down + tap % taps * across;
    }
};

// The 16 × 16 weights number `item`, transformed: [36][filters / 32][inputs][32].
void read_weights(const Sizes& s, const float* weight, const Weights& w, bool turned, long item,
                  float* to) {
    const long k0 = item / (s.to / lanes) * lanes, n0 = item % (s.to / lanes) * lanes;
    alignas(64) float own[taps * taps][lanes][lanes];
    for (long n = 0; n < lanes; n++) {
        for (long tap = 0; tap < taps * taps; tap++) {
            const float* from = weight + w.at(n0 + n, k0, turned ? taps * taps - 1 - tap : tap);
            for (long k = 0; k < lanes; k++) own[tap][k][n] = from[k * w.inputs];
        }
    }
    const long first = n0 / (wide * lanes) * (wide * lanes), step = Plan::weights_step(s);
    const long width = std::min(wide * lanes, s.to - first);
    for (long k = 0; k < lanes; k++) {
        transform<Factor<taps>, taps, side>(
            [&](int i, int j) { return load(own[i * taps + j][k]); },
            [&, at = to + first * s.from + (k0 + k) * width + n0 - first](int i, int j, values v) {
                store(at + (i * side + j) * step, v);
            });
    }
}

// The gradients of 16 × 16 weights from the sums [36][inputs][filters].
void write_weights(const Sizes& s, const float* sums, long item, float* dweight, const Weights& w) {
    const long k0 = item / (s.to / lanes) * lanes, n0 = item % (s.to / lanes) * lanes;
    alignas(64) float own[taps * taps][lanes][lanes];
    for (long k = 0; k < lanes; k++) {
        transform<Result<taps>, side, taps>(
            [&, from = sums + (k0 + k) * s.to + n0](int i, int j) {
                return load(from + (i * side + j) * Plan::weights_step(s));
            },
            [&](int i, int j, values v) { store(own[i * taps + j][k], v); });
    }
    for (long n = 0; n < lanes; n++) {
        for (long tap = 0; tap < taps * taps; tap++) {
            float* to = dweight + w.at(n0 + n, k0, tap);
            for (long k = 0; k < lanes; k++) to[k * w.inputs] = own[tap][k][n];
        }
    }
}

}  // namespace
