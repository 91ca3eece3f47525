// Attention of many rows over paged keys and values on sm_90a, bit for bit what attention.cu gives.
// Launched by attend_wide.py.
// The same on the CPU: cpu/attention.py, cpu/span.py. Oracle: tests/unit/kernels/test_attention.py.
//
// Three warpgroups share the spans of a tile: consecutive rows of one request and all heads of one
// key head, up to PLACES of these pairs. A fourth feeds keys and values through the copy engine. A
// warpgroup weighs keys while the others multiply. Blocks walk over tiles, longest first.
#include "common.cuh"
#include "attention.cuh"
#include "hopper.cuh"

constexpr int PLACES = 192;  // (row, head) of a tile
constexpr int WARPGROUPS = PLACES / 64;  // of which an instruction of a warpgroup takes 64
constexpr int ATTENDERS = WARPGROUPS * WARPGROUP;
constexpr int HALVES = HEAD_DIM / 64;
constexpr int ROW = 128;  // bytes of a row in shared memory: 64 values of a head
constexpr int QUERY_PART = PLACES * ROW;
constexpr int SPAN_PART = SPAN * ROW;
constexpr int SPAN_BYTES = HALVES * SPAN_PART;
constexpr int STAGES = 2;  // of keys, and as many of values: with the queries 177 KiB at most
constexpr int QUERY_BYTES = HALVES * QUERY_PART;
// 384 threads with 160 registers and 128 with 32 are 65,536: all that a processor has.
constexpr int ATTENDER_REGISTERS = 160, FEEDER_REGISTERS = 32;
constexpr int MEMORY = QUERY_BYTES + 2 * STAGES * SPAN_BYTES;

struct Shape {
    const int4* items;  // first row, rows, slot, position of the last row; longest first
    int count, heads, group, held;  // items, key heads, heads of each, rows of a tile
    int tables_width, block_tokens;
};

// Tile `turn` of this block: there and back over the blocks, so that none gets the longer ones.
__device__ __forceinline__ int tile_of(int turn) {
    const int across = turn % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    return turn * gridDim.x + across;
}

struct Ring {
    u32 memory, barriers;  // keys, then values; a pair of barriers for each stage
    int stage = 0;
    u32 parity = 0;

    __device__ __forceinline__ u32 data() const { return memory + stage * SPAN_BYTES; }
    __device__ __forceinline__ Barrier full() const { return {barriers + 16 * stage}; }
    __device__ __forceinline__ Barrier empty() const { return {barriers + 16 * stage + 8}; }

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// One span's keys or values: a lane for each piece of a cache block. Pieces beyond the last key repeat
// the last one that exists; their weights are zero.
__device__ __forceinline__ void feed_span(
    Ring& ring, const void* map, const Shape& shape, const int* table, int first, int last, int head) {
    const int lane = threadIdx.x % 32;
    const int piece = min(SPAN, shape.block_tokens);
    ring.empty().wait(ring.parity ^ 1);
    const Barrier full = ring.full();
    if (lane == 0) full.expect(SPAN_BYTES);
    __syncwarp();
    if (lane < SPAN / piece) {
        const int position = min(first + lane * piece, last / piece * piece);
        const int block = table[position / shape.block_tokens];
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            load_box(ring.data() + half * SPAN_PART + lane * piece * ROW, map, full, 64 * half,
                     position % shape.block_tokens, block * shape.heads + head);
        }
    }
    __syncwarp();
    ring.advance();
}

__device__ __forceinline__ void feed(
    const Shape& shape, const void* queries, const void* keys, const void* values,
    const int* tables, u32 memory, Barrier asked, Barrier answered, Ring key_ring, Ring value_ring) {
    u32 parity = 0;
    const int tiles = shape.count * shape.heads;
    for (int turn = 0; turn * gridDim.x < tiles; ++turn) {
        const int tile = tile_of(turn);
        if (tile >= tiles) continue;
        const int4 item = shape.items[tile / shape.heads];
        const int head = tile % shape.heads, last = item.w;
        const int* table = tables + static_cast<i64>(item.z) * shape.tables_width;
        answered.wait(parity ^ 1);
        parity ^= 1;
        if (threadIdx.x % 32 == 0) {
            asked.expect(HALVES * shape.held * shape.group * ROW);
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                load_box(memory + half * QUERY_PART, queries, asked, 64 * half, head * shape.group,
                         item.x);
            }
        }
        __syncwarp();
        for (int first = 0; first <= last; first += SPAN) {
            feed_span(key_ring, keys, shape, table, first, last, head);
            feed_span(value_ring, values, shape, table, first, last, head);
        }
    }
}

