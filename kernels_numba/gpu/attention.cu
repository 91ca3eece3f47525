// Rotary with cache write, and grouped-query attention of few rows over paged keys and values.
//
// All kernels, attend_shared.cu's and attend_hopper.cu's too, compute a span by the same
// instructions, so a row's bits do not depend on which of them ran.
#include "common.cuh"
#include "attention.cuh"
#include "span.cuh"
#include "rotary.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int BLOCK_HEADS = WARPS * WARP_HEADS;

// Where a row's keys and values go: the place of one head at one position.
struct Cache {
    u16* keys;
    u16* values;

    __device__ __forceinline__ u16* row(u32 at, bool is_value) const {
        return (is_value ? values : keys) + static_cast<i64>(at) * HEAD_DIM;
    }
};

__device__ __forceinline__ Projected projected(
    const void* qkv, i64 stride, i64 wide, i64 heads, i64 kv_heads, i64 dim,
    const float* q_weight, const float* k_weight, double q_eps, double k_eps, const float* angles,
    i64 half) {
    return Projected{qkv, stride, static_cast<int>(wide), static_cast<int>(heads),
                     static_cast<int>(kv_heads), static_cast<int>(dim), q_weight, k_weight,
                     static_cast<float>(q_eps), static_cast<float>(k_eps), angles,
                     static_cast<int>(half)};
}

__device__ __forceinline__ void store_four(u16* to, uint2 bits) {
    *reinterpret_cast<uint2*>(to) = bits;
}

template <bool FOURS>
__device__ __forceinline__ Head<FOURS> turned(
    const Projected& from, const Turn& turn, i64 row, int index, int lane) {
    Head<FOURS> head;
    head.load(from, row, index, lane);
    head.turn(from, index, turn, lane);
    return head;
}

// Norm and turn q and k of each row; q goes to the queries, k and v to the paged cache. Grid: (rows,
// heads of [q | k | v] / BLOCK_HEADS).
extern "C" __global__ void __launch_bounds__(THREADS) rotary_cache_write(
    const void* qkv, i64 qkv_stride, i64 qkv_wide, const int* positions, const int* slots,
    const int* tables, i64 width, i64 heads, i64 kv_heads, i64 dim, const float* q_weight,
    const float* k_weight, double q_eps, double k_eps, const float* angles, i64 half, u16* queries,
    i64 queries_stride, u16* keys, u16* values, i64 block_tokens) {
    __shared__ __align__(16) Turn turn;
    const int lane = threadIdx.x % HEAD_LANES, count = static_cast<int>(heads + 2 * kv_heads);
    let_next_start();
    const i64 row = blockIdx.x;
    const int position = told_early(positions + row);
    const Projected from = projected(qkv, qkv_stride, qkv_wide, heads, kv_heads, dim, q_weight,
                                     k_weight, q_eps, k_eps, angles, half);
    turn.load<THREADS>(from, position);
    wait_for_previous();
    __syncthreads();
    const int item = blockIdx.y * BLOCK_HEADS + threadIdx.x / HEAD_LANES;
    const int index = min(item, count - 1);
    const Head<false> own = turned<false>(from, turn, row, index, lane);
    if (item >= count) return;
    if (from.is_query(index)) {
        u16* to = queries + row * queries_stride + index * dim;
        own.store([&](int i, uint2 bits) { if (i < dim) store_four(to + i, bits); }, lane);
        return;
    }
    const Pool pool{keys, values, tables + slots[row] * width, static_cast<u32>(block_tokens),
                    static_cast<u32>(kv_heads), static_cast<u32>((index - heads) % kv_heads)};
    u16* to = Cache{keys, values}.row(pool.row_of(static_cast<u32>(position)), from.is_value(index));
    own.store([&](int i, uint2 bits) { store_four(to + i, bits); }, lane);
}

// What a block works on: one span of one row, for sixteen heads or fewer of one head of keys.
struct Piece {
    int row, last, slot, first, head, part, held, heads;

    __device__ __forceinline__ Piece(
        const int* positions, const int* slots, i64 row0, i64 of_group) {
        const int group = static_cast<int>(of_group);
        const int parts = (group + TILE_HEADS - 1) / TILE_HEADS;
        row = static_cast<int>(row0) + blockIdx.z;
        last = told_early(positions + row);
        slot = told_early(slots + row);
        first = static_cast<int>(blockIdx.x) * SPAN;
        head = blockIdx.y / parts;
        part = blockIdx.y % parts;
        // Asks for the slot, too, before anything is waited for: else the compiler asks for it behind
        // the return of blocks that hold nothing, one more trip to memory. No slot is below zero.
        held = slot < 0 ? 0 : min(SPAN, last - first + 1);
        heads = min(TILE_HEADS, group - part * TILE_HEADS);
    }
};

