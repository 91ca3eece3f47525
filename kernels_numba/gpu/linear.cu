// out = weights * x for few rows: weights stream through once, 16 bytes a lane.
// Launched by project.py, dealt by dealing.py.
// The same on the CPU: cpu/linear.py, cpu/dot.py. Oracle: tests/unit/kernels/test_linear.py.
//
// An item is STRIPS strips of 16 weight rows (GATED: 8 gate rows and their 8 up rows) against one
// tile of at most 8 * TOKENS rows of x. A block's warps split K and merge in warp order. Each lane
// copies the bytes that it will multiply itself into its own places of shared memory, STAGES - 1
// chunks ahead and across items, so that nothing in the loop waits for another thread.
//
// The grid is what fits the device; blocks take items in turn. Items of tile 0 belong to the fixed
// matrix, whose weights a block asks for before the kernels in front of it have ended; those of the
// others to the experts' matrix, whose tiles the kernels in front write.
#include "common.cuh"
#include "weights.cuh"
#include "streamed.cuh"

// 16-byte units of a row's chunk that one lane reads.
constexpr int UNITS = CHUNK_BYTES / 64;

// One warp's place for a chunk: each lane's own units and its rows' scales.
template <int STRIPS>
struct Slot {
    uint4 data[STRIPS][2][UNITS][32];
#if FORMAT != 1
    struct __align__(SCALE_BYTES) RowScales {
        u8 bytes[SCALE_BYTES];
    } scales[STRIPS][2][32];
#endif
};

// Chunks that a warp has room for.
template <int STRIPS>
constexpr int STAGES_OF = RING / WARPS / static_cast<int>(sizeof(Slot<STRIPS>));

template <int TOKENS, int STRIPS, bool GATED>
struct Work {
    static constexpr int EACH = GATED ? BAND : 2 * BAND;
    Matrix fixed, experts;
    int n, groups;
    const u16* x;
    u32 x_stride;
    // Rows of the fixed tile (0: there is none), the first one in x, and where its output goes.
    int rows;
    u32 from, to;
    const int4* tiles;
    const int* used;
    const int* gather;

    __device__ __forceinline__ int first_weight_row(const Item& item) const {
        return item.group * STRIPS * EACH;
    }
    __device__ __forceinline__ u32 expert_base(const Item& item) const {
        return item.fixed() ? 0 : tiles[item.tile - 1].x * (GATED ? 2 * n : n);
    }
    __device__ __forceinline__ int count(const Item& item) const {
        return item.fixed() ? rows : tiles[item.tile - 1].z;
    }
    // The row of x, and the row of the output, that stand at `place` of the item's tile.
    __device__ __forceinline__ u32 input(const Item& item, u32 place) const {
        if (item.fixed()) return from + place;
        place += tiles[item.tile - 1].y;
        return gather == nullptr ? place : gather[place];
    }
    __device__ __forceinline__ u32 output(const Item& item, u32 place) const {
        return place + (item.fixed() ? to : tiles[item.tile - 1].y);
    }
    __device__ __forceinline__ const u8* data(const Item& item) const {
        return item.fixed() ? fixed.data : experts.data;
    }
    __device__ __forceinline__ const u8* scale(const Item& item) const {
        return item.fixed() ? fixed.scale : experts.scale;
    }
    __device__ __forceinline__ u32 stride(const Item& item) const {
        return item.fixed() ? fixed.stride : experts.stride;
    }
    __device__ __forceinline__ u32 scale_stride(const Item& item) const {
        return item.fixed() ? fixed.scale_stride : experts.scale_stride;
    }
};

// A warp's weights: chunks are asked for ahead of those that it multiplies.
template <int STRIPS, class WORK>
struct ChunkStream {
    static constexpr int STAGES = STAGES_OF<STRIPS>;
    const WORK& work;
    Slot<STRIPS>* slots;
    int begin, end, chunk, slot;
    ItemCursor cursor;
    u32 weight_rows[STRIPS][2];

    __device__ __forceinline__ ChunkStream(const WORK& of, void* memory, int first, int behind)
        : work(of), slots(static_cast<Slot<STRIPS>*>(memory) + threadIdx.x / 32 * STAGES),
          begin(first), end(behind), chunk(first), slot(0), cursor(of.groups, of.rows > 0) {}

