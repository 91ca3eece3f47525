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

// Blocks that find room at once. More come in turns, and the later ones do not wait: they would run
// twice for nothing.
constexpr u32 FEW_BLOCKS = 256;

__device__ __forceinline__ int first_pass_of_split() {
    return gridDim.x * gridDim.y * gridDim.z <= FEW_BLOCKS ? 0 : 1;
}

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

// Norm and turn q and k of each row; q goes to the queries, k and v to the paged cache. One warp per
// head of [q | k | v]. Grid: (rows, heads / WARPS).
extern "C" __global__ void __launch_bounds__(THREADS) rotary_cache_write(
    const void* qkv, i64 qkv_stride, i64 qkv_wide, const int* positions, const int* slots,
    const int* tables, i64 width, i64 heads, i64 kv_heads, i64 dim, const float* q_weight,
    const float* k_weight, double q_eps, double k_eps, const float* angles, i64 half, u16* queries,
    i64 queries_stride, u16* keys, u16* values, i64 block_tokens) {
    __shared__ float rooms[WARPS][HEAD_DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    wait_for_previous();
    const int index = blockIdx.y * WARPS + warp;
    if (index >= heads + 2 * kv_heads) return;
    const i64 row = blockIdx.x;
    const int position = positions[row];
    const Projected from = projected(qkv, qkv_stride, qkv_wide, heads, kv_heads, dim, q_weight,
                                     k_weight, q_eps, k_eps, angles, half);
    Head own;
    own.load(from, row, index, lane);
    Turn turn;
    turn.load(from, position, lane);
    own.turn(from, index, turn, rooms[warp], lane);
    if (from.is_query(index)) {
        u16* to = queries + row * queries_stride + index * dim;
        own.store([&](int i, u16 bits) { if (i < dim) to[i] = bits; }, lane);
        return;
    }
    const Pool pool{keys, values, tables + slots[row] * width, static_cast<u32>(block_tokens),
                    static_cast<u32>(kv_heads), static_cast<u32>((index - heads) % kv_heads)};
    u16* to = Cache{keys, values}.row(pool.row_of(static_cast<u32>(position)), from.is_value(index));
    own.store([&](int i, u16 bits) { to[i] = bits; }, lane);
}

// What a block works on: one span of one row, for sixteen heads or fewer of one head of keys.
struct Piece {
    int row, last, first, head, part, held, heads;

    __device__ __forceinline__ Piece(const int* positions, i64 row0, i64 of_group) {
        const int group = static_cast<int>(of_group);
        const int parts = (group + TILE_HEADS - 1) / TILE_HEADS;
        row = static_cast<int>(row0) + blockIdx.z;
        last = told_early(positions + row);
        first = static_cast<int>(blockIdx.x) * SPAN;
        head = blockIdx.y / parts;
        part = blockIdx.y % parts;
        held = min(SPAN, last - first + 1);
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
    float heads[WARPS][HEAD_DIM];
};

// The maxima of a lane's heads, and the sums of all warps' weights in order.
__device__ __forceinline__ void store_ends(
    const Room& room, float low, float high, float* to, bool counts) {
    const int lane = threadIdx.x, g = lane / 4;
    float total_low = room.sums[0][lane].x, total_high = room.sums[0][lane].y;
    for (int w = 1; w < WARPS; ++w) {
        total_low = __fadd_rn(total_low, room.sums[w][lane].x);
        total_high = __fadd_rn(total_high, room.sums[w][lane].y);
    }
    total_low = quad_sum(total_low);
    total_high = quad_sum(total_high);
    if (lane % 4 != 0 || !counts) return;
    to[g] = low;
    to[g + 8] = high;
    to[TILE_HEADS + g] = total_low;
    to[TILE_HEADS + g + 8] = total_high;
}

// The span's scores, weights and weighted values, to `to`.
__device__ __forceinline__ void attend_span(
    const Queries& queries, const SpanMemory& span, Room& room, const Piece& piece, float factor,
    float* to, bool counts = true) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scores[16], low = NEGATIVE_INFINITY, high = NEGATIVE_INFINITY;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        float* score = scores + 4 * n;
        score_keys(score, queries, span.keys, 32 * warp + 8 * n, piece.first, piece.last, lane);
        low = fmaxf(low, fmaxf(score[0], score[1]));
        high = fmaxf(high, fmaxf(score[2], score[3]));
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
    for (int unit = 2 * warp; unit < UNITS; unit += 2 * WARPS) {
        float out[2][4] = {};
#pragma unroll
        for (int j = 0; j < SPAN / 16; ++j) {
            u32 b[4];
            load_values(b, span.values, 16 * j, unit, lane);
            const u32 a0 = room.weights[j][0][lane], a1 = room.weights[j][1][lane];
            const u32 a2 = room.weights[j][2][lane], a3 = room.weights[j][3][lane];
            mma(out[0], a0, a1, a2, a3, b[0], b[1]);
            mma(out[1], a0, a1, a2, a3, b[2], b[3]);
        }
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            float2* row = reinterpret_cast<float2*>(to + g * HEAD_DIM + 8 * (unit + u) + 2 * t);
            if (g < piece.heads && counts) row[0] = make_float2(out[u][0], out[u][1]);
            if (g + 8 < piece.heads && counts) {
                row[4 * HEAD_DIM] = make_float2(out[u][2], out[u][3]);
            }
        }
    }
    if (warp == 0) store_ends(room, low, high, to + TILE_HEADS * HEAD_DIM, counts);
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
    const Piece piece(positions, row0, group);
    if (piece.held <= 0) return;
    const Pool pool{keys, values, tables + told_early(slots + piece.row) * width,
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
    const Projected& from, const Piece& piece, const RowHeads& heads, const Turn& turn,
    const SpanMemory& span, Room& room, const Cache& cache, bool counts) {
    constexpr int ROUNDS = (TILE_HEADS + 2 + WARPS - 1) / WARPS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = heads.count();
    Head held[ROUNDS];
    // All are on their way before the first is used.
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        const int item = warp + WARPS * r;
        if (item < count) held[r].load(from, piece.row, heads.index(item), lane);
    }
    // One after the other moves to the front: so the code stands there once.
#pragma unroll 1
    for (int item = warp; item < count; item += WARPS) {
        Head head = held[0];
#pragma unroll
        for (int r = 0; r + 1 < ROUNDS; ++r) held[r] = held[r + 1];
        head.turn(from, heads.index(item), turn, room.heads[warp], lane);
        if (item < heads.queries) {
            u16* to = room.queries[item];
            head.store([&](int i, u16 bits) { to[i] = bits; }, lane);
            continue;
        }
        const bool is_value = item > heads.queries;
        u16* there = cache.row(room.rows[heads.own], is_value);
        u16* here = reinterpret_cast<u16*>(is_value ? span.values : span.keys);
        head.store([&](int i, u16 bits) {
            here[8 * place(heads.own, i / 8) + i % 8] = bits;
            if (piece.part == 0 && counts) there[i] = bits;
        }, lane);
    }
}

