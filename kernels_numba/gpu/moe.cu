// Sigmoid routing, grouping of pairs by expert, and the weighted combination.
#include "common.cuh"

constexpr int MOST_EXPERTS = 1024;
constexpr int MOST_TOP = 32;
constexpr int SHARE = 512;  // pairs of a block that sorts

// How an expert of a lane's is chosen: larger keys first, 0 for what has no finite choice.
__device__ __forceinline__ u32 choice_key(float choice) {
    if (!(choice > NEGATIVE_INFINITY)) return 0u;
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

// What a block of SHARE threads knows of its rows' choices: as they were made, ascending by expert,
// and their scores.
struct RouteRoom {
    int chosen[SHARE], sorted[SHARE];
    float scores[SHARE];
};

// The `top` of each of `rows` rows by score + bias, ties to the lower id, then in ascending order; at
// most SHARE choices in all. `keys` is room for all rows' experts. Everything is found by counting
// what comes before it: little code, which is read from memory for each kernel anew.
__device__ __forceinline__ void route_rows(
    const Router& router, int rows, u32* keys, RouteRoom& room, int* ids, float* weights,
    bool counts) {
    const int experts = router.experts, top = router.top, all = rows * experts;
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += SHARE) {
        const int row = i / experts, e = i % experts;
        const float logit = __ldcg(router.logits + row * router.stride + e);
        keys[i] = choice_key(__fadd_rn(score_of(logit), router.bias[e]));
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += SHARE) {
        const int row = i / experts, e = i % experts;
        const u32* others = keys + row * experts;
        const u32 own = keys[i];
        int before = 0;
#pragma unroll 4
        for (int o = 0; o < experts; ++o) before += others[o] > own || (others[o] == own && o < e);
        if (before < top) room.chosen[row * top + before] = e;
    }
    __syncthreads();
    const int mine = threadIdx.x, first = mine / top * top;
    const bool real = mine < rows * top;
    if (real) {
        const int own = room.chosen[mine];
        int before = 0;
#pragma unroll 1
        for (int j = 0; j < top; ++j) before += room.chosen[first + j] < own;
        room.sorted[first + before] = own;
        const float* row = router.logits + mine / top * router.stride;
        room.scores[first + before] = score_of(__ldcg(row + own));
    }
    __syncthreads();
    if (!real) return;
    float sum = 0.0f;
#pragma unroll 1
    for (int j = 0; j < top; ++j) sum = __fadd_rn(sum, room.scores[first + j]);
    float weight = room.scores[mine];
    if (router.normalise) weight = __fdiv_rn(weight, __fadd_rn(sum, 1e-20f));
    if (!counts) return;
    ids[mine] = room.sorted[mine];
    weights[mine] = __fmul_rn(weight, router.scale);
}

// ids and weights [rows, top], ascending. One block a row.
extern "C" __global__ void __launch_bounds__(SHARE) route_sigmoid(
    const float* logits, i64 stride, const float* bias, i64 experts, i64 top, i64 normalise,
    double scale, int* ids, float* weights) {
    extern __shared__ __align__(16) u32 keys[];
    __shared__ RouteRoom room;
    let_next_start();
    wait_for_previous();
    const i64 row = blockIdx.x;
    const Router router{logits + row * stride, stride, bias, static_cast<int>(experts),
                        static_cast<int>(top), static_cast<int>(normalise),
                        static_cast<float>(scale)};
    route_rows(router, 1, keys, room, ids + row * top, weights + row * top, true);
}

// How many of a block's SHARE pairs each expert has: counts [blocks, experts].
extern "C" __global__ void __launch_bounds__(SHARE) count_by_expert(
    const int* ids, i64 pairs, i64 experts, int* counts) {
    __shared__ int held[MOST_EXPERTS];
    let_next_start();
    for (int e = threadIdx.x; e < experts; e += SHARE) held[e] = 0;
    __syncthreads();
    wait_for_previous();
    const i64 pair = static_cast<i64>(blockIdx.x) * SHARE + threadIdx.x;
    if (pair < pairs) atomicAdd(&held[ids[pair]], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += SHARE) counts[blockIdx.x * experts + e] = held[e];
}