// A span's partial result: values [16][HEAD_DIM], maxima [16], sums [16].
constexpr int PARTIAL = TILE_HEADS * (HEAD_DIM + 2);

// Shared memory of a block beside its span. Queries are in registers before weights are written.
struct Room {
    u32 rows[SPAN];
    float tops[WARPS][TILE_HEADS];
    float2 sums[WARPS][32];
    union {
        u32 weights[SPAN / 16][4][32];
        u16 queries[TILE_HEADS][HEAD_DIM + 8];
    };
    Turn turn;
};

// The maxima of a lane's heads, and the sums of all warps' weights in order.
__device__ __forceinline__ void store_ends(
    const Room& room, float low, float high, float* to) {
    const int lane = threadIdx.x, g = lane / 4;
    float total_low = room.sums[0][lane].x, total_high = room.sums[0][lane].y;
    for (int w = 1; w < WARPS; ++w) {
        total_low = __fadd_rn(total_low, room.sums[w][lane].x);
        total_high = __fadd_rn(total_high, room.sums[w][lane].y);
    }
    total_low = quad_sum(total_low);
    total_high = quad_sum(total_high);
    if (lane % 4 != 0) return;
    to[g] = low;
    to[g + 8] = high;
    to[TILE_HEADS + g] = total_low;
    to[TILE_HEADS + g + 8] = total_high;
}

// Units of values that a block's warps take at a time, two each, and how many times a warp takes its
// own side by side.
constexpr int BLOCK_UNITS = 2 * WARPS;
constexpr int TOGETHER = UNITS % (2 * BLOCK_UNITS) == 0 ? 2 : 1;

// The span's scores, weights and weighted values, to `to`.
__device__ __forceinline__ void attend_span(
    const Queries& queries, const SpanMemory& span, Room& room, const Piece& piece, float factor,
    float* to) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scores[16], low = NEGATIVE_INFINITY, high = NEGATIVE_INFINITY;
    score_keys<4>(scores, queries, span.keys, 32 * warp, piece.first, piece.last, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        low = fmaxf(low, fmaxf(scores[4 * n], scores[4 * n + 1]));
        high = fmaxf(high, fmaxf(scores[4 * n + 2], scores[4 * n + 3]));
    }
    low = quad_max(low);
    high = quad_max(high);
    if (t == 0) {
        room.tops[warp][g] = low;
        room.tops[warp][g + 8] = high;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        low = fmaxf(low, room.tops[w][g]);
        high = fmaxf(high, room.tops[w][g + 8]);
    }
    u32 own[2][4];
    float2 sum;
    weigh_keys(scores, offset_of(low, factor), offset_of(high, factor), factor, own, sum.x, sum.y);
    room.sums[warp][lane] = sum;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int c = 0; c < 4; ++c) room.weights[2 * warp + half][c][lane] = own[half][c];
    }
    __syncthreads();
    for (int unit = 2 * warp; unit < UNITS; unit += TOGETHER * BLOCK_UNITS) {
        float out[TOGETHER][2][4] = {};
#pragma unroll
        for (int j = 0; j < SPAN / 16; ++j) {
            u32 a[4], b[TOGETHER][4];
#pragma unroll
            for (int c = 0; c < 4; ++c) a[c] = room.weights[j][c][lane];
#pragma unroll
            for (int v = 0; v < TOGETHER; ++v) {
                load_values(b[v], span.values, 16 * j, unit + BLOCK_UNITS * v, lane);
            }
#pragma unroll
            for (int v = 0; v < TOGETHER; ++v) {
                mma(out[v][0], a[0], a[1], a[2], a[3], b[v][0], b[v][1]);
                mma(out[v][1], a[0], a[1], a[2], a[3], b[v][2], b[v][3]);
            }
        }
#pragma unroll
        for (int c = 0; c < 4; c += 2) {
            if (g + 4 * c >= piece.heads) continue;
            float* row = to + (g + 4 * c) * HEAD_DIM + 8 * unit + 2 * t;
#pragma unroll
            for (int i = 0; i < 2 * TOGETHER; ++i) {
                const float(&own)[4] = out[i / 2][i % 2];
                *reinterpret_cast<float2*>(row + 8 * (BLOCK_UNITS * (i / 2) + i % 2)) =
                    make_float2(own[c], own[c + 1]);
            }
        }
    }
    if (warp == 0) store_ends(room, low, high, to + TILE_HEADS * HEAD_DIM);
}

