// Rotary with cache write, and grouped-query attention over paged keys and values.
//
// The cache is bf16 [blocks, kv_heads, block_tokens, HEAD_DIM]; HEAD_DIM is the head's width padded
// to 32. All kernels, attend_hopper.cu's too, compute a span by the same instructions, so a row's
// bits do not depend on which of them ran.
#include "common.cuh"
#include "attention.cuh"

constexpr int UNITS = HEAD_DIM / 8;
constexpr int STEPS = HEAD_DIM / 32;
constexpr int TILE_HEADS = 16;
constexpr int SPLIT_WARPS = 4;
constexpr int SHARED_WARPS = 8;

struct Pool {
    const u16* keys;
    const u16* values;
    const int* table;
    u32 block_tokens;
    i64 kv_heads;
    i64 head;

    __device__ __forceinline__ i64 at(u32 position) const {
        const i64 block = table[position / block_tokens];
        return ((block * kv_heads + head) * block_tokens + position % block_tokens) * HEAD_DIM;
    }
};

__device__ __forceinline__ int place(int row, int unit) {
    if (UNITS % 8 != 0) return row * UNITS + unit;
    return row * UNITS + (unit ^ ((row & 1) << 2 | (row >> 1 & 3)));
}

// Start copying the span's keys and values up to `last`; what lies beyond is zero.
__device__ __forceinline__ void load_span(
    uint4* keys, uint4* values, const Pool& pool, i64 first, i64 last) {
    for (int index = threadIdx.x; index < SPAN * UNITS; index += blockDim.x) {
        const int row = index / UNITS, unit = index % UNITS;
        const int to = place(row, unit);
        if (first + row <= last) {
            const i64 from = pool.at(static_cast<u32>(first) + row) + 8 * unit;
            copy_async_16(shared_address(keys + to), pool.keys + from);
            copy_async_16(shared_address(values + to), pool.values + from);
        } else {
            keys[to] = values[to] = make_uint4(0, 0, 0, 0);
        }
    }
    copy_commit();
}

// Sixteen heads of one row: lane 4 g + t holds words t of each eight values of heads g and g + 8.
struct Queries {
    u32 low[STEPS][4];
    u32 high[STEPS][4];

    __device__ __forceinline__ void load(const u16* row, i64 head0, i64 group, i64 dim, int lane) {
        const int g = lane / 4, t = lane % 4;
        const u16* head = row + (head0 + g) * dim + 2 * t;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                const int at = 32 * s + 8 * u;
                low[s][u] = high[s][u] = 0;
                if (at < dim && g < group) low[s][u] = word_at(head + at);
                if (at < dim && g + 8 < group) high[s][u] = word_at(head + 8 * dim + at);
            }
        }
    }

    __device__ __forceinline__ static u32 word_at(const u16* from) {
        return *reinterpret_cast<const u32*>(from);
    }
};

// Units `unit` ... + 3 of keys key0 ... + 7, as second operands.
__device__ __forceinline__ void load_keys(
    u32 (&b)[4], const uint4* keys, int key0, int unit, int lane) {
    const u32 from = shared_address(keys + place(key0 + lane % 8, unit + lane / 8));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from));
}

// Scores of eight keys; -inf beyond `last`.
__device__ __forceinline__ void score_keys(
    float* score, const Queries& queries, const uint4* keys, int key0, i64 first, i64 last,
    int lane) {
    const int t = lane % 4;
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        u32 b[4];
        load_keys(b, keys, key0, 4 * s, lane);
        const u32(&low)[4] = queries.low[s];
        const u32(&high)[4] = queries.high[s];
        mma(sum, low[0], high[0], low[1], high[1], b[0], b[1]);
        mma(sum, low[2], high[2], low[3], high[3], b[2], b[3]);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        score[c] = first + key0 + 2 * t + c % 2 > last ? NEGATIVE_INFINITY : sum[c];
    }
}