// Running sums over the block's threads, of two numbers each.
__device__ __forceinline__ int2 running_sums(int2 value) {
    __shared__ int2 warps[SHARE / 32];
    const int lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const int x = __shfl_up_sync(0xffffffffu, value.x, step);
        const int y = __shfl_up_sync(0xffffffffu, value.y, step);
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
    constexpr int BESIDE = 16;
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
// block places its SHARE pairs, from the `counts` of all blocks where there are several.
struct Groups {
    u64 sizes;
    i64 most;
    const int* counts;
    int* source;
    int* place;
    int4* tiles;
};

struct GroupRoom {
    u16 before[SHARE / 32][MOST_EXPERTS];
    int starts[MOST_EXPERTS];
    int2 reached;

    __device__ __forceinline__ void clear() {
        for (int e = threadIdx.x; e < SHARE / 32 * MOST_EXPERTS / 2; e += SHARE) {
            reinterpret_cast<u32*>(before)[e] = 0;
        }
    }
};

// How many pairs of the thread's expert `e` this block has (before each of its warps: room.before),
// earlier blocks have, and all blocks have.
__device__ __forceinline__ int2 count_pairs(
    GroupRoom& room, const int* counts, i64 experts, int e) {
    int own = 0, earlier = 0, all = 0;
    for (int w = 0; w < SHARE / 32; ++w) {
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
    const u32 alike = __match_any_sync(0xffffffffu, id);
    const int rank = __popc(alike & ((1u << lane) - 1u));
    if (id >= 0 && rank == 0) room.before[warp][id] = static_cast<u16>(__popc(alike));
    __syncthreads();
    // A thread for each expert, in turns.
    int2 done = make_int2(0, 0);
    for (int first = 0; first < experts; first += SHARE) {
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
        if (threadIdx.x == SHARE - 1) room.reached = make_int2(done.x + sums.x, done.y + sums.y);
        __syncthreads();
        done = room.reached;
    }
    if (id >= 0) {
        const int at = room.starts[id] + room.before[warp][id] + rank;
        to.source[at] = static_cast<int>(pair) / static_cast<int>(top);
        to.place[pair] = at;
    }
    if (blockIdx.x > 0) return;
    for (i64 i = done.y + threadIdx.x; i <= to.most; i += SHARE) {
        to.tiles[i] = make_int4(i == to.most ? done.y : 0, 0, 0, 0);
    }
}

extern "C" __global__ void __launch_bounds__(SHARE) group_by_expert(
    const int* ids, i64 pairs, i64 top, i64 experts, u64 sizes, i64 most,
    const int* counts, int* source, int* place, int4* tiles) {
    __shared__ GroupRoom room;
    let_next_start();
    room.clear();
    __syncthreads();
    wait_for_previous();
    const i64 pair = static_cast<i64>(blockIdx.x) * SHARE + threadIdx.x;
    const Groups to{sizes, most, counts, source, place, tiles};
    group_pairs(to, room, experts, top, pair, pair < pairs ? ids[pair] : -1);
}

// Places the pair of each thread, of which the block has all `pairs`, by counting; `pieces` is room.
__device__ __forceinline__ void group_few(
    const Groups& to, const int* ids, int* pieces, int pairs, int top, bool counts) {
    const int mine = threadIdx.x;
    const int id = mine < pairs ? ids[mine] : MOST_EXPERTS;
    int smaller = 0, alike = 0, before = 0, tile = 0, tiles = 0;
#pragma unroll 4
    for (int q = 0; q < pairs; ++q) {
        smaller += ids[q] < id;
        alike += ids[q] == id;
        before += ids[q] == id && q < mine;
    }
    // An expert's first pair tells of its tiles.
    const bool leads = mine < pairs && before == 0;
    const int own = leads ? pieces_of(alike, to.sizes) : 0;
    pieces[mine] = own;
    if (mine < pairs && counts) {
        to.source[smaller + before] = mine / top;
        to.place[mine] = smaller + before;
    }
    __syncthreads();
#pragma unroll 4
    for (int q = 0; q < pairs; ++q) {
        tiles += pieces[q];
        if (ids[q] < id) tile += pieces[q];
    }
    if (!counts) return;
    const int each = leads ? (alike + own - 1) / own : 0;
#pragma unroll 1
    for (int i = 0; i < own; ++i) {
        to.tiles[tile + i] =
            make_int4(id, smaller + i * each, max(0, min(each, alike - i * each)), 0);
    }
    for (i64 i = tiles + mine; i <= to.most; i += SHARE) {
        to.tiles[i] = make_int4(i == to.most ? tiles : 0, 0, 0, 0);
    }
}

// As route_sigmoid and group_by_expert for at most SHARE pairs, by one block.
extern "C" __global__ void __launch_bounds__(SHARE) route_and_group(
    const float* logits, i64 stride, const float* bias, i64 rows, i64 experts, i64 top,
    i64 normalise, double scale, int* ids, float* weights, u64 sizes, i64 most, int* source,
    int* place, int4* tiles) {
    extern __shared__ __align__(16) u32 keys[];
    __shared__ RouteRoom room;
    let_next_start();
    const Router router{logits, stride, bias, static_cast<int>(experts), static_cast<int>(top),
                        static_cast<int>(normalise), static_cast<float>(scale)};
    const Groups to{sizes, most, nullptr, source, place, tiles};
    const int pairs = static_cast<int>(rows * top);
#pragma unroll 1
    for (int pass = first_pass(gridDim.x); pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        // What follows writes over what the pass before has read.
        __syncthreads();
        route_rows(router, static_cast<int>(rows), keys, room, ids, weights, counts);
        __syncthreads();
        group_few(to, room.sorted, room.chosen, pairs, router.top, counts);
    }
}

// out[r] = sum of weight * result over r's choices in ascending expert order, then + shared[r],
// added to what out[r] holds when `add`.
// Grid: (rows, width / 256).
extern "C" __global__ void combine(
    const float* result, i64 stride, const int* place, const float* weights, i64 top,
    const void* shared, i64 shared_stride, i64 shared_wide, i64 width, void* out, i64 out_stride,
    i64 out_wide, i64 add) {
    const int i = blockIdx.y * blockDim.x + threadIdx.x, choices = static_cast<int>(top);
    __shared__ i64 places[MOST_TOP];
    __shared__ float shares[MOST_TOP];
    let_next_start();
    const i64 row = blockIdx.x;
#pragma unroll 1
    for (int pass = first_pass(gridDim.x); pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < choices) {
            const i64 at = row * top + threadIdx.x;
            places[threadIdx.x] = counts ? __ldcg(place + at) * stride : 0;
            shares[threadIdx.x] = __ldcg(weights + at);
        }
        __syncthreads();
        if (i >= width) continue;
        // Where all are known the loads need not wait for one another.
        float sum = 0.0f;
#pragma unroll 8
        for (int j = 0; j < choices; ++j) {
            sum = __fmaf_rn(shares[j], __ldcg(result + places[j] + i), sum);
        }
        if (shared != nullptr) {
            const u8* own = row_at(shared, row, shared_stride, shared_wide);
            sum += shared_wide ? __ldcg(reinterpret_cast<const float*>(own) + i)
                               : load_value(own, i, false);
        }
        u8* to = row_at(out, row, out_stride, out_wide);
        if (add) sum += out_wide ? __ldcg(reinterpret_cast<const float*>(to) + i) : load_value(to, i, false);
        if (counts) store_value(to, i, out_wide, sum);
    }
}