// As rotary_cache_write and attend_split, where every row has a slot of its own.
extern "C" __global__ void __launch_bounds__(THREADS) attend_new(
    const void* qkv, i64 qkv_stride, i64 qkv_wide, const int* positions, const int* slots,
    const int* tables, i64 width, i64 row0, i64 group, i64 kv_heads, i64 dim, double scale,
    const float* q_weight, const float* k_weight, double q_eps, double k_eps, const float* angles,
    i64 half, u16* keys, u16* values, i64 block_tokens, float* partials) {
    extern __shared__ __align__(16) u8 memory[];
    __shared__ Room room;
    let_next_start();
    const Piece piece(positions, row0, group);
    if (piece.held <= 0) return;
    const Pool pool{keys, values, tables + told_early(slots + piece.row) * width,
                    static_cast<u32>(block_tokens), static_cast<u32>(kv_heads),
                    static_cast<u32>(piece.head)};
    const SpanMemory span(memory, room.rows);
    span.find(pool, piece.first, piece.held);
    const Projected from = projected(qkv, qkv_stride, qkv_wide, group * kv_heads, kv_heads, dim,
                                     q_weight, k_weight, q_eps, k_eps, angles, half);
    Turn turn;
    turn.load(from, piece.last, threadIdx.x % 32);
    __syncthreads();
    const RowHeads heads(from, piece, static_cast<int>(group));
    span.copy<THREADS>(pool, 0, min(heads.own, SPAN));
    copy_commit();
    span.clear<THREADS>(piece.held);
    const float factor = static_cast<float>(scale * 1.4426950408889634);
#pragma unroll 1
    for (int pass = first_pass_of_split(); pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        // What follows writes over what the pass before has read.
        __syncthreads();
        take_row(from, piece, heads, turn, span, room, Cache{keys, values}, counts);
        if (counts) copy_wait<0>();
        __syncthreads();
        Queries mine;
        mine.load(room.queries[0], piece.heads, from.dim, HEAD_DIM + 8, threadIdx.x % 32);
        attend_span(mine, span, room, piece, factor, partial_of(partials), counts);
    }
}