    __device__ __forceinline__ void aim() {
        const u32 base = work.expert_base(cursor);
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) {
            const int n = work.first_weight_row(cursor) + m * WORK::EACH + threadIdx.x % 32 / 4;
            weight_rows[m][0] = base + min(n, work.n - 1);
            weight_rows[m][1] = WORK::EACH == BAND ? weight_rows[m][0] + work.n
                                                   : base + min(n + BAND, work.n - 1);
        }
    }

    // Where the chunk lies in the first row of the item's matrix, and in this lane's.
    __device__ __forceinline__ const u8* base() const {
        return work.data(cursor) + chunk * CHUNK_BYTES + threadIdx.x % 4 * 16;
    }

    // Asks for the next chunk if it belongs to a tile below `known`; whether it did.
    __device__ __forceinline__ bool fill(int known) {
        if (cursor.tile >= known || begin >= end) return false;
        if (chunk == begin) aim();
        const int lane = threadIdx.x % 32;
        Slot<STRIPS>& to = slots[slot];
        const u8* first = base();
        const u32 stride = work.stride(cursor);
#if FORMAT != 1
        const u8* first_scale = work.scale(cursor) + chunk * SCALE_BYTES;
        const u32 scale_stride = work.scale_stride(cursor);
#endif
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u8* from = row_address(first, weight_rows[m][half], stride);
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    copy_async<16>(&to.data[m][half][u][lane], from + 64 * u);
                }
#if FORMAT != 1
                copy_async<SCALE_BYTES>(
                    &to.scales[m][half][lane],
                    row_address(first_scale, weight_rows[m][half] / SCALE_ROWS, scale_stride));
#endif
            }
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        if (++chunk == end) {
            chunk = begin;
            cursor.next();
        }
        return true;
    }
};

// A lane's rows of x. Few rows are asked for one chunk ahead; many would not fit the registers.
template <int TOKENS, class WORK>
struct Input {
    static constexpr bool EARLY = TOKENS <= 2;
    static constexpr u32 ABSENT = ~0u;
    const WORK& work;
    u32 row[TOKENS];
    uint4 following[EARLY ? STEPS : 1][TOKENS], values[EARLY ? STEPS : 1][TOKENS];

    __device__ __forceinline__ Input(const WORK& of) : work(of) {}

    // Rows that are absent read as zero from here on.
    __device__ __forceinline__ void aim(const Item& item) {
        const u32 count = work.count(item);
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) {
            const u32 own = 8 * i + threadIdx.x % 32 / 4;
            row[i] = own < count ? work.input(item, own) : ABSENT;
#pragma unroll
            for (int step = 0; step < (EARLY ? STEPS : 1); ++step) {
                following[step][i] = make_uint4(0, 0, 0, 0);
            }
        }
    }

    __device__ __forceinline__ const uint4* at(int i, int chunk) const {
        return reinterpret_cast<const uint4*>(work.x) + chunk * (CHUNK / 8) +
            row[i] * static_cast<u64>(work.x_stride / 8);
    }

    __device__ __forceinline__ void ask(int chunk) {
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) {
            if (row[i] == ABSENT) continue;
            const uint4* own = at(i, chunk);
#pragma unroll
            for (int step = 0; step < (EARLY ? STEPS : 0); ++step) {
                following[step][i] = own[input_unit(step, threadIdx.x % 4)];
            }
        }
    }

    // What was asked for, before the next is.
    __device__ __forceinline__ void take() {
#pragma unroll
        for (int step = 0; step < (EARLY ? STEPS : 0); ++step) {
#pragma unroll
            for (int i = 0; i < TOKENS; ++i) values[step][i] = paired(following[step][i]);
        }
    }

    __device__ __forceinline__ void get(uint4 (&x)[TOKENS], int chunk, int step) const {
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) {
            if (EARLY) {
                x[i] = values[step][i];
            } else {
                x[i] = make_uint4(0, 0, 0, 0);
                if (row[i] != ABSENT) x[i] = paired(at(i, chunk)[input_unit(step, threadIdx.x % 4)]);
            }
        }
    }
};

// A lane's part of one weight row's chunk, out of its own places.
struct RowFragment {
    uint4 unit[UNITS];
    u32 scale[2];

    template <int STRIPS>
    __device__ __forceinline__ void load(const Slot<STRIPS>& slot, int m, int half) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int u = 0; u < UNITS; ++u) unit[u] = slot.data[m][half][u][lane];
#if FORMAT == 2
        const u8* own = &slot.scales[m][half][lane].bytes[2 * (lane % 4)];
        const u32 codes = *reinterpret_cast<const u16*>(own);
        scale[0] = scale_pair(codes, 0);
        scale[1] = scale_pair(codes, 1);
#endif
    }

    __device__ __forceinline__ void words(int step, u32 (&out)[4]) const {
#if FORMAT == 1
        words_of(unit[step], out);
#elif FORMAT == 2
        const u32 codes[4] = {unit[0].x, unit[0].y, unit[0].z, unit[0].w};
        decode_word(codes[step], scale[step / 2], out);
#else
        const uint4 own = unit[step / 2];
        decode_codes(step % 2 ? own.z : own.x, step % 2 ? own.w : own.y, out);
#endif
    }
};