__device__ __forceinline__ float* partial_of(float* partials) {
    const i64 tile = static_cast<i64>(blockIdx.z) * gridDim.y + blockIdx.y;
    return partials + (tile * gridDim.x + blockIdx.x) * PARTIAL;
}

// Grid: (spans, kv heads and sixteen of their heads, rows). Keys that none of the step's `fresh` rows
// can have written are asked for before the kernels in front have ended: what tells of them stood
// before the step's first kernel began.
extern "C" __global__ void __launch_bounds__(THREADS) attend_split(
    const u16* queries, i64 queries_stride, const int* positions, const int* slots,
    const int* tables, i64 width, i64 row0, i64 fresh, i64 group, i64 kv_heads, i64 dim,
    double scale, const u16* keys, const u16* values, i64 block_tokens, float* partials) {
    extern __shared__ __align__(16) u8 memory[];
    __shared__ Room room;
    let_next_start();
    const Piece piece(positions, slots, row0, group);
    if (piece.held <= 0) return;
    const Pool pool{keys, values, tables + piece.slot * width,
                    static_cast<u32>(block_tokens), static_cast<u32>(kv_heads),
                    static_cast<u32>(piece.head)};
    const SpanMemory span(memory, room.rows);
    span.find(pool, piece.first, piece.held);
    __syncthreads();
    const int old = max(0, min(piece.held, piece.last - piece.first + 1 - static_cast<int>(fresh)));
    span.copy<THREADS>(pool, 0, old);
    span.clear<THREADS>(piece.held);
    wait_for_previous();
    span.copy<THREADS>(pool, old, piece.held);
    copy_commit();
    const int head0 = piece.head * static_cast<int>(group) + piece.part * TILE_HEADS;
    Queries mine;
    mine.load(queries + piece.row * queries_stride + head0 * dim, piece.heads,
              static_cast<int>(dim), static_cast<int>(dim), threadIdx.x % 32);
    copy_wait<0>();
    __syncthreads();
    const float factor = static_cast<float>(scale * 1.4426950408889634);
    attend_span(mine, span, room, piece, factor, partial_of(partials));
}

// The row's own heads: queries to the room; where its own position is in the span, key and value to
// their places there and in the cache. Head `item` of the block is that of a query, then the key's,
// then the value's.
struct RowHeads {
    int queries, first, key, value, own;

    __device__ __forceinline__ RowHeads(const Projected& from, const Piece& piece, int group)
        : queries(piece.heads), first(piece.head * group + piece.part * TILE_HEADS),
          key(from.heads + piece.head), value(key + from.kv_heads), own(piece.last - piece.first) {}

    __device__ __forceinline__ int count() const { return queries + (own < SPAN ? 2 : 0); }
    __device__ __forceinline__ int index(int item) const {
        return item < queries ? first + item : item == queries ? key : value;
    }
};

__device__ __forceinline__ void take_row(
    const Projected& from, const Piece& piece, const RowHeads& heads, const SpanMemory& span,
    Room& room, const Cache& cache) {
    const int count = heads.count(), lane = threadIdx.x % HEAD_LANES;
    const int of_warp = threadIdx.x % 32 / HEAD_LANES;
#pragma unroll 1
    for (int first = threadIdx.x / 32 * WARP_HEADS; first < count; first += BLOCK_HEADS) {
        const int item = first + of_warp, index = heads.index(min(item, count - 1));
        const Head<true> head = turned<true>(from, room.turn, piece.row, index, lane);
        if (item >= count) continue;
        if (item < heads.queries) {
            u16* to = room.queries[item];
            head.store([&](int i, uint2 bits) { store_four(to + i, bits); }, lane);
            continue;
        }
        const bool is_value = item > heads.queries;
        u16* there = cache.row(room.rows[heads.own], is_value);
        u16* here = reinterpret_cast<u16*>(is_value ? span.values : span.keys);
        head.store([&](int i, uint2 bits) {
            store_four(here + 8 * place(heads.own, i / 8) + i % 8, bits);
            if (piece.part == 0) store_four(there + i, bits);
        }, lane);
    }
}

// Blocks of attend_new whose shared memory a processor has room for; so many registers it may take.
constexpr int NEW_BLOCKS = HEAD_DIM <= 128 ? 3 : 1;