// Values of keys key0 ... + 15 at units `unit` and `unit` + 1, as second operands.
__device__ __forceinline__ void load_values(
    u32 (&b)[4], const uint4* values, int key0, int unit, int lane) {
    const int row = key0 + lane % 16;
    const u32 from = shared_address(values + place(row, unit + lane / 16));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from));
}

// One block per (span, kv head and sixteen of its heads, row): the span's partial result to
// `partials` [row, tile, span][16][HEAD_DIM + 2]: values, maximum, sum.
extern "C" __global__ void __launch_bounds__(32 * SPLIT_WARPS) attend_split(
    const u16* queries, i64 queries_stride, const int* positions, const int* slots,
    const int* tables, i64 width, i64 row0, i64 group, i64 kv_heads, i64 dim, double scale,
    const u16* keys, const u16* values, i64 block_tokens, float* partials) {
    extern __shared__ __align__(16) u8 memory[];
    __shared__ float tops[SPLIT_WARPS][TILE_HEADS];
    __shared__ float2 sums[SPLIT_WARPS][32];
    __shared__ u32 weights[SPAN / 16][4][32];
    uint4* shared_keys = reinterpret_cast<uint4*>(memory);
    uint4* shared_values = shared_keys + SPAN * UNITS;
    let_next_start();
    wait_for_previous();
    const i64 row = row0 + blockIdx.z, last = positions[row];
    const i64 first = static_cast<i64>(blockIdx.x) * SPAN;
    if (first > last) return;
    const i64 blocks = (group + TILE_HEADS - 1) / TILE_HEADS;
    const i64 head = blockIdx.y / blocks, part = blockIdx.y % blocks;
    const float factor = static_cast<float>(scale * 1.4426950408889634);
    const Pool pool{keys, values, tables + slots[row] * width, static_cast<u32>(block_tokens),
                    kv_heads, head};
    load_span(shared_keys, shared_values, pool, first, last);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Queries mine;
    mine.load(queries + row * queries_stride, head * group + part * TILE_HEADS,
              group - part * TILE_HEADS, dim, lane);
    copy_wait<0>();
    __syncthreads();

    float scores[16], low = NEGATIVE_INFINITY, high = NEGATIVE_INFINITY;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        float* score = scores + 4 * n;
        score_keys(score, mine, shared_keys, 32 * warp + 8 * n, first, last, lane);
        low = fmaxf(low, fmaxf(score[0], score[1]));
        high = fmaxf(high, fmaxf(score[2], score[3]));
    }
    low = quad_max(low);
    high = quad_max(high);
    if (t == 0) {
        tops[warp][g] = low;
        tops[warp][g + 8] = high;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < SPLIT_WARPS; ++w) {
        low = fmaxf(low, tops[w][g]);
        high = fmaxf(high, tops[w][g + 8]);
    }
    u32 own[2][4];
    float2 sum;
    weigh_keys(scores, offset_of(low, factor), offset_of(high, factor), factor, own, sum.x, sum.y);
    sums[warp][lane] = sum;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int c = 0; c < 4; ++c) weights[2 * warp + half][c][lane] = own[half][c];
    }
    __syncthreads();

    float* to = partials +
        ((static_cast<i64>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) *
            TILE_HEADS * (HEAD_DIM + 2);
    for (int unit = 2 * warp; unit < UNITS; unit += 2 * SPLIT_WARPS) {
        float out[2][4] = {};
#pragma unroll
        for (int j = 0; j < SPAN / 16; ++j) {
            u32 b[4];
            load_values(b, shared_values, 16 * j, unit, lane);
            const u32 a0 = weights[j][0][lane], a1 = weights[j][1][lane];
            const u32 a2 = weights[j][2][lane], a3 = weights[j][3][lane];
            mma(out[0], a0, a1, a2, a3, b[0], b[1]);
            mma(out[1], a0, a1, a2, a3, b[2], b[3]);
        }
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            const int column = 8 * (unit + u) + 2 * t;
            float* low_row = to + g * (HEAD_DIM + 2) + column;
            float* high_row = to + (g + 8) * (HEAD_DIM + 2) + column;
            low_row[0] = out[u][0];
            low_row[1] = out[u][1];
            high_row[0] = out[u][2];
            high_row[1] = out[u][3];
        }
    }
    if (warp > 0) return;
    float total_low = sums[0][lane].x, total_high = sums[0][lane].y;
    for (int w = 1; w < SPLIT_WARPS; ++w) {
        total_low = __fadd_rn(total_low, sums[w][lane].x);
        total_high = __fadd_rn(total_high, sums[w][lane].y);
    }
    total_low = quad_sum(total_low);
    total_high = quad_sum(total_high);
    if (t == 0) {
        to[g * (HEAD_DIM + 2) + HEAD_DIM] = low;
        to[g * (HEAD_DIM + 2) + HEAD_DIM + 1] = total_low;
        to[(g + 8) * (HEAD_DIM + 2) + HEAD_DIM] = high;
        to[(g + 8) * (HEAD_DIM + 2) + HEAD_DIM + 1] = total_high;
    }
}