// What a lane holds of its two places: the maximum, the sum and the weighted values so far.
struct State {
    float top_low, top_high, sum_low, sum_high;
    float total[HEAD_DIM / 2];
};

__device__ __forceinline__ void score_span(float (&scores)[SPAN / 2], u32 queries, u32 keys) {
    hold(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; ++k) {
        const u32 half = k / 4, at = k % 4 * 32;
        Wgmma<SPAN>::multiply_shared(scores, descriptor_at(queries + half * QUERY_PART + at),
                                      descriptor_at(keys + half * SPAN_PART + at), k > 0);
    }
    wgmma_commit();
    hold(scores);
    wgmma_wait<0>();
    hold(scores);
}

__device__ __forceinline__ void mask_span(
    float (&scores)[SPAN / 2], int first, int last_low, int last_high) {
    const int key0 = first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < SPAN / 2; ++i) {
        const int key = key0 + i / 4 * 8 + i % 2;
        if (key > (i % 4 < 2 ? last_low : last_high)) scores[i] = NEGATIVE_INFINITY;
    }
}

__device__ __forceinline__ void take_values(
    State& state, const u32 (&weights)[SPAN / 32][2][4], u32 values, const Merge& low,
    const Merge& high) {
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
        float span[32];
        hold(span);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < SPAN / 16; ++j) {
            const u32(&a)[4] = weights[j / 2][j % 2];
            Wgmma<64>::multiply<1>(span, a[0], a[1], a[2], a[3],
                                    descriptor_at(values + half * SPAN_PART + j * 16 * ROW), j > 0);
        }
        wgmma_commit();
        hold(span);
        wgmma_wait<0>();
        hold(span);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            float& held = state.total[32 * half + i];
            held = i % 4 < 2 ? low.apply(held, span[i]) : high.apply(held, span[i]);
        }
    }
}

__device__ __forceinline__ void attend_span(
    State& state, u32 queries, Ring& keys, Ring& values, int first, int last_low, int last_high,
    float scale) {
    float scores[SPAN / 2];
    keys.full().wait(keys.parity);
    score_span(scores, queries, keys.data());
    if (threadIdx.x % 32 == 0) keys.empty().arrive();
    keys.advance();
    if (first + SPAN > min(last_low, last_high) + 1) mask_span(scores, first, last_low, last_high);
    float low = NEGATIVE_INFINITY, high = NEGATIVE_INFINITY;
#pragma unroll
    for (int i = 0; i < SPAN / 2; i += 4) {
        low = fmaxf(low, fmaxf(scores[i], scores[i + 1]));
        high = fmaxf(high, fmaxf(scores[i + 2], scores[i + 3]));
    }
    low = quad_max(low);
    high = quad_max(high);
    u32 weights[SPAN / 32][2][4];
    float sum_low, sum_high;
    const float offset_low = offset_of(low, scale), offset_high = offset_of(high, scale);
#pragma unroll
    for (int part = 0; part < SPAN / 32; ++part) {
        float a, b;
        weigh_keys(scores + 16 * part, offset_low, offset_high, scale, weights[part], a, b);
        sum_low = part == 0 ? a : __fadd_rn(sum_low, a);
        sum_high = part == 0 ? b : __fadd_rn(sum_high, b);
    }
    const Merge merge_low(state.top_low, low, scale), merge_high(state.top_high, high, scale);
    state.sum_low = merge_low.apply(state.sum_low, quad_sum(sum_low));
    state.sum_high = merge_high.apply(state.sum_high, quad_sum(sum_high));
    state.top_low = merge_low.top;
    state.top_high = merge_high.top;
    values.full().wait(values.parity);
    take_values(state, weights, values.data(), merge_low, merge_high);
    if (threadIdx.x % 32 == 0) values.empty().arrive();
    values.advance();
}

