// out = weights * x for few rows: weights stream through once, 16 bytes a lane.
//
// A block owns 16 weight rows (GATED: 8 gate rows and their 8 up rows). Its warps split K and merge
// in warp order. Grid: (weight rows / 16, tiles of 8 * TOKENS rows).
#include "common.cuh"
#include "weights.cuh"

constexpr int UNROLL = 2;

__device__ __forceinline__ uint4 stream_16(const u8* from) {
    uint4 unit;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
                 : "l"(from));
    return unit;
}

__device__ __forceinline__ Share load_share(
    const u8* data, const u8* scale, i64 chunk, int t) {
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

template <int TOKENS, bool GATED>
__device__ __forceinline__ void linear(
    const u8* data, i64 stride, const u8* scale, i64 scale_stride, i64 n, i64 chunks,
    const u16* x, i64 x_stride, const Output& output, const int4* tiles, const int* gather,
    i64 rows) {
    __shared__ float4 sums[WARPS][TOKENS][32];
    const Tile tile = tile_of(tiles, blockIdx.y, 8 * TOKENS, rows);
    if (tile.count <= 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const i64 base = tile.expert * (GATED ? 2 * n : n);
    const i64 n0 = static_cast<i64>(blockIdx.x) * (GATED ? 8 : 16);
    const i64 low = base + min(n0 + g, n - 1);
    const i64 high = GATED ? low + n : base + min(n0 + 8 + g, n - 1);
    const u8* data_low = data + low * stride;
    const u8* data_high = data + high * stride;
    const u8* scale_low = scale + low * scale_stride;
    const u8* scale_high = scale + high * scale_stride;

    const uint4* input[TOKENS];
    bool present[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
        present[i] = 8 * i + g < tile.count;
        const i64 place = tile.first + (present[i] ? 8 * i + g : 0);
        const i64 row = gather == nullptr ? place : gather[place];
        input[i] = reinterpret_cast<const uint4*>(x + row * x_stride);
    }

    float acc[TOKENS][4] = {};
    for (i64 first = warp; first < chunks; first += WARPS * UNROLL) {
        Share lows[UNROLL], highs[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 chunk = first + u * WARPS;
            if (chunk < chunks) {
                lows[u] = load_share(data_low, scale_low, chunk, t);
                highs[u] = load_share(data_high, scale_high, chunk, t);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 chunk = first + u * WARPS;
            if (chunk >= chunks) break;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                u32 a[4], b[4];
                words_of(lows[u], step, a);
                words_of(highs[u], step, b);
                const i64 unit = chunk * (CHUNK / 8) + input_unit(step, t);
#pragma unroll
                for (int i = 0; i < TOKENS; ++i) {
                    uint4 v = make_uint4(0, 0, 0, 0);
                    if (present[i]) v = input[i][unit];
                    mma(acc[i], a[0], b[0], a[1], b[1], v.x, v.y);
                    mma(acc[i], a[2], b[2], a[3], b[3], v.z, v.w);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
        sums[warp][i][lane] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
    }
    __syncthreads();

    const float* flat = reinterpret_cast<const float*>(sums);
    for (int item = threadIdx.x; item < 64 * TOKENS; item += 32 * WARPS) {
        const int column = item % 8, row = item / 8 % 8, i = item / 64;
        if (8 * i + column >= tile.count) continue;
        const float* at = flat + (i * 32 + 4 * row + column / 2) * 4 + column % 2;
        float first = at[0], second = at[2];
        for (int w = 1; w < WARPS; ++w) {
            first += at[w * TOKENS * 128];
            second += at[w * TOKENS * 128 + 2];
        }
        const i64 to = tile.first + 8 * i + column;
        if (GATED) {
            const i64 weight_row = base + n0 + row;
            if (n0 + row < n) output.gated(to, n0 + row, weight_row, weight_row + n, first, second);
        } else {
            if (n0 + row < n) output.plain(to, n0 + row, base + n0 + row, first);
            if (n0 + 8 + row < n) output.plain(to, n0 + 8 + row, base + n0 + 8 + row, second);
        }
    }
}

#define LINEAR(NAME, TOKENS, GATED)                                                               \
    extern "C" __global__ void __launch_bounds__(256) NAME(                                       \
        const u8* data, i64 stride, const u8* scale, i64 scale_stride, const float* factors,      \
        i64 n, i64 chunks, const u16* x, i64 x_stride, void* out, i64 out_stride, i64 out_wide,   \
        const float* bias, i64 add, const int4* tiles, const int* gather, i64 rows) {             \
        const Output output{out, out_stride, out_wide, factors, bias, add};                       \
        linear<TOKENS, GATED>(data, stride, scale, scale_stride, n, chunks, x, x_stride, output,  \
                              tiles, gather, rows);                                               \
    }

LINEAR(linear_8, 1, false)
LINEAR(linear_16, 2, false)
LINEAR(linear_32, 4, false)
LINEAR(linear_64, 8, false)
LINEAR(gated_8, 1, true)
LINEAR(gated_16, 2, true)
LINEAR(gated_32, 4, true)
LINEAR(gated_64, 8, true)
