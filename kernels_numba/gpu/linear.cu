// out = weights * x for few rows: weights stream through once, 16 bytes a lane.
//
// A block owns STRIPS strips of 16 weight rows (GATED: 8 gate rows and their 8 up rows). Its warps
// split K and merge in warp order. Grid: (weight rows / 16 STRIPS, tiles of 8 * TOKENS rows).
#include "common.cuh"
#include "weights.cuh"

// Chunks that a warp has in flight.
constexpr int USUAL = FORMAT == 1 ? 2 : 4;
constexpr int DEEP = 5;

__device__ __forceinline__ uint4 stream_16(const u8* from) {
    uint4 unit;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
                 : "l"(from));
    return unit;
}

__device__ __forceinline__ Share load_share(
    const u8* data, const u8* scale, int chunk, int t) {
    Share share;
    const u8* at = data + chunk * CHUNK_BYTES + 16 * t;
#if FORMAT == 1
    share.unit[0] = stream_16(at);
    share.unit[1] = stream_16(at + 64);
#else
    share.packed = stream_16(at);
    share.scales = *reinterpret_cast<const u16*>(scale + chunk * SCALE_BYTES + 2 * t);
#endif
    return share;
}

template <int TOKENS, int STRIPS, int UNROLL, bool GATED>
__device__ __forceinline__ void linear(
    const u8* data, i64 stride, const u8* scale, i64 scale_stride, i64 n, i64 chunks,
    const u16* x, i64 x_stride, const Output& output, const int4* tiles, const int* gather,
    i64 rows) {
    constexpr int EACH = GATED ? 8 : 16;
    __shared__ float4 sums[WARPS][STRIPS * TOKENS][32];
    const Tile tile = tile_of(tiles, blockIdx.y, 8 * TOKENS, rows);
    if (tile.count <= 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const i64 base = tile.expert * (GATED ? 2 * n : n);
    const i64 n0 = static_cast<i64>(blockIdx.x) * STRIPS * EACH;
    const u8 *data_low[STRIPS], *data_high[STRIPS], *scale_low[STRIPS], *scale_high[STRIPS];
#pragma unroll
    for (int m = 0; m < STRIPS; ++m) {
        const i64 low = base + min(n0 + m * EACH + g, n - 1);
        const i64 high = GATED ? low + n : base + min(n0 + m * EACH + 8 + g, n - 1);
        data_low[m] = data + low * stride;
        data_high[m] = data + high * stride;
        scale_low[m] = scale + low * scale_stride;
        scale_high[m] = scale + high * scale_stride;
    }
    const uint4* input[TOKENS];
    bool present[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
        present[i] = 8 * i + g < tile.count;
        const i64 place = tile.first + (present[i] ? 8 * i + g : 0);
        const i64 row = gather == nullptr ? place : gather[place];
        input[i] = reinterpret_cast<const uint4*>(x + row * x_stride);
    }

    float acc[STRIPS][TOKENS][4] = {};
    const int length = run_length(static_cast<int>(chunks));
    const int end = min(static_cast<int>(chunks), (warp + 1) * length);
    for (int first = warp * length; first < end; first += UNROLL) {
        Share lows[UNROLL][STRIPS], highs[UNROLL][STRIPS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int chunk = first + u;
            if (chunk >= end) break;
#pragma unroll
            for (int m = 0; m < STRIPS; ++m) {
                lows[u][m] = load_share(data_low[m], scale_low[m], chunk, t);
                highs[u][m] = load_share(data_high[m], scale_high[m], chunk, t);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int chunk = first + u;
            if (chunk >= end) break;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const int unit = chunk * (CHUNK / 8) + input_unit(step, t);
                uint4 v[TOKENS];
#pragma unroll
                for (int i = 0; i < TOKENS; ++i) {
                    v[i] = make_uint4(0, 0, 0, 0);
                    if (present[i]) v[i] = paired(input[i][unit]);
                }
#pragma unroll
                for (int m = 0; m < STRIPS; ++m) {
                    u32 a[4], b[4];
                    words_of(lows[u][m], step, a);
                    words_of(highs[u][m], step, b);
#pragma unroll
                    for (int i = 0; i < TOKENS; ++i) {
                        mma(acc[m][i], a[0], b[0], a[1], b[1], v[i].x, v[i].y);
                        mma(acc[m][i], a[2], b[2], a[3], b[3], v[i].z, v[i].w);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) {
            const float(&c)[4] = acc[m][i];
            sums[warp][m * TOKENS + i][lane] = make_float4(c[0], c[1], c[2], c[3]);
        }
    }
    __syncthreads();

    const float* flat = reinterpret_cast<const float*>(sums);
    for (int item = threadIdx.x; item < 64 * STRIPS * TOKENS; item += 32 * WARPS) {
        const int column = item % 8, row = item / 8 % 8, part = item / 64;
        const int i = part % TOKENS, m = part / TOKENS;
        if (8 * i + column >= tile.count) continue;
        const float* at = flat + (part * 32 + 4 * row + column / 2) * 4 + column % 2;
        float first = at[0], second = at[2];
        for (int w = 1; w < WARPS; ++w) {
            first += at[w * STRIPS * TOKENS * 128];
            second += at[w * STRIPS * TOKENS * 128 + 2];
        }
        const i64 to = tile.first + 8 * i + column;
        const i64 out_row = n0 + m * EACH + row;
        if (GATED) {
            const i64 gate = base + out_row;
            if (out_row < n) output.gated(to, out_row, gate, gate + n, first, second);
        } else {
            if (out_row < n) output.plain(to, out_row, base + out_row, first);
            if (out_row + 8 < n) output.plain(to, out_row + 8, base + out_row + 8, second);
        }
    }
}

#define LINEAR(NAME, TOKENS, STRIPS, UNROLL, GATED)                                               \
    extern "C" __global__ void __launch_bounds__(256) NAME(                                       \
        const u8* data, i64 stride, const u8* scale, i64 scale_stride, const float* factors,      \
        i64 n, i64 chunks, const u16* x, i64 x_stride, void* out, i64 out_stride, i64 out_wide,   \
        const float* bias, i64 add, const int4* tiles, const int* gather, i64 rows) {             \
        const Output output{out, out_stride, out_wide, factors, bias, add};                       \
        linear<TOKENS, STRIPS, UNROLL, GATED>(data, stride, scale, scale_stride, n, chunks, x,    \
                                              x_stride, output, tiles, gather, rows);             \
    }

// How much is in flight and how often x is read; the order of a sum is the same in all.
LINEAR(linear_8, 1, 1, USUAL, false)
LINEAR(linear_16, 2, 1, USUAL, false)
LINEAR(linear_32, 4, 1, USUAL, false)
LINEAR(linear_64, 8, 1, USUAL, false)
LINEAR(gated_8, 1, 1, USUAL, true)
LINEAR(gated_16, 2, 1, USUAL, true)
LINEAR(gated_32, 4, 1, USUAL, true)
LINEAR(gated_64, 8, 1, USUAL, true)
// For grids that fill the device twice over even so.
LINEAR(linear_broad_16, 2, 2, USUAL / 2, false)
LINEAR(linear_broad_32, 4, 2, USUAL / 2, false)
LINEAR(gated_broad_16, 2, 2, USUAL / 2, true)
LINEAR(gated_broad_32, 4, 2, USUAL / 2, true)
// For grids of few blocks.
LINEAR(linear_deep_8, 1, 1, DEEP, false)
LINEAR(linear_deep_16, 2, 1, DEEP, false)
LINEAR(gated_deep_8, 1, 1, DEEP, true)
LINEAR(gated_deep_16, 2, 1, DEEP, true)
