// Sigmoid routing, grouping of pairs by expert, and the weighted combination.
// Launched by experts.py; the experts' projections are linear.cu's and its kin's.
// The same on the CPU: cpu/moe.py. Oracle: tests/unit/kernels/test_moe.py.
#include "common.cuh"

constexpr int MOST_EXPERTS = 1024;  // 32 to a lane, whose choices are the bits of a word
constexpr int MOST_TOP = 32;  // one to a lane
constexpr int BLOCK_PAIRS = 512;  // (row, choice) of a block that sorts, one a thread
constexpr int ROUTED = BLOCK_PAIRS / 32;  // rows of a block that routes, a warp each
constexpr int TILE = 8;  // rows of an expert's tile where one block routes and sorts (FEW in project.py)
constexpr int COMBINED = 256;  // values of a block that combines
constexpr int TOGETHER = 8;  // results that are asked for at once

// How an expert is chosen: larger keys first, 1 for what has no finite choice; 0 is none.
__device__ __forceinline__ u32 choice_key(float choice) {
    if (!(choice > NEGATIVE_INFINITY)) return 1u;
    const u32 bits = __float_as_uint(choice + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float score_of(float logit) {
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-logit)));
}

// A router over the experts' logits, and what it makes of them.
struct Router {
    const float* logits;
    i64 stride;
    const float* bias;
    int experts, top, normalise;
    float scale;
};

// What a block of BLOCK_PAIRS threads knows of its rows: every expert's key and score, and what was
// chosen, ascending. Little code runs here: it is read from memory for each kernel anew.
struct RouteRoom {
    u32* keys;
    float* scores;
    int (*chosen)[MOST_TOP];
};

// Keys and scores of `rows` rows' experts.
__device__ __forceinline__ void score_rows(
    const Router& router, const float* logits, int rows, const RouteRoom& room) {
    // All threads share in the rows: so many, a power of two, in each. The block has 2^9.
    const int shift = __clz(rows - 1) - (32 - 9), each = 1 << shift;
    const int row = threadIdx.x >> shift, at = row * router.experts;
    const int from = row * static_cast<int>(router.stride);
    if (row >= rows) return;
#pragma unroll 1
    for (int e = threadIdx.x & (each - 1); e < router.experts; e += 4 * each) {
        float own[4], biases[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int here = e + k * each;
            const bool real = here < router.experts;
            own[k] = real ? __ldcg(logits + (from + here)) : 0.0f;
            biases[k] = real ? router.bias[here] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int here = e + k * each;
            if (here >= router.experts) break;
            const float score = score_of(own[k]);
            room.scores[at + here] = score;
            room.keys[at + here] = choice_key(__fadd_rn(score, biases[k]));
        }
    }
}

// What a warp chose of a row's experts, of which each lane has some that follow one another.
struct Choice {
    int each, first;
    // Which of the lane's, and how many of the lanes' below.
    u32 taken;
    int before;

    // Takes the `top` experts with the largest keys, ties to the lower id. A lane has at most HELD.
    template <int HELD>
    __device__ __forceinline__ void make(const Router& router, const u32* all) {
        const int lane = threadIdx.x % 32;
        each = (router.experts + 31) / 32;
        first = lane * each;
        u32 keys[HELD];
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            keys[j] = j < each && first + j < router.experts ? all[first + j] : 0u;
        }
        taken = before = 0;
#pragma unroll 1
        for (int n = 0; n < router.top; ++n) {
            u32 most[HELD];
#pragma unroll
            for (int j = 0; j < HELD; ++j) most[j] = keys[j];
#pragma unroll
            for (int step = 1; step < HELD; step *= 2) {
#pragma unroll
                for (int j = 0; j + step < HELD; j += 2 * step) most[j] = max(most[j], most[j + step]);
            }
            const bool best = most[0] == __reduce_max_sync(ALL_LANES, most[0]);
            int own = 0;
#pragma unroll
            for (int j = HELD - 1; j >= 0; --j) own = keys[j] == most[0] ? j : own;
            const u32 lower = __ballot_sync(ALL_LANES, best) & ((1u << lane) - 1u);
            before += lower != 0;
            if (!best || lower != 0) own = 32;
            taken |= own < 32 ? 1u << own : 0u;
#pragma unroll
            for (int j = 0; j < HELD; ++j) keys[j] = j == own ? 0u : keys[j];
        }
    }

    // Writes ids and weights [top], and to `chosen`, the warp's own, the ids. Lane k has the k-th's.
    __device__ __forceinline__ int give(
        const Router& router, const float* scores, int* chosen, int* ids, float* weights,
        bool counts) const {
        int at = before;
#pragma unroll 1
        for (u32 rest = taken; rest != 0; rest &= rest - 1) chosen[at++] = first + __ffs(rest) - 1;
        __syncwarp();
        const int mine = threadIdx.x % 32;
        const bool real = mine < router.top;
        const int id = real ? chosen[mine] : 0;
        float weight = scores[id], sum = 0.0f;
#pragma unroll 4
        for (int n = 0; n < router.top; ++n) sum = __fadd_rn(sum, __shfl_sync(ALL_LANES, weight, n));
        // The reference adds as much, so that no sum is zero.
        if (router.normalise) weight = __fdiv_rn(weight, __fadd_rn(sum, 1e-20f));
        if (counts && real) {
            ids[mine] = id;
            weights[mine] = __fmul_rn(weight, router.scale);
        }
        return id;
    }
};

