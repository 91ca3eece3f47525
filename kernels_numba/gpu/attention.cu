// Rotary with cache write, and grouped-query attention of few rows over paged keys and values.
// Launched by attend.py and, rotary_cache_write, by backend.py.
// The same on the CPU: cpu/rotary.py, cpu/attention.py, cpu/span.py. Oracle:
// tests/unit/kernels/test_attention.py.
//
// All kernels, attend_shared.cu's and attend_hopper.cu's too, compute a span by the same
// instructions, so a row's bits do not depend on which of them ran.
#include "common.cuh"
#include "attention.cuh"
#include "span.cuh"
#include "rotary.cuh"

constexpr int WARPS = 4;  // each scores a quarter of a span's keys
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
__device__ __forceinline__ Head<FOURS> rotated(
    const Projected& from, const Rotation& by, i64 row, int index, int lane) {
    Head<FOURS> head;
    head.load(from, row, index, lane);
    head.rotate(from, index, by, lane);
    return head;
}

// Norm and rotate q and k of each row; q goes to the queries, k and v to the paged cache. Grid: (rows,
// heads of [q | k | v] / BLOCK_HEADS).
extern "C" __global__ void __launch_bounds__(THREADS) rotary_cache_write(
    const void* qkv, i64 qkv_stride, i64 qkv_wide, const int* positions, const int* slots,
    const int* tables, i64 width, i64 heads, i64 kv_heads, i64 dim, const float* q_weight,
    const float* k_weight, double q_eps, double k_eps, const float* angles, i64 half, u16* queries,
    i64 queries_stride, u16* keys, u16* values, i64 block_tokens) {
    __shared__ __align__(16) Rotation rotation;
    const int lane = threadIdx.x % HEAD_LANES, count = static_cast<int>(heads + 2 * kv_heads);
    let_next_start();
    const i64 row = blockIdx.x;
    const int position = told_early(positions + row);
    const Projected from = projected(qkv, qkv_stride, qkv_wide, heads, kv_heads, dim, q_weight,
                                     k_weight, q_eps, k_eps, angles, half);
    rotation.load<THREADS>(from, position);
    wait_for_previous();
    __syncthreads();
    const int item = blockIdx.y * BLOCK_HEADS + threadIdx.x / HEAD_LANES;
    const int index = min(item, count - 1);
    const Head<false> own = rotated<false>(from, rotation, row, index, lane);
    if (item >= count) return;
    if (from.is_query(index)) {
        u16* to = queries + row * queries_stride + index * dim;
        own.store([&](int i, uint2 bits) { if (i < dim) store_four(to + i, bits); }, lane);
        return;
    }
    const Pool pool{keys, values, tables + slots[row] * width, static_cast<u32>(block_tokens),
                    static_cast<u32>(kv_heads), static_cast<u32>((index - heads) % kv_heads)};
    const u32 at = pool.row_of_position(static_cast<u32>(position));
    u16* to = Cache{keys, values}.row(at, from.is_value(index));
    own.store([&](int i, uint2 bits) { store_four(to + i, bits); }, lane);
}

// A span's partial result: values [16][HEAD_DIM], maxima [16], sums [16].
constexpr int PARTIAL = TILE_HEADS * (HEAD_DIM + 2);

// What a block works on: a span of one row, for sixteen heads or fewer of one head of keys. Block 0 has
// the row's last span, the next the one before, and so on; where spans are more than gridDim.x, blocks
// go on with those as far back again.
struct Piece {
    int row, last, slot, first, head, part, held, heads;

    __device__ __forceinline__ Piece(
        const int* positions, const int* slots, i64 row0, i64 of_group) {
        const int group = static_cast<int>(of_group);
        const int parts = (group + TILE_HEADS - 1) / TILE_HEADS;
        row = static_cast<int>(row0) + blockIdx.z;
        last = told_early(positions + row);
        slot = told_early(slots + row);
        first = (last / SPAN - static_cast<int>(blockIdx.x)) * SPAN;
        head = blockIdx.y / parts;
        part = blockIdx.y % parts;
        // Asks for the slot, too, before anything is waited for: else the compiler asks for it behind
        // the return of blocks that hold nothing, one more trip to memory. No slot is below zero.
        held = slot < 0 || first < 0 ? 0 : min(SPAN, last - first + 1);
        heads = min(TILE_HEADS, group - part * TILE_HEADS);
    }

