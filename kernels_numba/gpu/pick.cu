// From logits to candidates: penalties, bias, mask; exact head of the canonical order; log-sum-exp.
#include "common.cuh"

constexpr int CHUNK = 256;
constexpr int GROUP = 64;
constexpr int PICK_THREADS = 1024;
constexpr int MOST_KEYS = 8192;

struct Row {
    const float* logits;
    double temperature;
};

// out = logits of one row after repetition, frequency and presence penalties, bias and mask; the
// number of ids that the mask leaves is added to `present`. Null pointers leave a step out.
extern "C" __global__ void adjust_row(
    const float* logits, i64 size, const int* counts, double repetition, double frequency,
    double presence, const float* bias, const u32* mask, float* out, int* present) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    bool left = false;
    if (i < size) {
        float value = logits[i];
        if (counts != nullptr && counts[i] >= 1) {
            const float r = static_cast<float>(repetition);
            value = value > 0.0f ? __fdiv_rn(value, r) : __fmul_rn(value, r);
            value = __fmaf_rn(-static_cast<float>(frequency), static_cast<float>(counts[i]), value);
            value = __fsub_rn(value, static_cast<float>(presence));
        }
        if (bias != nullptr) value = __fadd_rn(value, bias[i]);
        left = mask == nullptr || (mask[i / 32] >> (i % 32) & 1u) != 0;
        out[i] = left ? value : NEGATIVE_INFINITY;
    }
    const u32 found = __ballot_sync(0xffffffffu, left);
    if (mask != nullptr && threadIdx.x % 32 == 0) atomicAdd(present, __popc(found));
}

// tops[r][g] = the largest of 64 logits. Grid: (chunks, rows), CHUNK threads.
extern "C" __global__ void __launch_bounds__(CHUNK) group_tops(
    const Row* rows, i64 size, float* tops, i64 groups) {
    __shared__ float warps[CHUNK / 32];
    const i64 i = static_cast<i64>(blockIdx.x) * CHUNK + threadIdx.x;
    float top = i < size ? rows[blockIdx.y].logits[i] : NEGATIVE_INFINITY;
    for (int step = 16; step >= 1; step /= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = top;
    __syncthreads();
    const i64 group = static_cast<i64>(blockIdx.x) * (CHUNK / GROUP) + threadIdx.x;
    if (threadIdx.x < CHUNK / GROUP && group < groups) {
        tops[blockIdx.y * groups + group] =
            fmaxf(warps[2 * threadIdx.x], warps[2 * threadIdx.x + 1]);
    }
}

// Ascending ranks are logits descending; zeros of both signs are equal.
__device__ __forceinline__ u32 rank_of(float value) {
    const int bits = __float_as_int(value + 0.0f);
    const int flipped = bits ^ (bits >> 31 & 0x7fffffff);
    return static_cast<u32>(0x7fffffffLL - flipped);
}

__device__ __forceinline__ float value_of(u32 rank) {
    const int flipped = static_cast<int>(0x7fffffffLL - rank);
    return __int_as_float(flipped ^ (flipped >> 31 & 0x7fffffff));
}

// One byte of a rank: in which of 256 counts the `left`-th falls. Called by one warp; the lane that
// finds it narrows `prefix` and `left`.
__device__ __forceinline__ void narrow_rank(
    const u32* counts, int shift, u32* prefix, u32* left) {
    const int lane = threadIdx.x;
    const u32 wanted = *left;
    u32 own = 0;
    for (int i = 0; i < 8; ++i) own += counts[8 * lane + i];
    u32 up_to = own;
    for (int step = 1; step < 32; step *= 2) {
        const u32 before = __shfl_up_sync(0xffffffffu, up_to, step);
        if (lane >= step) up_to += before;
    }
    if (up_to < wanted || up_to - own >= wanted) return;
    u32 rest = wanted - (up_to - own), digit = 8 * lane;
    while (counts[digit] < rest) rest -= counts[digit++];
    *left = rest;
    *prefix |= digit << shift;
}

// Each row's largest logit, and the `wanted`-th largest group top, which bounds the candidates from
// below (-inf where there are no more groups than that). One block a row.
extern "C" __global__ void __launch_bounds__(PICK_THREADS) row_bounds(
    const float* tops, i64 groups, i64 wanted, float* best, float* bounds) {
    __shared__ u32 counts[256], warps[PICK_THREADS / 32];
    __shared__ u32 prefix, left;
    const float* own = tops + blockIdx.x * groups;
    u32 least = 0xffffffffu;
    for (i64 i = threadIdx.x; i < groups; i += PICK_THREADS) least = min(least, rank_of(own[i]));
    for (int step = 16; step >= 1; step /= 2) {
        least = min(least, __shfl_xor_sync(0xffffffffu, least, step));
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = least;
    if (threadIdx.x == 0) {
        prefix = 0;
        left = static_cast<u32>(wanted);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < PICK_THREADS / 32; ++w) least = min(least, warps[w]);
        best[blockIdx.x] = value_of(least);
    }
    if (groups <= wanted) {
        if (threadIdx.x == 0) bounds[blockIdx.x] = NEGATIVE_INFINITY;
        return;
    }
    // From the top byte down: how many ranks with the prefix found so far have which next byte.
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) counts[threadIdx.x] = 0;
        __syncthreads();
        const u32 above = shift == 24 ? 0u : 0xffffffffu << (shift + 8);
        for (i64 i = threadIdx.x; i < groups; i += PICK_THREADS) {
            const u32 rank = rank_of(own[i]);
            if ((rank & above) == prefix) atomicAdd(&counts[rank >> shift & 255u], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) narrow_rank(counts, shift, &prefix, &left);
        __syncthreads();
    }
    if (threadIdx.x == 0) bounds[blockIdx.x] = value_of(prefix);
}