// The room of a block: `memory` holds keys and scores of all its rows.
__device__ __forceinline__ RouteRoom route_room(u32* memory, int all) {
    __shared__ int chosen[ROUTED][MOST_TOP];
    return RouteRoom{memory, reinterpret_cast<float*>(memory + all), chosen};
}

// ids and weights [rows, top], ascending. Grid: rows / ROUTED.
template <int HELD>
__device__ __forceinline__ void route_rows(
    const Router& router, i64 rows, int* ids, float* weights) {
    extern __shared__ __align__(16) u32 memory[];
    const i64 first = static_cast<i64>(blockIdx.x) * ROUTED;
    const int own = static_cast<int>(min(rows - first, static_cast<i64>(ROUTED)));
    const int warp = threadIdx.x / 32;
    const RouteRoom room = route_room(memory, own * router.experts);
    let_next_start();
    wait_for_previous();
    score_rows(router, router.logits + first * router.stride, own, room);
    __syncthreads();
    if (warp >= own) return;
    Choice choice;
    choice.make<HELD>(router, room.keys + warp * router.experts);
    const i64 at = (first + warp) * router.top;
    choice.give(router, room.scores + warp * router.experts, room.chosen[warp], ids + at,
                weights + at, true);
}

// How many of a block's BLOCK_PAIRS pairs each expert has: counts [blocks, experts].
extern "C" __global__ void __launch_bounds__(BLOCK_PAIRS) count_by_expert(
    const int* ids, i64 pairs, i64 experts, int* counts) {
    __shared__ int held[MOST_EXPERTS];
    let_next_start();
    for (int e = threadIdx.x; e < experts; e += BLOCK_PAIRS) held[e] = 0;
    __syncthreads();
    wait_for_previous();
    const i64 pair = static_cast<i64>(blockIdx.x) * BLOCK_PAIRS + threadIdx.x;
    if (pair < pairs) atomicAdd(&held[ids[pair]], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += BLOCK_PAIRS) counts[blockIdx.x * experts + e] = held[e];
}

// Running sums over the block's threads, of two numbers each.
__device__ __forceinline__ int2 running_sums(int2 value) {
    __shared__ int2 warps[BLOCK_PAIRS / 32];
    const int lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const int x = __shfl_up_sync(ALL_LANES, value.x, step);
        const int y = __shfl_up_sync(ALL_LANES, value.y, step);
        if (lane >= step) value = make_int2(value.x + x, value.y + y);
    }
    if (lane == 31) warps[threadIdx.x / 32] = value;
    __syncthreads();
    for (int w = 0; w < static_cast<int>(threadIdx.x) / 32; ++w) {
        value = make_int2(value.x + warps[w].x, value.y + warps[w].y);
    }
    __syncthreads();
    return value;
}

// Pieces of `all` places that cost least; each costs its size, and a little beside.
__device__ __forceinline__ int pieces_of(int all, u64 sizes) {
    constexpr int BESIDE = 16;  // TILE_COST in wide.py
    int best = 0, least = 1 << 30;
    for (int i = 0; i < 4; ++i) {
        const int size = sizes >> 16 * i & 0xffffu, pieces = (all + size - 1) / size;
        if (pieces * (size + BESIDE) < least) {
            least = pieces * (size + BESIDE);
            best = pieces;
        }
    }
    return best;
}

