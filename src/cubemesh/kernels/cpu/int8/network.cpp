// INT8 network on a CPU: packs weights, makes all memory, and runs the steps of a batch.
//
// Images are divided among contexts, each with memory and a team of threads of its own. A context
// runs a segment of steps for a group of images at a time, whose arrays stay in the L2.
#include <cstdint>
#include <cstdlib>

#ifndef __AVX512VNNI__

extern "C" long int8_instructions() { return 0; }
extern "C" void* int8_create(const void*, long, const void*, long, const void*, long, long, long, long, const int64_t*, float* const*) { return nullptr; }
extern "C" void int8_run(void*, const float*) {}
extern "C" void int8_destroy(void*) {}

#else

#include <memory>
#include <new>

#include "arrays.h"
#include "elements.h"
#include "products.h"
#include "team.h"

namespace {

constexpr long VNNI = 1, AMX = 2, EMULATED_AMX = 4;
constexpr long SLACK = 4096;  // bytes beyond an array that a wide load may read

struct Free {
    void operator()(void* memory) const { free(memory); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory allocate(long bytes) {
    void* found = aligned_alloc(64, (bytes + SLACK + 63) / 64 * 64);
    if (!found) throw std::bad_alloc();
    memset(found, 0, (bytes + SLACK + 63) / 64 * 64);
    return Memory(static_cast<uint8_t*>(found));
}

struct Context {
    Memory arena;
    Barrier barrier;
    long first, last;  // its images
};

struct Scratch {
    Memory line, squares, copies;
    TilePanel panel;
};

struct Network {
    std::vector<ArrayInfo> arrays;
    std::vector<StepInfo> steps;
    std::vector<SegmentInfo> segments;
    std::vector<Product> products;
    std::vector<Memory> memory;
    std::vector<std::unique_ptr<Context>> contexts;
    std::vector<Scratch> scratch;  // by thread
    std::vector<float*> outputs;
    std::unique_ptr<Team> team;
    long threads, per_context, channels, height, width;
    bool tiles;
    const float* input = nullptr;

    template <typename T>
    T* keep(long count) {
        memory.push_back(allocate(count * sizeof(T)));
        return reinterpret_cast<T*>(memory.back().get());
    }

    Product packed(const StepInfo& s) {
        const ArrayInfo &x = arrays[s.x], &y = arrays[s.y];
        Product p{};
        p.outputs = y.channels;
        p.taps = s.kernel_h * s.kernel_w;
        p.row_bytes = (s.row_bytes + 3) / 4 * 4;
        p.padded_bytes = tiles ? (s.row_bytes + 63) / 64 * 64 : p.row_bytes;
        p.pixels = y.height * y.width;
        const long padded = (p.outputs + 4 * OUTPUTS - 1) / (4 * OUTPUTS) * (4 * OUTPUTS);
        int8_t* weights = keep<int8_t>(padded * p.taps * p.padded_bytes);
        float* multipliers = keep<float>(padded);
        int32_t* biases = keep<int32_t>(padded);
        for (long n = 0; n < p.outputs; n++) {
            multipliers[n] = s.multipliers[n];
            biases[n] = s.biases[n];
            for (long tap = 0; tap < p.taps; tap++) {
                const int8_t* from = s.weights + (n * p.taps + tap) * s.row_bytes;
                int8_t* to = weights + ((n / OUTPUTS * p.taps + tap) * p.padded_bytes * OUTPUTS) + n % OUTPUTS * 4;
                for (long k = 0; k < s.row_bytes; k++) to[k / 4 * 4 * OUTPUTS + k % 4] = from[k];
            }
        }
        int32_t* table = keep<int32_t>(p.taps * p.pixels);
        for (long tap = 0; tap < p.taps; tap++)
            for (long pixel = 0; pixel < p.pixels; pixel++) {
                const long h = pixel / y.width * s.stride_h - s.top + tap / s.kernel_w * s.dilation_h;
                const long w = pixel % y.width * s.stride_w - s.left + tap % s.kernel_w * s.dilation_w;
                const bool inside = h >= 0 && h < x.height && w >= 0 && w < x.width;
                table[tap * p.pixels + pixel] = inside ? static_cast<int32_t>((h * x.width + w) * x.pitch) : -1;
            }
        const bool same = x.height == y.height && x.width == y.width && s.row_bytes <= x.pitch;
        const bool whole = p.taps == 1 && same && x.image_bytes == p.pixels * x.pitch;
        p.linear = whole && s.stride_h == 1 && s.stride_w == 1 && !s.top && !s.left ? x.pitch : 0;
        uint8_t* zeros = keep<uint8_t>(p.padded_bytes);
        memset(zeros, static_cast<int>(x.zero), p.padded_bytes);
        if (tiles && p.pixels % 16 == 0) {
            int32_t* strides = keep<int32_t>(p.taps * p.pixels / 16);
            for (long tile = 0; tile < p.taps * p.pixels / 16; tile++) {
                const int32_t* at = table + tile * 16;
                const int32_t stride = at[1] - at[0];
                bool regular = stride > 0 && at[0] >= 0;
                for (int i = 2; regular && i < 16; i++) regular = at[i] - at[i - 1] == stride;
                strides[tile] = regular ? stride : 0;
            }
            p.strides = strides;
        }
        p.weights = weights;
        p.multipliers = multipliers;
        p.biases = biases;
        p.table = table;
        p.zero_row = zeros;
        p.x_image_bytes = x.image_bytes;
        p.y_pitch = y.pitch;
        p.residual_pitch = s.other >= 0 ? arrays[s.other].pitch : 0;
        p.residual_factor = static_cast<float>(s.other_factor);
        p.offset = static_cast<float>(s.offset);
        p.floats = y.floats;
        p.relu = s.low >= 0 && y.floats;
        p.zero = static_cast<uint8_t>(y.zero);
        p.low = static_cast<uint8_t>(std::max<int64_t>(0, s.low));
        return p;
    }

    // An array of the images from `image` on of a context.
    View view(const Context& context, long array, long image) const {
        const ArrayInfo& info = arrays[array];
        if (info.output >= 0)
            return {reinterpret_cast<uint8_t*>(outputs[info.output]) + (context.first + image) * info.image_bytes, &info};
        return {context.arena.get() + info.start + (info.whole ? image * info.image_bytes : 0), &info};
    }

    void step(long number, Context& context, long image, long images, long rank, long team, Scratch& own) {
        const StepInfo& s = steps[number];
        const View y = view(context, s.y, image);
        if (s.kind == CONV) {
            const View x = view(context, s.x, image);
            const uint8_t* residual = s.other >= 0 ? view(context, s.other, image).data : nullptr;
            const Operands operands{x.data, y.data, residual, images};
            if (tiles)
                tile_product(products[number], operands, own.panel, rank, team);
            else
                vnni_product(products[number], operands, rank, team);
            return;
        }
        long from, to;
        share(images * y.info->height, rank, team, from, to);
        for (long at = from; at < to;) {
            const long n = at / y.info->height, h = at % y.info->height, end = std::min(y.info->height, h + to - at);
            if (s.kind == IMAGE) {
                const float* x = input + (context.first + image + n) * channels * height * width;
                store_image(s, y, x, channels, height, width, n, h, end, own.line.get());
            } else if (s.kind == MAX_POOL) {
                max_pool(s, view(context, s.x, image), y, n, h, end);
            } else if (s.kind == AVERAGE_POOL) {
                average_pool(s, view(context, s.x, image), y, n, h, end);
            } else if (s.kind == SUM) {
                sum_arrays(s, view(context, s.x, image), view(context, s.other, image), y, n, h, end);
            } else if (s.size == 1) {
                normalize_windows(s, view(context, s.x, image), y, n, h, end);
            } else {
                normalize(s, view(context, s.x, image), y, n, h, end, reinterpret_cast<int32_t*>(own.squares.get()));
            }
            at += end - h;
        }
    }

    void work(long thread) {
        const long team_size = threads / static_cast<long>(contexts.size());
        const long number = thread / team_size, rank = thread % team_size;
        if (number >= static_cast<long>(contexts.size())) return;
        Context& context = *contexts[number];
        if (tiles) configure_tiles();
        const long images = context.last - context.first;
        for (const SegmentInfo& segment : segments)
            for (long image = 0; image < images; image += segment.group)
                for (long at = segment.first; at < segment.last; at++) {
                    step(at, context, image, std::min<long>(segment.group, images - image), rank, team_size, scratch[thread]);
                    context.barrier.wait(team_size);
                }
        if (tiles) release_tiles();
    }
};

}  // namespace

extern "C" long int8_instructions() {
    long found = __builtin_cpu_supports("avx512vnni") ? VNNI : 0;
    if (found) found |= TILES_ARE_EMULATED ? EMULATED_AMX : request_tiles() ? AMX : 0;
    return found;
}

// `sizes`: channels, height, width of the input, bytes of an arena, bytes of a line,
// number of outputs. Null without memory.
extern "C" void* int8_create(const ArrayInfo* arrays, long array_count, const StepInfo* steps, long step_count,
                             const SegmentInfo* segments, long segment_count, long batch, long threads, long tiles,
                             const int64_t* sizes, float* const* outputs) try {
    auto network = std::make_unique<Network>();
    Network& n = *network;
    n.arrays.assign(arrays, arrays + array_count);
    n.steps.assign(steps, steps + step_count);
    n.segments.assign(segments, segments + segment_count);
    n.outputs.assign(outputs, outputs + sizes[5]);
    n.channels = sizes[0], n.height = sizes[1], n.width = sizes[2];
    n.threads = threads;
    n.tiles = tiles;
    long most_rows = 0, most_copies = 0, most_channels = 0;
    for (StepInfo& s : n.steps) {
        n.products.push_back(s.kind == CONV ? n.packed(s) : Product{});
        const Product& p = n.products.back();
        if (s.kind == CONV && tiles) {
            const long blocks = tile_panel_blocks(p);
            most_rows = std::max(most_rows, blocks * 2 * p.taps);
            most_copies = std::max(most_copies, blocks * TILE_PIXELS * p.taps * p.padded_bytes);
        }
        most_channels = std::max(most_channels, static_cast<long>(n.arrays[s.y].channels + s.size));
        if (s.kind == AVERAGE_POOL || s.kind == NORM) {  // what Python passes is not kept
            const long count = s.kind == NORM ? s.size * s.kernel_h * s.kernel_w * 255 * 255 + 1 : s.kernel_h * s.kernel_w + 1;
            float* own = n.keep<float>(count);
            memcpy(own, s.multipliers, count * sizeof(float));
            s.multipliers = own;
        }
    }
    const long contexts = std::min(batch, threads);
    for (long c = 0; c < contexts; c++) {
        auto context = std::make_unique<Context>();
        share(batch, c, contexts, context->first, context->last);
        context->arena = allocate(sizes[3]);
        n.contexts.push_back(std::move(context));
    }
    for (long t = 0; t < threads; t++) {
        Scratch own;
        own.line = allocate(sizes[4]);
        own.squares = allocate((most_channels + 64) * 4);
        own.copies = allocate(most_copies);
        own.panel.rows.resize(most_rows);
        own.panel.copies = own.copies.get();
        n.scratch.push_back(std::move(own));
    }
    n.team = std::make_unique<Team>(threads);
    return network.release();
} catch (const std::exception&) {
    return nullptr;
}

extern "C" void int8_run(void* network, const float* input) {
    Network* n = static_cast<Network*>(network);
    n->input = input;
    n->team->run([](void* context, long rank) { static_cast<Network*>(context)->work(rank); }, n);
}

extern "C" void int8_destroy(void* network) { delete static_cast<Network*>(network); }

#endif