__device__ __forceinline__ double scaled(float logit, double temperature) {
    return static_cast<double>(__fdiv_rn(logit, static_cast<float>(temperature)));
}

// partials[r][c] = sum of exp(logit / T - largest) over a chunk, by halving. Grid: (chunks, rows).
extern "C" __global__ void __launch_bounds__(CHUNK) chunk_sums(
    const Row* rows, i64 size, const float* best, double* partials, i64 stride) {
    __shared__ double terms[CHUNK];
    const Row row = rows[blockIdx.y];
    const i64 i = static_cast<i64>(blockIdx.x) * CHUNK + threadIdx.x;
    const float top = best[blockIdx.y];
    double term = 0.0;
    if (i < size && top > NEGATIVE_INFINITY) {
        term = exp(scaled(row.logits[i], row.temperature) - scaled(top, row.temperature));
    }
    terms[threadIdx.x] = term;
    for (int half = CHUNK / 2; half >= 1; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) terms[threadIdx.x] += terms[threadIdx.x + half];
    }
    if (threadIdx.x == 0) partials[blockIdx.y * stride + blockIdx.x] = terms[0];
}

__device__ __forceinline__ void sort_keys(u64* keys, int size) {
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step >= 1; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < size; i += PICK_THREADS) {
                const int other = i ^ step;
                if (other <= i) continue;
                const u64 a = keys[i], b = keys[other];
                if ((a > b) == ((i & run) == 0)) {
                    keys[i] = b;
                    keys[other] = a;
                }
            }
        }
    }
    __syncthreads();
}