// As rotary_cache_write and attend_split, where every row has a slot of its own.
extern "C" __global__ void __launch_bounds__(THREADS, NEW_BLOCKS) attend_new(
    const void* qkv, i64 qkv_stride, i64 qkv_wide, const int* positions, const int* slots,
    const int* tables, i64 width, i64 row0, i64 group, i64 kv_heads, i64 dim, double scale,
    const float* q_weight, const float* k_weight, double q_eps, double k_eps, const float* angles,
    i64 half, u16* keys, u16* values, i64 block_tokens, float* partials) {
    extern __shared__ __align__(16) u8 memory[];
    __shared__ __align__(16) Room room;
    let_next_start();
    const Piece piece(positions, slots, row0, group);
    if (piece.held <= 0) return;
    const Pool pool{keys, values, tables + piece.slot * width,
                    static_cast<u32>(block_tokens), static_cast<u32>(kv_heads),
                    static_cast<u32>(piece.head)};
    const SpanMemory span(memory, room.rows);
    span.find(pool, piece.first, piece.held);
    const Projected from = projected(qkv, qkv_stride, qkv_wide, group * kv_heads, kv_heads, dim,
                                     q_weight, k_weight, q_eps, k_eps, angles, half);
    room.turn.load<THREADS>(from, piece.last);
    __syncthreads();
    const RowHeads heads(from, piece, static_cast<int>(group));
    span.copy<THREADS>(pool, 0, min(heads.own, SPAN));
    copy_commit();
    span.clear<THREADS>(piece.held);
    const float factor = static_cast<float>(scale * 1.4426950408889634);
    // No first pass: blocks find room just before what they wait for ends, and it would hold them up.
    wait_for_previous();
    take_row(from, piece, heads, span, room, Cache{keys, values});
    copy_wait<0>();
    __syncthreads();
    Queries mine;
    mine.load(room.queries[0], piece.heads, from.dim, HEAD_DIM + 8, threadIdx.x % 32);
    attend_span(mine, span, room, piece, factor, partial_of(partials));
}

// Spans whose factors a warp finds at once; of their values, as many are on their way at once, in
// groups of which those that are whole are followed by the rest.
constexpr int ROUND = 128, AT_ONCE = 64, GROUP = 8, OF_LANE = ROUND / 32;

// What a warp knows of its spans: all warps of a block find the same and wait for none.
struct MergeRoom {
    float2 factors[HEAD_DIM / 32][ROUND];
    float sums[HEAD_DIM / 32][ROUND];
};

// The maxima and sums of `count` spans, OF_LANE a lane; where there are fewer, the last once more.
struct Ends {
    float top[OF_LANE], sum[OF_LANE];

    __device__ __forceinline__ void load(const float* ends, int count, int lane) {
#pragma unroll
        for (int i = 0; i < OF_LANE; ++i) {
            const float* from = ends + min(OF_LANE * lane + i, count - 1) * PARTIAL;
            top[i] = __ldcg(from);
            sum[i] = __ldcg(from + TILE_HEADS);
        }
    }

    // Sums and factors, to the warp's room; `before` is the maximum of all spans in front of these,
    // and then of these too.
    __device__ __forceinline__ void scan(
        float2* factors, float* sums, float& before, float factor, int lane) const {
        float reached = top[0];
#pragma unroll
        for (int i = 1; i < OF_LANE; ++i) reached = fmaxf(reached, top[i]);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, reached, step);
            if (lane >= step) reached = fmaxf(reached, other);
        }
        const float other = __shfl_up_sync(0xffffffffu, reached, 1);
        float highest = lane == 0 ? before : fmaxf(before, other);
        before = fmaxf(before, __shfl_sync(0xffffffffu, reached, 31));
#pragma unroll
        for (int i = 0; i < OF_LANE; ++i) {
            const Merge merge(highest, top[i], factor);
            highest = merge.top;
            factors[OF_LANE * lane + i] = make_float2(merge.old_factor, merge.new_factor);
            sums[OF_LANE * lane + i] = sum[i];
        }
    }
};

// A head's merged value of a thread, and the sum of its weights.
struct Merged {
    float value, sum;

    __device__ __forceinline__ void take(float other, float other_sum, float2 by) {
        sum = __fmaf_rn(other_sum, by.y, __fmul_rn(sum, by.x));
        value = __fmaf_rn(other, by.y, __fmul_rn(value, by.x));
    }
};

// `count` spans whose factors and sums are known. Loads begin before others' values are used; where
// it does not count, nothing is read, but all code runs.
struct Taken {
    float value[AT_ONCE], rest[GROUP];

