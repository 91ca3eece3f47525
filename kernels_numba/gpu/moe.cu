// Sigmoid routing, grouping of pairs by expert, and the weighted combination.
#include "common.cuh"

constexpr int MOST_EXPERTS = 1024;
constexpr int MOST_TOP = 32;
constexpr int GROUP_THREADS = 1024;
constexpr int AT_ONCE = 8;

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

// Sorts the pairs (row, choice) by expert, stably, in one block: `source` [pairs] is the row of each
// sorted place, `place` [pairs] the sorted place of each pair, `tiles` [most] the pieces of at most
// `size` places of one expert: (expert, first, count, 0), and count 0 beyond them; tiles[most] holds
// how many there are.
extern "C" __global__ void __launch_bounds__(GROUP_THREADS) group_by_expert(
    const int* ids, i64 pairs, i64 top, i64 experts, i64 size, i64 most, int* source, int* place,
    int4* tiles) {
    __shared__ int counts[MOST_EXPERTS], starts[MOST_EXPERTS], first_tiles[MOST_EXPERTS];
    __shared__ int2 warps[GROUP_THREADS / 32];
    __shared__ int used;
    const int lane = threadIdx.x % 32;
    let_next_start();
    wait_for_previous();
    for (int e = threadIdx.x; e < experts; e += GROUP_THREADS) counts[e] = 0;
    __syncthreads();
    for (i64 p = threadIdx.x; p < pairs; p += GROUP_THREADS) atomicAdd(&counts[ids[p]], 1);
    __syncthreads();
    // Running sums of (places, tiles) over experts, one a thread.
    const int each = static_cast<int>(threadIdx.x) < experts ? counts[threadIdx.x] : 0;
    const int pieces = (each + static_cast<int>(size) - 1) / static_cast<int>(size);
    int at = each, tile = pieces;
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, at, step);
        const int before_tile = __shfl_up_sync(0xffffffffu, tile, step);
        if (lane >= step) {
            at += before;
            tile += before_tile;
        }
    }
    if (lane == 31) warps[threadIdx.x / 32] = make_int2(at, tile);
    __syncthreads();
    for (int w = 0; w < static_cast<int>(threadIdx.x) / 32; ++w) {
        at += warps[w].x;
        tile += warps[w].y;
    }
    if (static_cast<int>(threadIdx.x) < experts) {
        starts[threadIdx.x] = at - each;
        first_tiles[threadIdx.x] = tile - pieces;
    }
    if (threadIdx.x == GROUP_THREADS - 1) used = tile;
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += GROUP_THREADS) {
        int to = first_tiles[e];
        for (int done = 0; done < counts[e]; done += static_cast<int>(size)) {
            tiles[to++] =
                make_int4(e, starts[e] + done, min(static_cast<int>(size), counts[e] - done), 0);
        }
    }
    for (i64 i = used + threadIdx.x; i <= most; i += GROUP_THREADS) {
        tiles[i] = make_int4(i == most ? used : 0, 0, 0, 0);
    }
    // A warp finds the pairs of AT_ONCE experts in one pass over the ids.
    constexpr int STRIDE = GROUP_THREADS / 32;
    for (int first = threadIdx.x / 32; first < experts; first += AT_ONCE * STRIDE) {
        int next[AT_ONCE], left = 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            const int e = first + j * STRIDE;
            next[j] = e < experts ? starts[e] : 0;
            left += e < experts ? counts[e] : 0;
        }
        for (i64 p0 = 0; p0 < pairs && left > 0; p0 += 32) {
            const int id = p0 + lane < pairs ? ids[p0 + lane] : -1;
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                const bool mine = id == first + j * STRIDE;
                const u32 found = __ballot_sync(0xffffffffu, mine);
                if (mine) {
                    const int to = next[j] + __popc(found & ((1u << lane) - 1u));
                    source[to] = static_cast<int>(p0 + lane) / static_cast<int>(top);
                    place[p0 + lane] = to;
                }
                next[j] += __popc(found);
                left -= __popc(found);
            }
        }
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