// The smallest key above `last` of ids at or above `bound`; all ones when there is none.
__device__ u64 next_key(const float* logits, i64 size, float bound, u64 last, bool any, u64* warps) {
    u64 least = ~0ull;
    for (i64 i = threadIdx.x; i < size; i += PICK_THREADS) {
        const float value = logits[i];
        if (value < bound || value == NEGATIVE_INFINITY) continue;
        const u64 key = static_cast<u64>(rank_of(value)) << 32 | static_cast<u64>(i);
        if (key < least && (!any || key > last)) least = key;
    }
    for (int step = 16; step >= 1; step /= 2) {
        least = min(least, __shfl_xor_sync(0xffffffffu, least, step));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = least;
    __syncthreads();
    least = warps[0];
    for (int w = 1; w < PICK_THREADS / 32; ++w) least = min(least, warps[w]);
    return least;
}

// Folds each row's chunk sums and writes its candidates. One block a row, MOST_KEYS keys of shared
// memory; a row with more ids at its bound than that is read once per candidate.
extern "C" __global__ void __launch_bounds__(PICK_THREADS) finish_rows(
    const Row* rows, i64 size, const float* tops, i64 groups, const float* best,
    const float* bounds, const double* partials, i64 chunks, i64 stride, i64 wanted, int* ids,
    float* values, int* held, double* lse) {
    extern __shared__ u64 keys[];
    __shared__ u64 warps[PICK_THREADS / 32];
    __shared__ int found;
    const i64 r = blockIdx.x;
    const Row row = rows[r];
    const float bound = bounds[r];
    if (threadIdx.x == 0) found = 0;
    // The keys' room holds the sums first.
    double* sums = reinterpret_cast<double*>(keys);
    for (i64 c = threadIdx.x; c < stride; c += PICK_THREADS) {
        sums[c] = c < chunks ? partials[r * stride + c] : 0.0;
    }
    for (i64 half = stride / 2; half >= 1; half /= 2) {
        __syncthreads();
        for (i64 i = threadIdx.x; i < half; i += PICK_THREADS) sums[i] += sums[i + half];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        lse[r] = best[r] == NEGATIVE_INFINITY ? static_cast<double>(NEGATIVE_INFINITY)
                                              : scaled(best[r], row.temperature) + log(sums[0]);
    }
    __syncthreads();
    // A lane looks at a group's top; the warp goes through the groups that reach the bound.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (i64 first = 32 * warp; first < groups; first += PICK_THREADS) {
        const i64 mine = first + lane;
        u32 reached = __ballot_sync(
            0xffffffffu, mine < groups && !(tops[r * groups + mine] < bound));
        for (; reached != 0; reached &= reached - 1) {
            const i64 g = first + __ffs(static_cast<int>(reached)) - 1;
            for (i64 i = g * GROUP + lane; i < min((g + 1) * GROUP, size); i += 32) {
                const float value = row.logits[i];
                if (value < bound || value == NEGATIVE_INFINITY) continue;
                const int at = atomicAdd(&found, 1);
                if (at < MOST_KEYS) {
                    keys[at] = static_cast<u64>(rank_of(value)) << 32 | static_cast<u64>(i);
                }
            }
        }
    }
    __syncthreads();
    const int all = found;
    const i64 count = min(static_cast<i64>(all), wanted);
    if (all <= MOST_KEYS) {
        int padded = 2;
        while (padded < all) padded *= 2;
        for (int i = all + threadIdx.x; i < padded; i += PICK_THREADS) keys[i] = ~0ull;
        sort_keys(keys, padded);
    } else {
        u64 last = 0;
        for (i64 j = 0; j < count; ++j) {
            last = next_key(row.logits, size, bound, last, j > 0, warps);
            if (threadIdx.x == 0) keys[j] = last;
        }
        __syncthreads();
    }
    for (i64 j = threadIdx.x; j < wanted; j += PICK_THREADS) {
        const int id = j < count ? static_cast<int>(keys[j] & 0xffffffffu) : -1;
        ids[r * wanted + j] = id;
        values[r * wanted + j] = j < count ? row.logits[id] : NEGATIVE_INFINITY;
    }
    if (threadIdx.x == 0) held[r] = static_cast<int>(count);
}