    // This block's next span; below zero where there is none.
    __device__ __forceinline__ int following() const {
        return first - SPAN * static_cast<int>(gridDim.x);
    }
    // Whether other blocks take more spans than this one.
    __device__ __forceinline__ bool takes_less() const {
        return following() < 0 && last / SPAN >= static_cast<int>(gridDim.x);
    }
    __device__ __forceinline__ float* partial(float* partials, i64 spans) const {
        const i64 tile = static_cast<i64>(blockIdx.z) * gridDim.y + blockIdx.y;
        return partials + (tile * spans + first / SPAN) * PARTIAL;
    }
};

// Values between two heads of queries in shared memory: eight more than a head has, so that lanes which
// read one word of each meet no bank twice.
constexpr int QUERY_PITCH = HEAD_DIM + 8;

// Shared memory of a block beside its span. Queries are in registers before weights are written.
struct Room {
    u32 rows[SPAN];
    float tops[WARPS][TILE_HEADS];
    float2 sums[WARPS][32];
    union {
        u32 weights[SPAN / 16][4][32];
        u16 queries[TILE_HEADS][QUERY_PITCH];
    };
    Rotation rotation;
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

// A block's only span, which is there as a whole.
struct Alone {
    __device__ __forceinline__ void find() const {}
    __device__ __forceinline__ void ask_keys() const {}
    __device__ __forceinline__ void wait_values() const {}
};

// The span that follows in a block, whole and in the cache, if there is one. Its keys are asked for when
// this one's have been read, and its values likewise. A group of copies is counted even where it is
// empty.
struct Following {
    const SpanMemory& span;
    const Pool& pool;
    const int first;
    // Which row of the pool is this thread's.
    u32 row;

    __device__ __forceinline__ Following(const SpanMemory& of, const Pool& from, const Piece& piece)
        : span(of), pool(from), first(piece.following()), row(0) {
        if (first >= 0) row = pool.row_of_position(static_cast<u32>(first) + threadIdx.x);
    }

    __device__ __forceinline__ void find() const { span.rows[threadIdx.x] = row; }