// Sorts the pairs (row, choice) by expert, stably: `source` [pairs] is the row of each sorted place,
// `place` [pairs] the sorted place of each pair, `tiles` [most] even pieces of one expert's places:
// (expert, first, count, 0), and count 0 beyond them; tiles[most] holds how many there are. Pieces
// have at most as many places as one of four `sizes` of sixteen bits, the one that wastes least. Each
// block places its BLOCK_PAIRS pairs, from the `counts` of all blocks where there are several.
struct Groups {
    u64 sizes;
    i64 most;
    const int* counts;
    int* source;
    int* place;
    int4* tiles;
};

struct GroupRoom {
    u16 before[BLOCK_PAIRS / 32][MOST_EXPERTS];
    int starts[MOST_EXPERTS];
    int2 reached;

    __device__ __forceinline__ void clear() {
        for (int e = threadIdx.x; e < BLOCK_PAIRS / 32 * MOST_EXPERTS / 2; e += BLOCK_PAIRS) {
            reinterpret_cast<u32*>(before)[e] = 0;
        }
    }
};

// How many pairs of the thread's expert `e` this block has (before each of its warps: room.before),
// earlier blocks have, and all blocks have.
__device__ __forceinline__ int2 count_pairs(
    GroupRoom& room, const int* counts, i64 experts, int e) {
    int own = 0, earlier = 0, all = 0;
    for (int w = 0; w < BLOCK_PAIRS / 32; ++w) {
        const int held = room.before[w][e];
        room.before[w][e] = static_cast<u16>(own);
        own += held;
    }
    if (gridDim.x == 1) return make_int2(0, own);
#pragma unroll 8
    for (int block = 0; block < gridDim.x; ++block) {
        const int held = counts[block * experts + e];
        if (block < blockIdx.x) earlier += held;
        all += held;
    }
    return make_int2(earlier, all);
}

// Places this thread's pair, which chose expert `id` (-1: there is no pair). `room` is clear.
__device__ __forceinline__ void group_pairs(
    const Groups& to, GroupRoom& room, i64 experts, i64 top, i64 pair, int id) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 alike = __match_any_sync(ALL_LANES, id);
    const int rank = __popc(alike & ((1u << lane) - 1u));
    if (id >= 0 && rank == 0) room.before[warp][id] = static_cast<u16>(__popc(alike));
    __syncthreads();
    // A thread for each expert, in turns.
    int2 done = make_int2(0, 0);
    for (int first = 0; first < experts; first += BLOCK_PAIRS) {
        const int e = first + threadIdx.x;
        const int2 held =
            e < experts ? count_pairs(room, to.counts, experts, e) : make_int2(0, 0);
        const int all = held.y, pieces = all > 0 ? pieces_of(all, to.sizes) : 0;
        const int2 sums = running_sums(make_int2(all, pieces));
        const int start = done.x + sums.x - all;
        if (e < experts) room.starts[e] = start + held.x;
        if (blockIdx.x == 0 && pieces > 0) {
            const int each = (all + pieces - 1) / pieces;
            for (int i = 0; i < pieces; ++i) {
                to.tiles[done.y + sums.y - pieces + i] =
                    make_int4(e, start + i * each, max(0, min(each, all - i * each)), 0);
            }
        }
        if (threadIdx.x == BLOCK_PAIRS - 1) room.reached = make_int2(done.x + sums.x, done.y + sums.y);
        __syncthreads();
        done = room.reached;
    }
    if (id >= 0) {
        const int at = room.starts[id] + room.before[warp][id] + rank;
        to.source[at] = static_cast<int>(pair) / static_cast<int>(top);
        to.place[pair] = at;
    }
    if (blockIdx.x > 0) return;
    for (i64 i = done.y + threadIdx.x; i <= to.most; i += BLOCK_PAIRS) {
        to.tiles[i] = make_int4(i == to.most ? done.y : 0, 0, 0, 0);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_PAIRS) group_by_expert(
    const int* ids, i64 pairs, i64 top, i64 experts, u64 sizes, i64 most,
    const int* counts, int* source, int* place, int4* tiles) {
    __shared__ GroupRoom room;
    let_next_start();
    room.clear();
    __syncthreads();
    wait_for_previous();
    const i64 pair = static_cast<i64>(blockIdx.x) * BLOCK_PAIRS + threadIdx.x;
    const Groups to{sizes, most, counts, source, place, tiles};
    group_pairs(to, room, experts, top, pair, pair < pairs ? ids[pair] : -1);
}

