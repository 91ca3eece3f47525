// out = weights * x for many rows, bit for bit what linear.cu gives for few.
// Launched by project.py.
// The same on the CPU: cpu/linear.py, cpu/dot.py. Oracle: tests/unit/kernels/test_linear.py.
//
// A block owns 128 weight rows and BN rows of x, staged in shared memory. It walks K in linear.cu's
// order: the run of its warp 0, then of warp 1, ..., each summed from zero and then added to the
// total. Grid: (tiles of BN rows, weight rows / 128): what runs at once shares weights.
#include "common.cuh"
#include "weights.cuh"

constexpr int BM = 128;
constexpr int THREADS = 256;
constexpr int INPUT_UNITS = CHUNK / 8;
constexpr int DATA_UNITS = CHUNK_BYTES / 16;

// Where unit `unit` of row `row` lies, so that a quarter warp's 16-byte reads meet all banks.
__device__ __forceinline__ int data_place(int row, int unit) {
#if FORMAT == 2
    return row * DATA_UNITS + unit;
#else
    return row * DATA_UNITS + (unit ^ ((row & 1) << 2 | (row >> 1 & 3)));
#endif
}

__device__ __forceinline__ int input_place(int row, int unit) {
#if FORMAT == 1
    return row * INPUT_UNITS + (unit ^ ((row & 1) << 2 | (row >> 1 & 3)));
#else
    return row * INPUT_UNITS + (unit ^ (unit >> 3 & 1 | (row & 1) << 1));
#endif
}

template <int BN>
struct Stage {
    uint4 data[BM * DATA_UNITS];
    uint4 input[BN * INPUT_UNITS];
#if FORMAT != 1
    struct __align__(SCALE_BYTES) RowScales {
        u8 bytes[SCALE_BYTES];
    } scale[BM / SCALE_ROWS];
#endif
};

template <int BN, bool GATED>
struct Loader {
    static constexpr int DATA_EACH = BM * DATA_UNITS / THREADS;
    static constexpr int INPUT_EACH = BN * INPUT_UNITS / THREADS;
    // Offsets from the block's first rows: a matrix of experts is larger than they can say.
    const u8 *data_base, *input_base, *scale;
    u32 data[DATA_EACH], input[INPUT_EACH];

    // Weight rows from `n0` on of the `n` (GATED: pairs) that begin at row `base`.
    __device__ __forceinline__ void aim_weights(
        const u8* weights, i64 stride, const u8* scales, i64 scale_stride, i64 n0, i64 n,
        i64 base) {
        data_base = weights + base * stride;
#pragma unroll
        for (int i = 0; i < DATA_EACH; ++i) {
            const int index = threadIdx.x + i * THREADS;
            const i64 row = weight_row(index / DATA_UNITS, n0, n, base);
            data[i] = static_cast<u32>((row - base) * stride + index % DATA_UNITS * 16);
        }
#if FORMAT != 1
        const int line = threadIdx.x % (BM / SCALE_ROWS);
        scale = scales + weight_row(line * SCALE_ROWS, n0, n, base) / SCALE_ROWS * scale_stride;
#endif
    }

    // The tile's rows of x, by way of `gather` where there is one.
    __device__ __forceinline__ void aim_input(
        const u16* x, i64 stride, const Tile& tile, const int* gather) {
        input_base = reinterpret_cast<const u8*>(x);
#pragma unroll
        for (int i = 0; i < INPUT_EACH; ++i) {
            const int index = threadIdx.x + i * THREADS;
            const i64 place =
                tile.first + min(static_cast<i64>(index / INPUT_UNITS), tile.count - 1);
            const i64 row = gather == nullptr ? place : gather[place];
            input[i] = static_cast<u32>(row * stride * 2 + index % INPUT_UNITS * 16);
        }
    }