// Merge a row's spans in order. One block of HEAD_DIM threads per (head, row).
extern "C" __global__ void __launch_bounds__(HEAD_DIM) attend_merge(
    const float* partials, i64 spans, const int* positions, i64 row0, i64 group, i64 kv_heads,
    i64 dim, double scale, u16* out, i64 out_stride) {
    let_next_start();
    wait_for_previous();
    const i64 blocks = (group + TILE_HEADS - 1) / TILE_HEADS;
    const i64 row = row0 + blockIdx.y, head = blockIdx.x, inner = head % group;
    const i64 tile = head / group * blocks + inner / TILE_HEADS;
    const float factor = static_cast<float>(scale * 1.4426950408889634);
    const i64 held = positions[row] / SPAN + 1;
    const float* from = partials +
        ((blockIdx.y * kv_heads * blocks + tile) * spans * TILE_HEADS + inner % TILE_HEADS) *
            (HEAD_DIM + 2);
    constexpr int AT_ONCE = 16, STEP = TILE_HEADS * (HEAD_DIM + 2);
    float top = NEGATIVE_INFINITY, sum = 0.0f, value = 0.0f;
    for (i64 span = 0; span < held; span += AT_ONCE, from += AT_ONCE * STEP) {
        float tops[AT_ONCE], sums[AT_ONCE], values[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            // Beyond the last span, the first of these once more: read, and not used.
            const float* own = from + (span + i < held ? i * STEP : 0);
            tops[i] = own[HEAD_DIM];
            sums[i] = own[HEAD_DIM + 1];
            values[i] = own[threadIdx.x];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const Merge merge(top, tops[i], factor);
            const bool there = span + i < held;
            sum = there ? merge.apply(sum, sums[i]) : sum;
            value = there ? merge.apply(value, values[i]) : value;
            top = there ? merge.top : top;
        }
    }
    if (threadIdx.x < dim) {
        const float result = __fdiv_rn(value, sum);
        out[row * out_stride + head * dim + threadIdx.x] = static_cast<u16>(pack_bf16(result, 0));
    }
}