// Places the pairs of a warp's `row`. `takers` has a bit for each row that chose an expert.
__device__ __forceinline__ void group_few(
    const Groups& to, const Choice& choice, const u32* takers, int row, const Router& router) {
    const int lane = threadIdx.x % 32;
    const int behind = min(choice.first + choice.each, router.experts);
    // Pairs, and tiles << 16.
    const auto held = [&](int e) {
        const u32 pairs = __popc(takers[e]);
        return pairs + ((pairs + TILE - 1) / TILE << 16);
    };
    u32 own = 0;
#pragma unroll 4
    for (int e = choice.first; e < behind; ++e) own += held(e);
    u32 reached = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 below = __shfl_up_sync(ALL_LANES, reached, step);
        if (lane >= step) reached += below;
    }
    const int tiles = __shfl_sync(ALL_LANES, reached, 31) >> 16;
    reached -= own;
    int* place = to.place + row * router.top + choice.before;
#pragma unroll 1
    for (int e = choice.first; e < behind; ++e) {
        const u32 more = held(e);
        const int start = reached & 0xffffu, tile = reached >> 16, pairs = more & 0xffffu;
        reached += more;
        if (choice.taken >> (e - choice.first) & 1u) {
            const int at = start + __popc(takers[e] & ((1u << row) - 1u));
            to.source[at] = row;
            *place++ = at;
        }
        if (row > 0 || pairs == 0) continue;
        // Rows are at most two tiles'.
        const int part = pairs > TILE ? (pairs + 1) / 2 : pairs;
        to.tiles[tile] = make_int4(e, start, part, 0);
        if (part < pairs) to.tiles[tile + 1] = make_int4(e, start + part, pairs - part, 0);
    }
    if (row > 0) return;
#pragma unroll 1
    for (int i = tiles + lane; i <= to.most; i += 32) {
        to.tiles[i] = make_int4(i == to.most ? tiles : 0, 0, 0, 0);
    }
}

// The same of a row alone, whose choice `id` is the lane's.
__device__ __forceinline__ void group_one(const Groups& to, int id, int top) {
    const int lane = threadIdx.x % 32;
    if (lane < top) {
        to.source[lane] = 0;
        to.place[lane] = lane;
        to.tiles[lane] = make_int4(id, lane, 1, 0);
    }
    // There are no more tiles than pairs.
    if (lane == 0) to.tiles[top] = make_int4(top, 0, 0, 0);
}

// As route_rows and group_by_expert for at most ROUTED rows, by one block.
template <int HELD>
__device__ __forceinline__ void route_and_group(
    const Router& router, const Groups& to, int rows, int* ids, float* weights) {
    extern __shared__ __align__(16) u32 memory[];
    __shared__ u32 takers[MOST_EXPERTS];
    const RouteRoom room = route_room(memory, rows * router.experts);
    const int warp = threadIdx.x / 32, first = warp * router.top, at = warp * router.experts;
    let_next_start();
#pragma unroll 1
    for (int pass = first_pass(gridDim.x); pass < 2; ++pass) {
        // What follows writes over what the pass before has read.
        __syncthreads();
#pragma unroll 1
        for (int e = threadIdx.x; e < router.experts; e += BLOCK_PAIRS) takers[e] = 0;
        const bool counts = counts_now(pass);
        score_rows(router, router.logits, rows, room);
        __syncthreads();
        Choice choice;
        int id = 0;
        if (warp < rows) {
            choice.make<HELD>(router, room.keys + at);
            id = choice.give(
                router, room.scores + at, room.chosen[warp], ids + first, weights + first, counts);
        }
        if (rows == 1) {
            if (warp == 0 && counts) group_one(to, id, router.top);
            continue;
        }
        if (warp < rows && threadIdx.x % 32 < router.top) atomicOr(&takers[id], 1u << warp);
        __syncthreads();
        if (warp < rows && counts) group_few(to, choice, takers, warp, router);
    }
}