    __device__ __forceinline__ static i64 weight_row(int row, i64 n0, i64 n, i64 base) {
        if (!GATED) return base + min(n0 + row, n - 1);
        const i64 gate = min(n0 + row / 16 * 8 + row % 8, n - 1);
        return base + gate + (row % 16 < 8 ? 0 : n);
    }

    __device__ __forceinline__ void load(Stage<BN>& stage, u32 chunk) const {
#pragma unroll
        for (int i = 0; i < DATA_EACH; ++i) {
            const int index = threadIdx.x + i * THREADS;
            const int place = data_place(index / DATA_UNITS, index % DATA_UNITS);
            copy_async_16(shared_address(&stage.data[place]), data_base + data[i] + chunk * CHUNK_BYTES);
        }
#pragma unroll
        for (int i = 0; i < INPUT_EACH; ++i) {
            const int index = threadIdx.x + i * THREADS;
            const int place = input_place(index / INPUT_UNITS, index % INPUT_UNITS);
            copy_async_16(shared_address(&stage.input[place]), input_base + input[i] + chunk * CHUNK * 2);
        }
#if FORMAT != 1
        if (threadIdx.x < BM / SCALE_ROWS) {
            copy_async<SCALE_BYTES>(&stage.scale[threadIdx.x], scale + chunk * SCALE_BYTES);
        }
#endif
    }
};

// A lane's part of one weight row for one step, as it lies in shared memory.
struct StepFragment {
#if FORMAT == 1
    uint4 unit;
#elif FORMAT == 2
    u32 codes;
    u32 scale;
#else
    uint2 codes;
#endif
};

template <int BN>
__device__ __forceinline__ StepFragment fragment_of(const Stage<BN>& stage, int row, int step, int t) {
    StepFragment fragment;
#if FORMAT == 1
    fragment.unit = stage.data[data_place(row, input_unit(step, t))];
#elif FORMAT == 2
    fragment.codes = reinterpret_cast<const u32*>(&stage.data[data_place(row, t)])[step];
    fragment.scale = stage.scale[row].bytes[2 * t + step / 2];
#else
    const uint4* unit = &stage.data[data_place(row, 4 * (step / 2) + t)];
    fragment.codes = reinterpret_cast<const uint2*>(unit)[step % 2];
#endif
    return fragment;
}

__device__ __forceinline__ void words_of(const StepFragment& fragment, u32 (&words)[4]) {
#if FORMAT == 1
    words[0] = fragment.unit.x;
    words[1] = fragment.unit.y;
    words[2] = fragment.unit.z;
    words[3] = fragment.unit.w;
#elif FORMAT == 2
    decode_word(fragment.codes, scale_pair(fragment.scale, 0), words);
#else
    decode_codes(fragment.codes.x, fragment.codes.y, words);
#endif
}

// What a warp needs of one step: its weight rows and its rows of x.
template <int BN, int MT, int NT>
struct Operands {
    StepFragment lows[MT], highs[MT];
    uint4 input[NT];

    __device__ __forceinline__ void load(
        const Stage<BN>& stage, int step, int row, int column, int t) {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            lows[m] = fragment_of<BN>(stage, row + 16 * m, step, t);
            highs[m] = fragment_of<BN>(stage, row + 16 * m + 8, step, t);
        }
#pragma unroll
        for (int i = 0; i < NT; ++i) {
            input[i] = paired(stage.input[input_place(column + 8 * i, input_unit(step, t))]);
        }
    }

    // Bits of weights outside `mask` count as zero.
    __device__ __forceinline__ void multiply(float (&acc)[MT][NT][4], u32 mask) const {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            u32 a[4], b[4];
            words_of(lows[m], a);
            words_of(highs[m], b);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                a[j] &= mask;
                b[j] &= mask;
            }
#pragma unroll
            for (int i = 0; i < NT; ++i) {
                mma(acc[m][i], a[0], b[0], a[1], b[1], input[i].x, input[i].y);
            }
