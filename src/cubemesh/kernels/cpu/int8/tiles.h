// Tile instructions of AMX: those of the processor, or the same computed in C++ where the compiler
// has none, so that the code above them is tested everywhere. Eight tiles of 16 rows of 64 bytes.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AMX_INT8__

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr bool TILES_ARE_EMULATED = false;

// Linux grants the tiles to a process on request (ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
inline bool request_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

// Each thread configures its tiles before it uses them, and releases them after.
inline void configure_tiles() {
    struct __attribute__((packed)) {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = 16;
        config.row_bytes[tile] = 64;
    }
    _tile_loadconfig(&config);
}
inline void release_tiles() { _tile_release(); }

#define TILE_LOAD(tile, address, stride) _tile_loadd(tile, address, stride)
#define TILE_STORE(tile, address, stride) _tile_stored(tile, address, stride)
#define TILE_DOT(sums, a, b) _tile_dpbusd(sums, a, b)

#else

constexpr bool TILES_ARE_EMULATED = true;

struct EmulatedTile {
    alignas(64) uint8_t row[16][64];
};
inline EmulatedTile* emulated_tiles() {
    static thread_local EmulatedTile tiles[8];
    return tiles;
}
inline bool request_tiles() { return true; }
inline void configure_tiles() { memset(emulated_tiles(), 0, 8 * sizeof(EmulatedTile)); }
inline void release_tiles() {}

inline void emulated_load(int tile, const void* address, long stride) {
    for (int r = 0; r < 16; r++)
        memcpy(emulated_tiles()[tile].row[r], static_cast<const uint8_t*>(address) + r * stride, 64);
}
inline void emulated_store(int tile, void* address, long stride) {
    for (int r = 0; r < 16; r++)
        memcpy(static_cast<uint8_t*>(address) + r * stride, emulated_tiles()[tile].row[r], 64);
}
// sums[r][n] += sum over k of a[r][k] (unsigned) · b[k / 4][n][k % 4] (signed)
inline void emulated_dot(int sums, int a, int b) {
    EmulatedTile* tiles = emulated_tiles();
    for (int r = 0; r < 16; r++) {
        int32_t sum[16];
        memcpy(sum, tiles[sums].row[r], 64);
        for (int n = 0; n < 16; n++)
            for (int k = 0; k < 64; k++)
                sum[n] += tiles[a].row[r][k] * static_cast<int8_t>(tiles[b].row[k / 4][4 * n + k % 4]);
        memcpy(tiles[sums].row[r], sum, 64);
    }
}

#define TILE_LOAD(tile, address, stride) emulated_load(tile, address, stride)
#define TILE_STORE(tile, address, stride) emulated_store(tile, address, stride)
#define TILE_DOT(sums, a, b) emulated_dot(sums, a, b)

#endif