// By the experts that a lane has room for.
#define ROUTE(HELD)                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK_PAIRS) route_sigmoid_##HELD(                     \
        const float* logits, i64 stride, const float* bias, i64 rows, i64 experts, i64 top,       \
        i64 normalise, double scale, int* ids, float* weights) {                                  \
        const Router router{logits, stride, bias, static_cast<int>(experts),                      \
                            static_cast<int>(top), static_cast<int>(normalise),                   \
                            static_cast<float>(scale)};                                           \
        route_rows<HELD>(router, rows, ids, weights);                                             \
    }                                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK_PAIRS) route_and_group_##HELD(                   \
        const float* logits, i64 stride, const float* bias, i64 rows, i64 experts, i64 top,       \
        i64 normalise, double scale, int* ids, float* weights, i64 most, int* source, int* place, \
        int4* tiles) {                                                                            \
        const Router router{logits, stride, bias, static_cast<int>(experts),                      \
                            static_cast<int>(top), static_cast<int>(normalise),                   \
                            static_cast<float>(scale)};                                           \
        const Groups to{0, most, nullptr, source, place, tiles};                                  \
        route_and_group<HELD>(router, to, static_cast<int>(rows), ids, weights);                  \
    }

ROUTE(5)
ROUTE(8)
ROUTE(32)

// A value of a row that kernels in front write, asked for before it is looked at.
struct Asked {
    float wide;
    u16 narrow;

    __device__ __forceinline__ Asked(const void* row, i64 i, i64 is_wide, bool real)
        : wide(0.0f), narrow(0) {
        if (real && is_wide) wide = __ldcg(static_cast<const float*>(row) + i);
        if (real && !is_wide) narrow = __ldcg(static_cast<const u16*>(row) + i);
    }
    __device__ __forceinline__ float value(i64 is_wide) const {
        return is_wide ? wide : bf16_float(narrow);
    }
};

// out[r] = sum of weight * result over r's choices in ascending expert order, then + shared[r],
// added to what out[r] holds when `add`.
// Grid: (rows, width / 256).
extern "C" __global__ void __launch_bounds__(COMBINED, 2) combine(
    const float* result, i64 stride, const int* place, const float* weights, i64 top,
    const void* shared, i64 shared_stride, i64 shared_wide, i64 width, void* out, i64 out_stride,
    i64 out_wide, i64 add) {
    const int i = blockIdx.y * blockDim.x + threadIdx.x, choices = static_cast<int>(top);
    __shared__ i64 places[MOST_TOP];
    __shared__ float own_weights[MOST_TOP];
    let_next_start();
    const i64 row = blockIdx.x, own = row * top + min(static_cast<int>(threadIdx.x), choices - 1);
    const u8* beside = row_at(shared, row, shared_stride, shared_wide);
    u8* to = row_at(out, row, out_stride, out_wide);
#pragma unroll 1
    for (int pass = first_pass(gridDim.x); pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        __syncthreads();
        // What is added last does not wait for the choices' places.
        const Asked more(beside, i, shared_wide, shared != nullptr && i < width);
        const Asked before(to, i, out_wide, add && i < width);
        if (threadIdx.x < MOST_TOP) {
            const int at = __ldcg(place + own);
            own_weights[threadIdx.x] = __ldcg(weights + own);
            places[threadIdx.x] = counts ? at * stride : 0;
        }
        __syncthreads();
        if (i >= width) continue;
        float sum = 0.0f;
#pragma unroll 1
        for (int first = 0; first < choices; first += TOGETHER) {
            float parts[TOGETHER];
            // Behind the last choice that one again, which counts for nothing.
#pragma unroll
            for (int j = 0; j < TOGETHER; ++j) parts[j] = __ldcg(result + places[first + j] + i);
#pragma unroll
            for (int j = 0; j < TOGETHER; ++j) {
                const float next = __fmaf_rn(own_weights[first + j], parts[j], sum);
                sum = first + j < choices ? next : sum;
            }
        }
        if (shared != nullptr) sum += more.value(shared_wide);
        if (add) sum += before.value(out_wide);
        if (counts) store_value(to, i, out_wide, sum);
    }
}
