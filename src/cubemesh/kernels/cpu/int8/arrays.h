// Arrays and steps of an INT8 network, as inference/cpu/session.py describes them.
#pragma once

#include <cstdint>

enum Kind : int64_t { IMAGE = 0, CONV = 1, MAX_POOL = 2, AVERAGE_POOL = 3, SUM = 4, NORM = 5 };

// (images, height, width, pitch): the channels of a pixel follow one another. An array may be a
// slice of the channels of a buffer.
struct ArrayInfo {
    int64_t height, width, channels, pitch;
    int64_t start;        // of the first image in the arena, in bytes, with the channels before it
    int64_t image_bytes;  // of an image of the buffer
    int64_t whole;        // 1: of all images of a context, 0: of those of a group
    int64_t output;       // number of the network's output that it is, or -1
    int64_t floats;       // 1: float32, 0: unsigned bytes
    int64_t zero;         // the byte that means 0
};

struct StepInfo {
    int64_t kind, x, y, other;  // arrays; -1: none
    int64_t kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
    int64_t row_bytes;   // of an input that a tap multiplies
    int64_t low;         // least result: the byte that means 0 after a ReLU
    int64_t fold;        // of an image: 2 where 2 × 2 pixels are one
    int64_t size;        // of a normalization: channels of a window; 1: one within a channel
    double factor, other_factor, offset;
    const int8_t* weights;     // (outputs, taps, row_bytes)
    const float* multipliers;  // of an output channel; of a mean: by the pixels of its window
    const int32_t* biases;
};

// Steps first to last - 1, for `group` images at a time.
struct SegmentInfo {
    int64_t first, last, group;
};