    __device__ __forceinline__ void ask(const u16* from, uint4* to) const {
        if (first >= 0) span.copy<THREADS>(from, to, 0, SPAN);
        copy_commit();
    }
    __device__ __forceinline__ void ask_keys() const { ask(pool.keys, span.keys); }
    __device__ __forceinline__ void ask_values() const { ask(pool.values, span.values); }
    // This span's; the next one's keys may still be on their way.
    __device__ __forceinline__ void wait_values() const { copy_wait<1>(); }
};

// The span's scores, weights and weighted values, to `to`.
template <class NEXT>
__device__ __forceinline__ void attend_span(
    const Queries& queries, const SpanMemory& span, Room& room, const Piece& piece, float factor,
    float* to, const NEXT& next) {
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
    next.find();
    __syncthreads();
    next.ask_keys();
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
    next.wait_values();
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

// Grid: (spans, kv heads and sixteen of their heads, rows). Keys that none of the step's `fresh` rows
// can have written are asked for before the kernels in front have ended: what tells of them stood
// before the step's first kernel began.
extern "C" __global__ void __launch_bounds__(THREADS) attend_split(
    const u16* queries, i64 queries_stride, const int* positions, const int* slots,
    const int* tables, i64 width, i64 row0, i64 fresh, i64 group, i64 kv_heads, i64 dim,
    double scale, const u16* keys, const u16* values, i64 block_tokens, float* partials,
    i64 spans) {
    extern __shared__ __align__(128) u8 memory[];
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
    span.copy<THREADS>(keys, span.keys, 0, old);
    span.copy<THREADS>(values, span.values, 0, old);
    span.clear<THREADS>(span.keys, piece.held);
    span.clear<THREADS>(span.values, piece.held);
    wait_for_previous();
    span.copy<THREADS>(keys, span.keys, old, piece.held);
    span.copy<THREADS>(values, span.values, old, piece.held);
    copy_commit();
    const int head0 = piece.head * static_cast<int>(group) + piece.part * TILE_HEADS;
    Queries mine;
    mine.load(queries + piece.row * queries_stride + head0 * dim, piece.heads,
              static_cast<int>(dim), static_cast<int>(dim), threadIdx.x % 32);
    copy_wait<0>();
    __syncthreads();
    const float factor = score_factor(scale);
    attend_span(mine, span, room, piece, factor, piece.partial(partials, spans), Alone{});
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
        const Head<true> head = rotated<true>(from, room.rotation, piece.row, index, lane);
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

// Blocks of attend_new for which a processor has registers: of more than its shared memory has room for,
// so that other kernels' find theirs.
constexpr int NEW_BLOCKS = HEAD_DIM <= 128 ? 4 : 1;

// As rotary_cache_write and attend_split, where every row has a slot of its own. The grid has as many
// spans as find room at once, or fewer: blocks take more in turn, one's loads under the other's
// products.
extern "C" __global__ void __launch_bounds__(THREADS, NEW_BLOCKS) attend_new(
    const void* qkv, i64 qkv_stride, i64 qkv_wide, const int* positions, const int* slots,
    const int* tables, i64 width, i64 row0, i64 group, i64 kv_heads, i64 dim, double scale,
    const float* q_weight, const float* k_weight, double q_eps, double k_eps, const float* angles,
    i64 half, u16* keys, u16* values, i64 block_tokens, float* partials, i64 spans) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(16) Room room;
    let_next_start();
    Piece piece(positions, slots, row0, group);
    if (piece.held <= 0) return;
    const Pool pool{keys, values, tables + piece.slot * width,
                    static_cast<u32>(block_tokens), static_cast<u32>(kv_heads),
                    static_cast<u32>(piece.head)};
    const SpanMemory span(memory, room.rows);
    span.find(pool, piece.first, piece.held);
    const Projected from = projected(qkv, qkv_stride, qkv_wide, group * kv_heads, kv_heads, dim,
                                     q_weight, k_weight, q_eps, k_eps, angles, half);
    room.rotation.load<THREADS>(from, piece.last);
    __syncthreads();
    const int cached = min(piece.last - piece.first, SPAN);
    span.copy<THREADS>(keys, span.keys, 0, cached);
    copy_commit();
    // Values of blocks that are done with one span wait until the row has been read: those that go on
    // have theirs the sooner.
    const bool later = piece.takes_less();
    if (!later) span.copy<THREADS>(values, span.values, 0, cached);
    span.clear<THREADS>(span.keys, piece.held);
    span.clear<THREADS>(span.values, piece.held);
    const RowHeads heads(from, piece, static_cast<int>(group));
    const float factor = score_factor(scale);
    // No first pass: blocks find room just before what they wait for ends, and it would hold them up.
    wait_for_previous();
    take_row(from, piece, heads, span, room, Cache{keys, values});
    if (later) span.copy<THREADS>(values, span.values, 0, cached);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    Queries mine;
    mine.load(room.queries[0], piece.heads, from.dim, QUERY_PITCH, threadIdx.x % 32);
#pragma unroll 1
    for (;; piece.first = piece.following()) {
        const Following next(span, pool, piece);
        attend_span(mine, span, room, piece, factor, piece.partial(partials, spans), next);
        if (next.first < 0) return;
        // By now all have read the values.
        __syncthreads();
        next.ask_values();
        copy_wait<1>();
        __syncthreads();
    }
}

#include "merge.cuh"

// Blocks that find room at once. More come in turns, and the later ones do not wait: they would run
// twice for nothing.
constexpr u32 FEW_BLOCKS = 1024;

// Merge a row's spans in order. Grid: (heads, rows, HEAD_DIM / 32), a warp each: small blocks find room
// beside those that are still at their spans, and leave most of it to the kernel behind them.
extern "C" __global__ void __launch_bounds__(32) attend_merge(
    const float* partials, i64 spans, const int* positions, i64 row0, i64 group, i64 kv_heads,
    i64 dim, double scale, u16* out, i64 out_stride) {
    __shared__ MergeRoom room;
    let_next_start();
    const int column = blockIdx.z * 32 + threadIdx.x;
    const int of_group = static_cast<int>(group), head = blockIdx.x, inner = head % of_group;
    const int blocks = (of_group + TILE_HEADS - 1) / TILE_HEADS;
    const i64 row = row0 + blockIdx.y, tile = head / of_group * blocks + inner / TILE_HEADS;
    const float factor = score_factor(scale);
    const int held = told_early(positions + row) / SPAN + 1;
    const float* from = partials + (blockIdx.y * kv_heads * blocks + tile) * spans * PARTIAL;
    const float* values = from + inner % TILE_HEADS * HEAD_DIM + column;
    const float* ends = from + TILE_HEADS * HEAD_DIM + inner % TILE_HEADS;
#pragma unroll 1
    for (int pass = gridDim.x * gridDim.y * gridDim.z <= FEW_BLOCKS ? 0 : 1; pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        const float merged = merge_head(room, values, ends, held, factor, counts);
        if (column < dim && counts) {
            out[row * out_stride + head * dim + column] =
                static_cast<u16>(pack_bf16(merged, 0.0f));
        }
    }
}