    __device__ __forceinline__ void load_group(const float* values, int group) {
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
            value[GROUP * group + i] = __ldcg(values + (GROUP * group + i) * PARTIAL);
        }
    }

    __device__ __forceinline__ void load(const float* values, int count) {
#pragma unroll
        for (int g = 0; g < AT_ONCE / GROUP; ++g) {
            if (GROUP * (g + 1) > count) break;
            load_group(values, g);
        }
        const float* last = values + count / GROUP * GROUP * PARTIAL;
#pragma unroll
        for (int i = 0; i + 1 < GROUP; ++i) {
            if (i < count % GROUP) rest[i] = __ldcg(last + i * PARTIAL);
        }
    }

    __device__ __forceinline__ void merge(
        Merged& into, const float* values, int count, const float2* factors, const float* sums,
        bool counts) {
#pragma unroll 1
        for (int at = 0; at + GROUP <= count; at += AT_ONCE) {
            const float* following = values + (at + AT_ONCE) * PARTIAL;
#pragma unroll
            for (int g = 0; g < AT_ONCE / GROUP; ++g) {
                const int end = at + GROUP * (g + 1);
                if (end > count) break;
#pragma unroll
                for (int i = GROUP * g; i < GROUP * (g + 1); ++i) {
                    into.take(value[i], sums[at + i], factors[at + i]);
                }
                if (end + AT_ONCE <= count && counts) load_group(following, g);
            }
        }
        const int whole = count / GROUP * GROUP;
#pragma unroll
        for (int i = 0; i + 1 < GROUP; ++i) {
            if (whole + i >= count) break;
            into.take(rest[i], sums[whole + i], factors[whole + i]);
        }
    }
};

// A head's merged value of this thread, of `held` spans; `ends` are their maxima, and TILE_HEADS
// behind them their sums.
__device__ __forceinline__ float merge_head(
    MergeRoom& room, const float* values, const float* ends, int held, float factor, bool counts) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float top = NEGATIVE_INFINITY;
    Merged merged{0.0f, 0.0f};
#pragma unroll 1
    for (int first = 0; first < held; first += ROUND) {
        const int count = min(ROUND, held - first);
        const float* here = values + static_cast<i64>(first) * PARTIAL;
        Ends own{};
        Taken taken{};
        if (counts) {
            own.load(ends + static_cast<i64>(first) * PARTIAL, count, lane);
            taken.load(here, count);
        }
        // A lane may still read the spans in front.
        __syncwarp();
        own.scan(room.factors[warp], room.sums[warp], top, factor, lane);
        __syncwarp();
        taken.merge(merged, here, count, room.factors[warp], room.sums[warp], counts);
    }
    return __fdiv_rn(merged.value, merged.sum);
}

// Blocks that find room at once. More come in turns, and the later ones do not wait: they would run
// twice for nothing.
constexpr u32 FEW_BLOCKS = 256;

// Merge a row's spans in order. One block of HEAD_DIM threads per (head, row).
extern "C" __global__ void __launch_bounds__(HEAD_DIM) attend_merge(
    const float* partials, i64 spans, const int* positions, i64 row0, i64 group, i64 kv_heads,
    i64 dim, double scale, u16* out, i64 out_stride) {
    __shared__ MergeRoom room;
    let_next_start();
    const int of_group = static_cast<int>(group), head = blockIdx.x, inner = head % of_group;
    const int blocks = (of_group + TILE_HEADS - 1) / TILE_HEADS;
    const i64 row = row0 + blockIdx.y, tile = head / of_group * blocks + inner / TILE_HEADS;
    const float factor = static_cast<float>(scale * 1.4426950408889634);
    const int held = told_early(positions + row) / SPAN + 1;
    const float* from = partials + (blockIdx.y * kv_heads * blocks + tile) * spans * PARTIAL;
    const float* values = from + inner % TILE_HEADS * HEAD_DIM + threadIdx.x;
    const float* ends = from + TILE_HEADS * HEAD_DIM + inner % TILE_HEADS;
#pragma unroll 1
    for (int pass = gridDim.x * gridDim.y <= FEW_BLOCKS ? 0 : 1; pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        const float merged = merge_head(room, values, ends, held, factor, counts);
        if (static_cast<int>(threadIdx.x) < dim && counts) {
            out[row * out_stride + head * dim + threadIdx.x] =
                static_cast<u16>(pack_bf16(merged, 0.0f));
        }
    }
}