#if HEAD_DIM <= 128
// Eight rows a block share the spans of their slot; a warp keeps one row's sixteen heads.
// Grid: (rows / 8, kv head and sixteen of its heads).
extern "C" __global__ void __launch_bounds__(32 * SHARED_WARPS) attend_shared(
    const u16* queries, i64 queries_stride, const int* positions, const int* slots,
    const int* tables, i64 width, i64 rows, i64 group, i64 kv_heads, i64 dim, double scale,
    const u16* keys, const u16* values, i64 block_tokens, u16* out, i64 out_stride) {
    extern __shared__ __align__(16) u8 memory[];
    uint4* shared_keys = reinterpret_cast<uint4*>(memory);
    uint4* shared_values = shared_keys + SPAN * UNITS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const i64 blocks = (group + TILE_HEADS - 1) / TILE_HEADS;
    const i64 head = blockIdx.y / blocks, part = blockIdx.y % blocks;
    const float factor = static_cast<float>(scale * 1.4426950408889634);
    const i64 block_row = static_cast<i64>(blockIdx.x) * SHARED_WARPS;
    const i64 held = min(static_cast<i64>(SHARED_WARPS), rows - block_row);
    const i64 row = block_row + warp;
    const bool real = warp < held;
    const i64 last = real ? positions[row] : -1;
    const i64 head0 = head * group + part * TILE_HEADS, heads = group - part * TILE_HEADS;
    Queries mine;
    if (real) mine.load(queries + row * queries_stride, head0, heads, dim, lane);
    float top_low = NEGATIVE_INFINITY, top_high = NEGATIVE_INFINITY;
    float sum_low = 0.0f, sum_high = 0.0f;
    float total[UNITS][4] = {};
    for (i64 leader = 0; leader < held; ++leader) {
        const int slot = slots[block_row + leader];
        bool seen = false;
        i64 limit = -1;
        for (i64 other = 0; other < held; ++other) {
            if (slots[block_row + other] != slot) continue;
            seen |= other < leader;
            limit = max(limit, static_cast<i64>(positions[block_row + other]));
        }
        if (seen) continue;
        const bool taking = real && slots[row] == slot;
        const Pool pool{keys, values, tables + slot * width, static_cast<u32>(block_tokens),
                        kv_heads, head};
        for (i64 first = 0; first <= limit; first += SPAN) {
            __syncthreads();
            load_span(shared_keys, shared_values, pool, first, limit);
            copy_wait<0>();
            __syncthreads();
            if (!taking || first > last) continue;
            float scores[SPAN / 2], low = NEGATIVE_INFINITY, high = NEGATIVE_INFINITY;
#pragma unroll
            for (int n = 0; n < SPAN / 8; ++n) {
                float* score = scores + 4 * n;
                score_keys(score, mine, shared_keys, 8 * n, first, last, lane);
                low = fmaxf(low, fmaxf(score[0], score[1]));
                high = fmaxf(high, fmaxf(score[2], score[3]));
            }
            low = quad_max(low);
            high = quad_max(high);
            u32 weights[SPAN / 32][2][4];
            float span_low, span_high;
#pragma unroll
            for (int part32 = 0; part32 < SPAN / 32; ++part32) {
                float a, b;
                weigh_keys(scores + 16 * part32, offset_of(low, factor), offset_of(high, factor),
                           factor, weights[part32], a, b);
                span_low = part32 == 0 ? a : __fadd_rn(span_low, a);
                span_high = part32 == 0 ? b : __fadd_rn(span_high, b);
            }
            span_low = quad_sum(span_low);
            span_high = quad_sum(span_high);
            const Merge merge_low(top_low, low, factor), merge_high(top_high, high, factor);
            sum_low = merge_low.apply(sum_low, span_low);
            sum_high = merge_high.apply(sum_high, span_high);
            top_low = merge_low.top;
            top_high = merge_high.top;
#pragma unroll
            for (int unit = 0; unit < UNITS; unit += 2) {
                float own[2][4] = {};
#pragma unroll
                for (int j = 0; j < SPAN / 16; ++j) {
                    u32 b[4];
                    load_values(b, shared_values, 16 * j, unit, lane);
                    const u32(&a)[4] = weights[j / 2][j % 2];
                    mma(own[0], a[0], a[1], a[2], a[3], b[0], b[1]);
                    mma(own[1], a[0], a[1], a[2], a[3], b[2], b[3]);
                }
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    float(&held_values)[4] = total[unit + u];
                    held_values[0] = merge_low.apply(held_values[0], own[u][0]);
                    held_values[1] = merge_low.apply(held_values[1], own[u][1]);
                    held_values[2] = merge_high.apply(held_values[2], own[u][2]);
                    held_values[3] = merge_high.apply(held_values[3], own[u][3]);
                }
            }
        }
    }
    if (!real) return;
    u16* to = out + row * out_stride + head0 * dim;
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
#endif