// Sums of a warp over an item: per strip and eight rows of x as `mma` lays them.
template <int TOKENS, int STRIPS>
struct ItemSums {
    float value[STRIPS][TOKENS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
            for (int i = 0; i < TOKENS; ++i) {
#pragma unroll
                for (int c = 0; c < 4; ++c) value[m][i][c] = 0.0f;
            }
        }
    }

    // Adds one step's products. Bits of weights outside `mask` count as zero.
    __device__ __forceinline__ void add(
        const RowFragment (&fragments)[STRIPS][2], const uint4 (&x)[TOKENS], int step, u32 mask) {
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) {
            u32 a[4], b[4];
            fragments[m][0].words(step, a);
            fragments[m][1].words(step, b);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                a[j] &= mask;
                b[j] &= mask;
            }
#pragma unroll
            for (int i = 0; i < TOKENS; ++i) {
                mma(value[m][i], a[0], b[0], a[1], b[1], x[i].x, x[i].y);
                mma(value[m][i], a[2], b[2], a[3], b[3], x[i].z, x[i].w);
            }
        }
    }

#if FORMAT == 3
    // Adds the sums of a group of values, each times its scale.
    __device__ __forceinline__ void fold(
        const ItemSums& part, const Slot<STRIPS>& slot, int group) {
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) {
            float scale[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u8* own = slot.scales[m][half][threadIdx.x % 32].bytes;
                scale[half] = reinterpret_cast<const float*>(own)[group];
            }
#pragma unroll
            for (int i = 0; i < TOKENS; ++i) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    value[m][i][c] = __fmaf_rn(part.value[m][i][c], scale[c / 2], value[m][i][c]);
                }
            }
        }
    }
#endif
};

template <int TOKENS, int STRIPS, class WORK>
__device__ __forceinline__ void multiply(
    ItemSums<TOKENS, STRIPS>& sums, const Slot<STRIPS>& slot, const Input<TOKENS, WORK>& input,
    int chunk) {
    RowFragment fragments[STRIPS][2];
#pragma unroll
    for (int m = 0; m < STRIPS; ++m) {
        fragments[m][0].load(slot, m, 0);
        fragments[m][1].load(slot, m, 1);
    }
    uint4 x[TOKENS];
#if FORMAT != 3
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        input.get(x, chunk, step);
        sums.add(fragments, x, step, ~0u);
    }
#else
#pragma unroll
    for (int piece = 0; piece < CHUNK / GROUP; ++piece) {
        // Where GROUP is 32, a quad's units hold two groups: lanes 0 and 1 the first, 2 and 3 the
        // second. The mask leaves the piece's own.
        constexpr bool WHOLE = GROUP == CHUNK;
        const u32 mask = WHOLE || threadIdx.x % 4 / 2 == piece % 2 ? ~0u : 0u;
        const int first = WHOLE ? 0 : piece / 2 * 2;
        ItemSums<TOKENS, STRIPS> part;
        part.clear();
#pragma unroll
        for (int step = first; step < (WHOLE ? STEPS : first + 2); ++step) {
            input.get(x, chunk, step);
            part.add(fragments, x, step, mask);
        }
        sums.fold(part, slot, piece);
    }
#endif
}

// Merges the warps' sums in order and writes the item's output.
template <int TOKENS, int STRIPS, bool GATED>
__device__ __forceinline__ void finish(
    const ItemSums<TOKENS, STRIPS>& sums, float4* shared, const Work<TOKENS, STRIPS, GATED>& work,
    Output output, const Item& item) {
    constexpr int PARTS = STRIPS * TOKENS;
    // By now all have read the item before.
    __syncthreads();
#pragma unroll
    for (int m = 0; m < STRIPS; ++m) {
#pragma unroll
        for (int i = 0; i < TOKENS; ++i) {
            const float(&c)[4] = sums.value[m][i];
            const int at = threadIdx.x / 32 * PARTS + m * TOKENS + i;
            shared[at * 32 + threadIdx.x % 32] = make_float4(c[0], c[1], c[2], c[3]);
        }
    }
    __syncthreads();
    const float* flat = reinterpret_cast<const float*>(shared);
    output.factors = item.fixed() ? work.fixed.factors : work.experts.factors;
    const u32 base = work.expert_base(item);
    // A thread has two of a strip's sums, of weight rows a band apart.
    for (int index = threadIdx.x; index < STRIP_SUMS / 2 * PARTS; index += 32 * WARPS) {
        const int column = index % 8, row = index / 8 % 8, part = index / 64;
        const int i = part % TOKENS, m = part / TOKENS;
        if (8 * i + column >= work.count(item)) continue;
        const float* at = flat + (part * 32 + 4 * row + column / 2) * 4 + column % 2;
        float first = at[0], second = at[2];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) {
            first += at[w * PARTS * STRIP_SUMS];
            second += at[w * PARTS * STRIP_SUMS + 2];
        }
        const u32 to = work.output(item, 8 * i + column);
        const int n = work.first_weight_row(item) + m * work.EACH + row;
        if (GATED) {
            if (n < work.n) output.gated(to, n, base + n, base + n + work.n, first, second);
        } else {
            if (n < work.n) output.plain(to, n, base + n, first);
            if (n + BAND < work.n) output.plain(to, n + BAND, base + n + BAND, second);
        }
    }
}