// The two places of a lane: which rows of the step they are, and which heads.
struct Places {
    int low, high;

    __device__ __forceinline__ Places() {
        low = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        high = low + 8;
    }
};

__device__ __forceinline__ void store_place(
    const State& state, const Shape& shape, const int4& item, int head, int place, bool upper,
    u16* out, i64 out_stride) {
    const int row = place / shape.group;
    if (row >= item.y) return;
    const float sum = upper ? state.sum_high : state.sum_low;
    const i64 column = (static_cast<i64>(head) * shape.group + place % shape.group) * HEAD_DIM;
    u16* to = out + (item.x + row) * out_stride + column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i) {
        const float first = state.total[4 * i + (upper ? 2 : 0)];
        const float second = state.total[4 * i + (upper ? 3 : 1)];
        *reinterpret_cast<u32*>(to + 8 * i) =
            pack_bf16(__fdiv_rn(first, sum), __fdiv_rn(second, sum));
    }
}

__device__ __forceinline__ void attend(
    const Shape& shape, const int* positions, float scale, u32 memory, Barrier asked,
    Barrier answered, Ring keys, Ring values, u16* out, i64 out_stride) {
    const u32 queries = memory + threadIdx.x / WARPGROUP * 64 * ROW;
    const int tiles = shape.count * shape.heads;
    const Places mine;
    u32 parity = 0;
    for (int turn = 0; turn * gridDim.x < tiles; ++turn) {
        const int tile = tile_of(turn);
        if (tile >= tiles) continue;
        const int4 item = shape.items[tile / shape.heads];
        // Places without a row go along with the last one and store nothing.
        const int last_low = positions[item.x + min(mine.low / shape.group, item.y - 1)];
        const int last_high = positions[item.x + min(mine.high / shape.group, item.y - 1)];
        State state{NEGATIVE_INFINITY, NEGATIVE_INFINITY, 0.0f, 0.0f, {}};
        asked.wait(parity);
        parity ^= 1;
        for (int first = 0; first <= item.w; first += SPAN) {
            attend_span(state, queries, keys, values, first, last_low, last_high, scale);
        }
        if (threadIdx.x % 32 == 0) answered.arrive();
        const int head = tile % shape.heads;
        store_place(state, shape, item, head, mine.low, false, out, out_stride);
        store_place(state, shape, item, head, mine.high, true, out, out_stride);
    }
}

extern "C" __global__ void __launch_bounds__(ATTENDERS + WARPGROUP, 1) attend_wide(
    const void* queries, const void* keys, const void* values, const int* positions,
    const int* tables, i64 width, const int4* items, i64 count, i64 group, i64 kv_heads, i64 held,
    double scale, i64 block_tokens, u16* out, i64 out_stride) {
    extern __shared__ u8 memory[];
    __shared__ u64 barriers[2 + 4 * STAGES];
    const u32 start = whole_atoms(shared_address(memory));
    const u32 open = shared_address(barriers);
    const Barrier asked{open}, answered{open + 8};
    const Ring key_ring{start + QUERY_BYTES, open + 16};
    const Ring value_ring{start + QUERY_BYTES + STAGES * SPAN_BYTES, open + 16 + 16 * STAGES};
    if (threadIdx.x == 0) {
        asked.open(1);
        answered.open(ATTENDERS / 32);
        for (int i = 0; i < 2 * STAGES; ++i) {
            Barrier{open + 16 + 16 * i}.open(1);
            Barrier{open + 24 + 16 * i}.open(ATTENDERS / 32);
        }
        barriers_are_open();
    }
    __syncthreads();
    const Shape shape{items, static_cast<int>(count), static_cast<int>(kv_heads),
                      static_cast<int>(group), static_cast<int>(held), static_cast<int>(width),
                      static_cast<int>(block_tokens)};
    if (threadIdx.x >= ATTENDERS) {
        give_registers<FEEDER_REGISTERS>();
        if (threadIdx.x < ATTENDERS + 32) {
            feed(shape, queries, keys, values, tables, start, asked, answered, key_ring, value_ring);
        }
    } else {
        take_registers<ATTENDER_REGISTERS>();
        const float factor = score_factor(scale);
        attend(shape, positions, factor, start, asked, answered, key_ring, value_ring, out, out_stride);
    }
}
