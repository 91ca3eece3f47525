// Grouped-query attention of many rows: eight rows a block share the spans of their slot; a warp
// keeps one row's sixteen heads. Bits are those of attention.cu. Launched by attend.py.
// The same on the CPU: cpu/attention.py, cpu/span.py. Oracle: tests/unit/kernels/test_attention.py.
#include "common.cuh"
#include "attention.cuh"
#include "span.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;

// A row's sixteen heads as they stand after some spans: lane 4 g + t has heads g (low) and g + 8.
struct State {
    float top_low, top_high, sum_low, sum_high;
    float total[UNITS][4];

    // Weighs the values of a span that has `low` and `high` for its maxima, and merges them.
    __device__ __forceinline__ void take(
        const uint4* values, const u32 (&weights)[SPAN / 32][2][4], const Merge& low,
        const Merge& high, int lane) {
#pragma unroll
        for (int unit = 0; unit < UNITS; unit += 2) {
            float own[2][4] = {};
#pragma unroll
            for (int j = 0; j < SPAN / 16; ++j) {
                u32 b[4];
                load_values(b, values, 16 * j, unit, lane);
                const u32(&a)[4] = weights[j / 2][j % 2];
                mma(own[0], a[0], a[1], a[2], a[3], b[0], b[1]);
                mma(own[1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                float(&held)[4] = total[unit + u];
                held[0] = low.apply(held[0], own[u][0]);
                held[1] = low.apply(held[1], own[u][1]);
                held[2] = high.apply(held[2], own[u][2]);
                held[3] = high.apply(held[3], own[u][3]);
            }
        }
    }

    __device__ __forceinline__ void store(u16* to, i64 heads, i64 dim, int lane) const {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            const int column = 8 * unit + 2 * t;
            if (column >= dim) continue;
            if (g < heads) {
                *reinterpret_cast<u32*>(to + g * dim + column) = pack_bf16(
                    __fdiv_rn(total[unit][0], sum_low), __fdiv_rn(total[unit][1], sum_low));
            }
            if (g + 8 < heads) {
                *reinterpret_cast<u32*>(to + (g + 8) * dim + column) = pack_bf16(
                    __fdiv_rn(total[unit][2], sum_high), __fdiv_rn(total[unit][3], sum_high));
            }
        }
    }
};

// One span for a row at position `last`.
__device__ __forceinline__ void attend_span(
    State& state, const Queries& queries, const SpanMemory& span, int first, int last, float factor,
    int lane) {
    float scores[SPAN / 2], low = NEGATIVE_INFINITY, high = NEGATIVE_INFINITY;
#pragma unroll
    for (int n = 0; n < SPAN / 8; ++n) {
        float* score = scores + 4 * n;
        score_keys<1>(score, queries, span.keys, 8 * n, first, last, lane);
        low = fmaxf(low, fmaxf(score[0], score[1]));
        high = fmaxf(high, fmaxf(score[2], score[3]));
    }
    low = quad_max(low);
    high = quad_max(high);
    u32 weights[SPAN / 32][2][4];
    float sum_low, sum_high;
#pragma unroll
    for (int part = 0; part < SPAN / 32; ++part) {
        float a, b;
        weigh_keys(scores + 16 * part, offset_of(low, factor), offset_of(high, factor), factor,
                   weights[part], a, b);
        sum_low = part == 0 ? a : __fadd_rn(sum_low, a);
        sum_high = part == 0 ? b : __fadd_rn(sum_high, b);
    }
    const Merge merge_low(state.top_low, low, factor), merge_high(state.top_high, high, factor);
    state.sum_low = merge_low.apply(state.sum_low, quad_sum(sum_low));
    state.sum_high = merge_high.apply(state.sum_high, quad_sum(sum_high));
    state.top_low = merge_low.top;
    state.top_high = merge_high.top;
    state.take(span.values, weights, merge_low, merge_high, lane);
}

// The rows of a block that belong to one slot are done together: the last position of those of row
// `leader`'s slot, -1 where an earlier row has led them.
__device__ __forceinline__ i64 limit_of(const int* slots, const int* positions, i64 held, i64 leader) {
    i64 limit = -1;
    for (i64 other = 0; other < held; ++other) {
        if (slots[other] != slots[leader]) continue;
        if (other < leader) return -1;
        limit = max(limit, static_cast<i64>(positions[other]));
    }
    return limit;
}

// Grid: (rows / 8, kv head and sixteen of its heads).
extern "C" __global__ void __launch_bounds__(THREADS) attend_shared(
    const u16* queries, i64 queries_stride, const int* positions, const int* slots,
    const int* tables, i64 width, i64 rows, i64 group, i64 kv_heads, i64 dim, double scale,
    const u16* keys, const u16* values, i64 block_tokens, u16* out, i64 out_stride) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u32 places[SPAN];
    const SpanMemory span(memory, places);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 parts = (group + TILE_HEADS - 1) / TILE_HEADS;
    const i64 head = blockIdx.y / parts, part = blockIdx.y % parts;
    const float factor = score_factor(scale);
    const i64 row0 = static_cast<i64>(blockIdx.x) * WARPS;
    const i64 held = min(static_cast<i64>(WARPS), rows - row0);
    const i64 row = row0 + warp;
    const bool real = warp < held;
    const i64 last = real ? positions[row] : -1;
    const i64 head0 = head * group + part * TILE_HEADS, heads = group - part * TILE_HEADS;
    Queries mine;
    if (real) {
        mine.load(queries + row * queries_stride + head0 * dim, static_cast<int>(heads),
                  static_cast<int>(dim), static_cast<int>(dim), lane);
    }
    State state{NEGATIVE_INFINITY, NEGATIVE_INFINITY, 0.0f, 0.0f, {}};
    for (i64 leader = 0; leader < held; ++leader) {
        const int slot = slots[row0 + leader];
        const i64 limit = limit_of(slots + row0, positions + row0, held, leader);
        const bool taking = real && slots[row] == slot;
        const Pool pool{keys, values, tables + slot * width, static_cast<u32>(block_tokens),
                        static_cast<u32>(kv_heads), static_cast<u32>(head)};
        for (i64 first = 0; first <= limit; first += SPAN) {
            const int count = static_cast<int>(min(static_cast<i64>(SPAN), limit - first + 1));
            __syncthreads();
            span.find(pool, first, count);
            __syncthreads();
            span.copy<THREADS>(keys, span.keys, 0, count);
            span.copy<THREADS>(values, span.values, 0, count);
            copy_commit();
            span.clear<THREADS>(span.keys, count);
            span.clear<THREADS>(span.values, count);
            copy_wait<0>();
            __syncthreads();
            if (taking && first <= last) {
                attend_span(state, mine, span, static_cast<int>(first), static_cast<int>(last), factor,
                            lane);
            }
        }
    }
    if (real) state.store(out + row * out_stride + head0 * dim, heads, dim, lane);
}
