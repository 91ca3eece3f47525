// What stands around the forward pass of a step: fed tokens before it, the engine's own picks after.
// Launched by backend.py and, draw_rows, by picker.py. The CPU backend has neither: there the sampler
// draws.
#include "common.cuh"
#include "draw.cuh"

__device__ __forceinline__ u64 device_time() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Rows of a step from the host's memory: `words` are the tokens, positions and slots of `count` rows.
// A token below 0 becomes the last pick of the row's slot. `began` gets the device's time in ns.
extern "C" __global__ void begin_step(
    const int* words, i64 count, int* tokens, int* positions, int* slots, const int* picks,
    u64* began) {
    const i64 r = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    // The host's memory is far away, and what lies there was written before the launch. Nothing behind
    // this kernel may start early: it may read positions before it waits.
    const bool there = r < count;
    const int token = there ? words[r] : 0, position = there ? words[count + r] : 0;
    const int slot = there ? words[2 * count + r] : 0;
    wait_for_previous();
    if (r == 0) *began = device_time();
    if (!there) return;
    const int picked = token < 0 ? __ldcg(picks + slot) : token;
    positions[r] = position;
    slots[r] = slot;
    tokens[r] = picked;
}

// Each row's token from its candidates, -1 where they do not decide it; kept for its slot as well,
// where an id that is at least valid takes the place of what was not decided. `times` gets when the
// step began and ended. One block a row, MOST_CANDIDATES threads. What runs before the wait draws from
// equal candidates: an exact sum has room for weights that candidates can have, not for any.
extern "C" __global__ void __launch_bounds__(MOST_CANDIDATES) draw_rows(
    const Draw* draws, i64 wanted, const int* ids, const float* values, const int* held,
    const double* lse, int* picked, int* picks, const u64* began, u64* times) {
    __shared__ DrawScratch scratch;
    const i64 r = blockIdx.x;
    let_next_start();
    // It stood there before the pick's first kernel began.
    const Draw draw = draws[r];
    const int* own = ids + r * wanted;
#pragma unroll 1
    for (int pass = first_pass(gridDim.x); pass < 2; ++pass) {
        __syncthreads();
        const bool counts = counts_now(pass);
        const float* from = counts ? values + r * wanted : nullptr;
        const int count = counts ? __ldcg(held + r) : static_cast<int>(wanted);
        const double sum = counts ? __ldcg(lse + r) : 0.0;
        const int rank = draw.slot < 0 ? -1 : draw_rank(scratch, draw, from, count, sum);
        if (threadIdx.x != 0 || !counts) continue;
        picked[r] = rank < 0 ? -1 : own[rank];
        if (draw.slot >= 0) picks[draw.slot] = max(own[max(rank, 0)], 0);
        if (r == 0) {
            times[0] = *began;
            times[1] = device_time();
        }
    }
}
