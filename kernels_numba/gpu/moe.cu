// Sigmoid routing, grouping of pairs by expert, and the weighted combination.
#include "common.cuh"

constexpr int MOST_EXPERTS = 1024;
constexpr int MOST_TOP = 32;
constexpr int SHARE = 512;  // pairs of a block that sorts

// One warp a row: the `top` by score + bias, ties to the lower id, then in ascending order.
extern "C" __global__ void __launch_bounds__(32) route_sigmoid(
    const float* logits, i64 stride, const float* bias, i64 experts, i64 top, i64 normalise,
    double scale, int* ids, float* weights) {
    __shared__ float scores[MOST_EXPERTS], choices[MOST_EXPERTS];
    __shared__ int chosen[MOST_TOP];
    const int lane = threadIdx.x;
    let_next_start();
    wait_for_previous();
    const float* row = logits + blockIdx.x * stride;
    for (int e = lane; e < experts; e += 32) {
        scores[e] = 1.0f / (1.0f + expf(-row[e]));
        choices[e] = scores[e] + bias[e];
    }
    __syncwarp();
    for (int j = 0; j < top; ++j) {
        float best = NEGATIVE_INFINITY;
        int at = MOST_EXPERTS;
        for (int e = lane; e < experts; e += 32) {
            if (choices[e] > best) {
                best = choices[e];
                at = e;
            }
        }
        for (int step = 16; step >= 1; step /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, step);
            const int other_at = __shfl_xor_sync(0xffffffffu, at, step);
            if (other > best || (other == best && other_at < at)) {
                best = other;
                at = other_at;
            }
        }
        // A row without finite scores still names experts that exist.
        if (at >= experts) at = j;
        if (lane == 0) {
            chosen[j] = at;
            choices[at] = NEGATIVE_INFINITY;
        }
        __syncwarp();
    }
    // A lane per choice: its place among them, then the sum in ascending order, as all lanes see it.
    int place = 0;
    const int id = lane < top ? chosen[lane] : 0;
    for (int j = 0; j < top; ++j) place += chosen[j] < id || (chosen[j] == id && j < lane);
    __syncwarp();
    if (lane < top) chosen[place] = id;
    __syncwarp();
    float sum = 0.0f;
    for (int j = 0; j < top; ++j) sum += scores[chosen[j]];
    if (lane >= top) return;
    float weight = scores[chosen[lane]];
    if (normalise) weight = weight / (sum + 1e-20f);
    ids[blockIdx.x * top + lane] = chosen[lane];
    weights[blockIdx.x * top + lane] = weight * static_cast<float>(scale);
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
// have at most as many places as one of four `sizes` of sixteen bits, the one that wastes least. Each block places its SHARE pairs, from the counts of
// all blocks where there are several.
extern "C" __global__ void __launch_bounds__(SHARE) group_by_expert(
    const int* ids, i64 pairs, i64 top, i64 experts, u64 sizes, i64 most,
    const int* counts, int* source, int* place, int4* tiles) {
    __shared__ u16 before[SHARE / 32][MOST_EXPERTS];
    __shared__ int starts[MOST_EXPERTS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    for (int e = threadIdx.x; e < SHARE / 32 * MOST_EXPERTS / 2; e += SHARE) {
        reinterpret_cast<u32*>(before)[e] = 0;
    }
    __syncthreads();
    wait_for_previous();
    const i64 pair = static_cast<i64>(blockIdx.x) * SHARE + threadIdx.x;
    const int id = pair < pairs ? ids[pair] : -1;
    const u32 alike = __match_any_sync(0xffffffffu, id);
    const int rank = __popc(alike & ((1u << lane) - 1u));
    if (id >= 0 && rank == 0) before[warp][id] = static_cast<u16>(__popc(alike));
    __syncthreads();
    // A thread for each expert, in turns: its pairs in this block's warps, in earlier blocks, in all.
    int2 done = make_int2(0, 0);
    for (int first = 0; first < experts; first += SHARE) {
        const int e = first + threadIdx.x;
        int own = 0, earlier = 0, all = 0;
        if (e < experts) {
            for (int w = 0; w < SHARE / 32; ++w) {
                const int held = before[w][e];
                before[w][e] = static_cast<u16>(own);
                own += held;
            }
            all = gridDim.x == 1 ? own : 0;
#pragma unroll 8
            for (int block = 0; gridDim.x > 1 && block < gridDim.x; ++block) {
                const int held = counts[block * experts + e];
                if (block < blockIdx.x) earlier += held;
                all += held;
            }
        }
        const int pieces = all > 0 ? pieces_of(all, sizes) : 0;
        const int2 sums = running_sums(make_int2(all, pieces));
        const int start = done.x + sums.x - all;
        if (e < experts) starts[e] = start + earlier;
        if (blockIdx.x == 0 && pieces > 0) {
            const int each = (all + pieces - 1) / pieces;
            for (int i = 0; i < pieces; ++i) {
                tiles[done.y + sums.y - pieces + i] =
                    make_int4(e, start + i * each, max(0, min(each, all - i * each)), 0);
            }
        }
        __shared__ int2 reached;
        if (threadIdx.x == SHARE - 1) reached = make_int2(done.x + sums.x, done.y + sums.y);
        __syncthreads();
        done = reached;
    }
    if (id >= 0) {
        const int to = starts[id] + before[warp][id] + rank;
        source[to] = static_cast<int>(pair) / static_cast<int>(top);
        place[pair] = to;
    }
    if (blockIdx.x > 0) return;
    for (i64 i = done.y + threadIdx.x; i <= most; i += SHARE) {
        tiles[i] = make_int4(i == most ? done.y : 0, 0, 0, 0);
    }
}

// out[r] = sum of weight * result over r's choices in ascending expert order, then + shared[r],
// added to what out[r] holds when `add`.
// Grid: (rows, width / 256).
extern "C" __global__ void combine(
    const float* result, i64 stride, const int* place, const float* weights, i64 top,
    const void* shared, i64 shared_stride, i64 shared_wide, i64 width, void* out, i64 out_stride,
    i64 out_wide, i64 add) {
    const i64 i = static_cast<i64>(blockIdx.y) * blockDim.x + threadIdx.x;
    __shared__ i64 places[MOST_TOP];
    __shared__ float shares[MOST_TOP];
    let_next_start();
    wait_for_previous();
    const i64 row = blockIdx.x;
    if (threadIdx.x < top) {
        places[threadIdx.x] = place[row * top + threadIdx.x] * stride;
        shares[threadIdx.x] = weights[row * top + threadIdx.x];
    }
    __syncthreads();
    if (i >= width) return;
    // Where all are known the loads need not wait for one another.
    float sum = 0.0f;
#pragma unroll 8
    for (int j = 0; j < static_cast<int>(top); ++j) {
        sum = __fmaf_rn(shares[j], result[places[j] + i], sum);
    }
    if (shared != nullptr) {
        sum += load_value(row_at(shared, row, shared_stride, shared_wide), i, shared_wide);
    }
    u8* to = row_at(out, row, out_stride, out_wide);
    if (add) sum += load_value(to, i, out_wide);
    store_value(to, i, out_wide, sum);
}