template <int TOKENS, int STRIPS, bool GATED>
__device__ __forceinline__ void linear(
    const Work<TOKENS, STRIPS, GATED>& work, int chunks, const Output& output) {
    constexpr int STAGES = STAGES_OF<STRIPS>;
    extern __shared__ __align__(16) u8 memory[];
    float4* shared = reinterpret_cast<float4*>(memory);
    const int warp = threadIdx.x / 32;
    const int begin = run_begin(warp, chunks), end = run_begin(warp + 1, chunks);
    ChunkStream<STRIPS, Work<TOKENS, STRIPS, GATED>> weights(
        work, shared + WARPS * STRIPS * TOKENS * 32, begin, end);
    let_next_start();
    int asked = 0;
    for (; asked < STAGES - 1 && weights.fill(1); ++asked) copy_commit();
    wait_for_previous();
    const int tiles = 1 + (work.used == nullptr ? 0 : *work.used);
    for (; asked < STAGES - 1; ++asked) {
        weights.fill(tiles);
        copy_commit();
    }
    Input<TOKENS, Work<TOKENS, STRIPS, GATED>> input(work);
    ItemCursor cursor(work.groups, work.rows > 0);
    if (cursor.tile < tiles) input.aim(cursor);
    if (cursor.tile < tiles && begin < end) input.ask(begin);
    int slot = 0;
    while (cursor.tile < tiles) {
        const Item item = cursor;
        cursor.next();
        ItemSums<TOKENS, STRIPS> sums;
        sums.clear();
        for (int chunk = begin; chunk < end; ++chunk) {
            input.take();
            const bool last = chunk + 1 == end;
            if (input.EARLY) {
                if (last && cursor.tile < tiles) input.aim(cursor);
                input.ask(last ? begin : chunk + 1);
            }
            weights.fill(tiles);
            copy_commit();
            copy_wait<STAGES - 1>();
            multiply(sums, weights.slots[slot], input, chunk);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        if (!input.EARLY && cursor.tile < tiles) input.aim(cursor);
        finish(sums, shared, work, output, item);
    }
}

// Blocks whose registers a processor must have room for: three with the sums of eight rows of x, one
// with those of 64.
#define LINEAR(NAME, TOKENS, STRIPS, GATED)                                                       \
    STREAMING(NAME, (TOKENS) == 1 ? 3 : (TOKENS) == 8 ? 1 : 2) {                                  \
        const Work<TOKENS, STRIPS, GATED> work{STREAMED, tiles, used, gather};                    \
        const Output output{out, out_stride, out_wide, nullptr, bias, add};                       \
        linear<TOKENS, STRIPS, GATED>(work, static_cast<int>(chunks), output);                    \
    }

// By rows of x and strips; the order of a sum is the same in all. Sums of many rows leave small shared
// memory no room for a second strip.
LINEAR(linear_8_1, 1, 1, false)
LINEAR(linear_16_1, 2, 1, false)
LINEAR(gated_8_1, 1, 1, true)
LINEAR(gated_16_1, 2, 1, true)
#if MOST == 1
LINEAR(linear_32_1, 4, 1, false)
LINEAR(linear_64_1, 8, 1, false)
LINEAR(gated_32_1, 4, 1, true)
LINEAR(gated_64_1, 8, 1, true)
#else
LINEAR(linear_8_2, 1, 2, false)
LINEAR(linear_16_2, 2, 2, false)
LINEAR(linear_32_2, 4, 2, false)
LINEAR(linear_64_2, 8, 2, false)
LINEAR(gated_8_2, 1, 2, true)
LINEAR(gated_16_2, 2, 2, true)
LINEAR(gated_32_2, 4, 2, true)
LINEAR(gated_64_2, 8, 2, true)
#endif