#pragma unroll
            for (int i = 0; i < NT; ++i) {
                mma(acc[m][i], a[2], b[2], a[3], b[3], input[i].z, input[i].w);
            }
        }
    }
};

#if FORMAT == 3
// Sums of a group of values before its scale: of a chunk, or of the two halves of a unit.
template <int MT, int NT>
struct Parts {
    static constexpr int SIDES = GROUP == CHUNK ? 1 : 2;
    static constexpr int EVERY = GROUP == CHUNK ? STEPS : 2;
    float value[SIDES][MT][NT][4];

    __device__ __forceinline__ void clear(int side) {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int i = 0; i < NT; ++i) {
#pragma unroll
                for (int c = 0; c < 4; ++c) value[side][m][i][c] = 0.0f;
            }
        }
    }

    template <class STAGE>
    __device__ __forceinline__ void fold(
        float (&acc)[MT][NT][4], const STAGE& stage, int side, int group, int row) const {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            float scale[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u8* own = stage.scale[(row + 16 * m + 8 * half) / SCALE_ROWS].bytes;
                scale[half] = reinterpret_cast<const float*>(own)[group];
            }
#pragma unroll
            for (int i = 0; i < NT; ++i) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    acc[m][i][c] = __fmaf_rn(value[side][m][i][c], scale[c / 2], acc[m][i][c]);
                }
            }
        }
    }

    // One step's products; with the last of a group its sums, times their scales, go to `acc`.
    template <int BN>
    __device__ __forceinline__ void add(
        float (&acc)[MT][NT][4], const Operands<BN, MT, NT> operands, const Stage<BN>& stage,
        int step, int row) {
#pragma unroll
        for (int side = 0; side < SIDES; ++side) {
            const u32 mask = SIDES == 1 || threadIdx.x % 4 / 2 == side ? ~0u : 0u;
            if (step % EVERY == 0) clear(side);
            operands.multiply(value[side], mask);
            if (step % EVERY == EVERY - 1) fold(acc, stage, side, step / EVERY * SIDES + side, row);
        }
    }
};
#endif

// Stages in turn: which is filled next and which is used now, and the chunk that is asked for next.
template <int BN, bool GATED>
struct Ring {
    Stage<BN>* stages;
    int ahead, filled, used;

    __device__ __forceinline__ const Stage<BN>& now() const { return stages[used]; }

    __device__ __forceinline__ void fill(const Loader<BN, GATED>& loader, int chunks) {
        if (ahead < chunks) {
            loader.load(stages[filled], ahead++);
            filled = (filled + 1) % STAGES;
        }
        copy_commit();
    }
};

// A warp's part of the tile: its first weight row and row of x, and its sums of a run of K and of
// all runs.
template <int MT, int NT>
struct TileSums {
    int row, column;
    float run[MT][NT][4], total[MT][NT][4];

    // A run ends: it is added to those before.
    __device__ __forceinline__ void end_run() {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int i = 0; i < NT; ++i) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    total[m][i][c] += run[m][i][c];
                    run[m][i][c] = 0.0f;
                }
            }
        }
    }

    template <bool GATED>
    __device__ __forceinline__ void store(
        const Output& output, const Tile& tile, i64 n0, i64 n, i64 base) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int i = 0; i < NT; ++i) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int place = column + 8 * i + 2 * t + c;
                    if (place >= tile.count) continue;
                    const i64 to = tile.first + place;
                    const float first = total[m][i][c], second = total[m][i][2 + c];
                    if (GATED) {
                        const i64 at = n0 + row / 2 + 8 * m + g;
                        if (at < n) output.gated(to, at, base + at, base + at + n, first, second);
                    } else {
                        const i64 at = n0 + row + 16 * m + g;
                        if (at < n) output.plain(to, at, base + at, first);
                        if (at + 8 < n) output.plain(to, at + 8, base + at + 8, second);
                    }
                }
            }
        }
    }
};