// The largest of all values up to this thread's, of HEAD_DIM threads.
__device__ __forceinline__ float running_top(float value, float* warps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value = fmaxf(value, before);
    }
    if (lane == 31) warps[warp] = value;
    __syncthreads();
    for (int w = 0; w < warp; ++w) value = fmaxf(value, warps[w]);
    return value;
}

// A thread's value in some consecutive spans. Loads begin together, and before others are used.
constexpr int AT_ONCE = 8;

struct Taken {
    float value[AT_ONCE];

    __device__ __forceinline__ void load(const float* values, int at, int count) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (at + i < count) value[i] = __ldcg(values + (at + i) * PARTIAL);
        }
    }
};

struct MergeRoom {
    float tops[HEAD_DIM + 1], sums[HEAD_DIM], warps[HEAD_DIM / 32];
    float2 factors[HEAD_DIM];
};

// A head's merged value of this thread, of `held` spans; `ends` are their maxima, and TILE_HEADS
// behind them their sums. Of HEAD_DIM spans at a time each thread finds one's factors.
__device__ __forceinline__ float merge_head(
    MergeRoom& room, const float* values, const float* ends, int held, float factor) {
    float top = NEGATIVE_INFINITY, sum = 0.0f, value = 0.0f;
#pragma unroll 1
    for (int first = 0; first < held; first += HEAD_DIM) {
        const int count = min(HEAD_DIM, held - first);
        Taken taken;
        taken.load(values + static_cast<i64>(first) * PARTIAL, 0, count);
        const i64 mine = static_cast<i64>(first + min(static_cast<int>(threadIdx.x), count - 1)) * PARTIAL;
        const float own = __ldcg(ends + mine);
        room.sums[threadIdx.x] = __ldcg(ends + mine + TILE_HEADS);
        const float reached = fmaxf(top, running_top(own, room.warps));
        room.tops[threadIdx.x + 1] = reached;
        if (threadIdx.x == 0) room.tops[0] = top;
        __syncthreads();
        const Merge merge(room.tops[threadIdx.x], own, factor);
        room.factors[threadIdx.x] = make_float2(merge.old_factor, merge.new_factor);
        top = room.tops[count];
        __syncthreads();
#pragma unroll 1
        for (int at = 0; at < count; at += AT_ONCE) {
            Taken following;
            following.load(values + static_cast<i64>(first) * PARTIAL, at + AT_ONCE, count);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (at + i >= count) continue;
                const float2 by = room.factors[at + i];
                sum = __fmaf_rn(room.sums[at + i], by.y, __fmul_rn(sum, by.x));
                value = __fmaf_rn(taken.value[i], by.y, __fmul_rn(value, by.x));
            }
            taken = following;
        }
        __syncthreads();
    }
    return __fdiv_rn(value, sum);
}

// Merge a row's spans in order. One block of HEAD_DIM threads per (head, row).
extern "C" __global__ void __launch_bounds__(HEAD_DIM) attend_merge(
    const float* partials, i64 spans, const int* positions, i64 row0, i64 group, i64 kv_heads,
    i64 dim, double scale, u16* out, i64 out_stride) {
    __shared__ MergeRoom room;
    let_next_start();
    const i64 blocks = (group + TILE_HEADS - 1) / TILE_HEADS;
    const i64 row = row0 + blockIdx.y, head = blockIdx.x, inner = head % group;
    const i64 tile = head / group * blocks + inner / TILE_HEADS;
    const float factor = static_cast<float>(scale * 1.4426950408889634);
    const int held = told_early(positions + row) / SPAN + 1;
    const float* from = partials + (blockIdx.y * kv_heads * blocks + tile) * spans * PARTIAL;
    const float* values = from + inner % TILE_HEADS * HEAD_DIM + threadIdx.x;
    const float* ends = from + TILE_HEADS * HEAD_DIM + inner % TILE_HEADS;
#pragma unroll 1
    for (int pass = gridDim.x * gridDim.y <= FEW_BLOCKS ? 0 : 1; pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        const float merged = merge_head(room, values, ends, counts ? held : 1, factor);
        if (static_cast<int>(threadIdx.x) < dim && counts) {
            out[row * out_stride + head * dim + threadIdx.x] =
                static_cast<u16>(pack_bf16(merged, 0.0f));
        }
    }
}