// Walks all of K. A step's operands load while the step before multiplies, also across the barrier.
template <int BN, bool GATED, int MT, int NT>
__device__ __forceinline__ void multiply_tile(
    TileSums<MT, NT>& sums, Ring<BN, GATED>& ring, const Loader<BN, GATED>& loader, int chunks) {
    const int row = sums.row + threadIdx.x % 32 / 4, column = sums.column + threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
#if FORMAT == 3
    Parts<MT, NT> parts;
#endif
    int run = 1;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) ring.fill(loader, chunks);
    Operands<BN, MT, NT> operands[2];
    copy_wait<STAGES - 2>();
    __syncthreads();
    operands[0].load(ring.now(), 0, row, column, t);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const Stage<BN>& now = ring.now();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            Operands<BN, MT, NT>& following = operands[(step + 1) % 2];
            if (step + 1 < STEPS) {
                following.load(ring.now(), step + 1, row, column, t);
            } else {
                copy_wait<STAGES - 3>();
                __syncthreads();
                // Every warp has read the stage before this one for the last time.
                ring.fill(loader, chunks);
                ring.used = (ring.used + 1) % STAGES;
                if (chunk + 1 < chunks) following.load(ring.now(), 0, row, column, t);
            }
#if FORMAT == 3
            parts.template add<BN>(sums.run, operands[step % 2], now, step, row);
#else
            operands[step % 2].multiply(sums.run, ~0u);
#endif
        }
        if (chunk + 1 == run_begin(run, chunks)) {
            ++run;
            sums.end_run();
        }
    }
    copy_wait<0>();
}

template <int BN, bool GATED>
__device__ __forceinline__ void tile_linear(
    const u8* data, i64 stride, const u8* scale, i64 scale_stride, i64 n, int chunks,
    const u16* x, i64 x_stride, const Output& output, const int4* tiles, const int* gather,
    i64 rows) {
    constexpr int ACROSS = BN == 128 ? 2 : 4;
    constexpr int MT = BM / 16 / ACROSS;
    constexpr int NT = BN / 8 / (WARPS / ACROSS);
    extern __shared__ __align__(16) u8 memory[];
    const Tile tile = tile_of(tiles, blockIdx.x, BN, rows);
    if (tile.count <= 0) return;
    const int warp = threadIdx.x / 32;
    const i64 base = tile.expert * (GATED ? 2 * n : n);
    const i64 n0 = static_cast<i64>(blockIdx.y) * (GATED ? BM / 2 : BM);
    Loader<BN, GATED> loader;
    loader.aim_weights(data, stride, scale, scale_stride, n0, n, base);
    loader.aim_input(x, x_stride, tile, gather);
    Ring<BN, GATED> ring{reinterpret_cast<Stage<BN>*>(memory), 0, 0, 0};
    TileSums<MT, NT> sums{warp % ACROSS * MT * 16, warp / ACROSS * NT * 8, {}, {}};
    multiply_tile(sums, ring, loader, chunks);
    sums.template store<GATED>(output, tile, n0, n, base);
}

#define TILE_LINEAR(NAME, BN, GATED)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(                                \
        const u8* data, i64 stride, const u8* scale, i64 scale_stride, const float* factors,      \
        i64 n, i64 chunks, const u16* x, i64 x_stride, void* out, i64 out_stride, i64 out_wide,   \
        const float* bias, i64 add, const int4* tiles, const int* gather, i64 rows) {             \
        const Output output{out, out_stride, out_wide, factors, bias, add};                       \
        tile_linear<BN, GATED>(data, stride, scale, scale_stride, n, static_cast<int>(chunks), x, \
                               x_stride, output, tiles, gather, rows);                            \
    }

TILE_LINEAR(tile_64, 64, false)
TILE_LINEAR(tile_gated_64, 64, true)
#if FORMAT != 3
TILE_LINEAR(tile_128, 128, false)
TILE_LINEAR(tile_gated_128, 128, true)
#endif
