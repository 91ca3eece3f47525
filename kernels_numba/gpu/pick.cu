// From logits to candidates: penalties, bias, mask; exact head of the canonical order; log-sum-exp.
#include "common.cuh"
#include "bound.cuh"

constexpr int CHUNK = 256;
constexpr int GROUP = 64;
constexpr int PICK_THREADS = 1024;
constexpr int SUM_THREADS = 128;
constexpr int MOST_KEYS = 8192;

struct Row {
    const float* logits;
    double temperature;
};

// What is done to a row of logits, from `logits` to `out`. Null pointers leave a step out.
struct Change {
    const float* logits;
    const int* counts;
    const float* bias;
    const u32* mask;
    float* out;
    int* present;
    double repetition, frequency, presence;
};

// Penalties for repetition, frequency and presence, bias, mask; the number of ids that the mask
// leaves is added to `present`. Grid: (chunks, rows).
extern "C" __global__ void __launch_bounds__(CHUNK) adjust_rows(const Change* rows, i64 size) {
    const i64 i = static_cast<i64>(blockIdx.x) * CHUNK + threadIdx.x;
    const Change row = rows[blockIdx.y];
    bool left = false;
    if (i < size) {
        float value = row.logits[i];
        const int count = row.counts == nullptr ? 0 : row.counts[i];
        if (count >= 1) {
            const float r = static_cast<float>(row.repetition);
            value = value > 0.0f ? __fdiv_rn(value, r) : __fmul_rn(value, r);
            value = __fmaf_rn(-static_cast<float>(row.frequency), static_cast<float>(count), value);
            value = __fsub_rn(value, static_cast<float>(row.presence));
        }
        if (row.bias != nullptr) value = __fadd_rn(value, row.bias[i]);
        left = row.mask == nullptr || (row.mask[i / 32] >> (i % 32) & 1u) != 0;
        row.out[i] = left ? value : NEGATIVE_INFINITY;
    }
    const u32 found = __ballot_sync(0xffffffffu, left);
    if (row.mask != nullptr && threadIdx.x % 32 == 0) atomicAdd(row.present, __popc(found));
}

// Entries (row, id, count, bits of the bias) from the host's memory to tables [rows, size].
extern "C" __global__ void keep_entries(
    const int4* entries, i64 count, i64 size, int* counts, float* bias) {
    const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int4 entry = entries[i];
    const i64 to = entry.x * size + entry.y;
    counts[to] = entry.z;
    bias[to] = __int_as_float(entry.w);
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

__device__ __forceinline__ double scaled(float logit, double temperature) {
    return static_cast<double>(__fdiv_rn(logit, static_cast<float>(temperature)));
}

// partials[c] = sum of exp(logit / T - largest) over chunk c, by halving: SUM_THREADS threads a chunk,
// each of which takes the first step alone; the last ones a warp takes without a barrier.
__device__ __forceinline__ void sum_chunks(
    const Row& row, i64 size, i64 first, i64 chunks, float top, double* partials) {
    constexpr int EACH = CHUNK / SUM_THREADS, WARPS = SUM_THREADS / 32;
    __shared__ double sums[SCAN_THREADS / SUM_THREADS][WARPS][32];
    const int own = threadIdx.x / SUM_THREADS, place = threadIdx.x % SUM_THREADS;
    const i64 chunk = first + own, start = chunk * CHUNK + place;
    float logits[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const i64 i = start + j * SUM_THREADS;
        logits[j] = i < size ? row.logits[i] : NEGATIVE_INFINITY;
    }
    const double largest = scaled(top, row.temperature);
    double sum = 0.0;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const bool there = start + j * SUM_THREADS < size && top > NEGATIVE_INFINITY;
        const double term = exp(scaled(logits[j], row.temperature) - largest);
        sum += there ? term : 0.0;
    }
    sums[own][place / 32][place % 32] = sum;
    __syncthreads();
    if (place >= 32) return;
    double halves[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) halves[w] = sums[own][w][place];
#pragma unroll
    for (int half = WARPS / 2; half >= 1; half /= 2) {
#pragma unroll
        for (int w = 0; w < half; ++w) halves[w] += halves[w + half];
    }
    sum = halves[0];
#pragma unroll
    for (int step = 16; step >= 1; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (place == 0 && chunk < chunks) partials[chunk] = sum;
}

// Each row's largest logit, a bound that at least `wanted` group tops reach (-inf where there are no
// more groups than that), and the sums of its chunks. Grid: (1 + chunks / 4, rows); the first block of
// a row finds the bounds.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) row_bounds_and_sums(
    const Row* rows, i64 size, const float* tops, i64 groups, i64 wanted, float* best,
    float* bounds, double* partials, i64 chunks, i64 stride) {
    const i64 r = blockIdx.y;
    Tops own{tops + r * groups, groups};
    own.load();
    const u32 least = least_rank(own);
    const float top = value_of(least);
    if (blockIdx.x > 0) {
        constexpr int CHUNKS = SCAN_THREADS / SUM_THREADS;
        const i64 first = static_cast<i64>(blockIdx.x - 1) * CHUNKS;
        sum_chunks(rows[r], size, first, chunks, top, partials + r * stride);
        return;
    }
    const float bound = groups <= wanted
        ? NEGATIVE_INFINITY
        : value_of(bounding_rank(own, least, static_cast<u32>(wanted)));
    if (threadIdx.x == 0) {
        best[r] = top;
        bounds[r] = bound;
    }
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

// The sum of a row's chunk sums, by halving; one warp, `sums` is room for `stride` of them.
__device__ __forceinline__ double fold_sums(
    const double* partials, i64 chunks, i64 stride, double* sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll 8
    for (i64 c = lane; c < stride; c += 32) sums[c] = c < chunks ? partials[c] : 0.0;
    __syncwarp();
    for (i64 half = stride / 2; half >= 1; half /= 2) {
        for (i64 i = lane; i < half; i += 32) sums[i] += sums[i + half];
        __syncwarp();
    }
    return sums[0];
}

// Keys of ids at or above the row's bound, as many as there is room for; `found` counts all.
struct Keys {
    u64* keys;
    u32* groups;
    int* reached;
    int* found;

    // Lists groups that reach the bound; the block's warps but the first, `warp` counts them.
    __device__ __forceinline__ void list(const float* tops, i64 count, float bound, int warp) const {
        constexpr int STEP = PICK_THREADS - 32;
        const int lane = threadIdx.x % 32;
        for (i64 first = 32 * warp; first < count; first += STEP) {
            const bool reaches = first + lane < count && !(tops[first + lane] < bound);
            const int at = place(reached, reaches);
            if (reaches && at < MOST_KEYS) groups[at] = static_cast<u32>(first + lane);
        }
    }

    // A place of its own for each lane that `wants` one.
    __device__ __forceinline__ int place(int* counter, bool wants) const {
        const int lane = threadIdx.x % 32;
        const u32 all = __ballot_sync(0xffffffffu, wants);
        if (all == 0) return 0;
        int first = 0;
        if (lane == 0) first = atomicAdd(counter, __popc(all));
        return __shfl_sync(0xffffffffu, first, 0) + __popc(all & ((1u << lane) - 1u));
    }

    // A warp takes some listed groups at once, so that their loads do not wait for one another.
    __device__ __forceinline__ void gather(const float* logits, i64 size, float bound) const {
        constexpr int AT_ONCE = 4, WARPS = PICK_THREADS / 32;
        const int lane = threadIdx.x % 32, listed = *reached;
        for (int first = threadIdx.x / 32; first < listed; first += AT_ONCE * WARPS) {
            float values[AT_ONCE][2];
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                const int at = first + n * WARPS;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const i64 i = at < listed ? groups[at] * i64{GROUP} + 32 * half + lane : size;
                    values[n][half] = i < size ? logits[i] : NEGATIVE_INFINITY;
                }
            }
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float value = values[n][half];
                    const bool taken = !(value < bound) && value != NEGATIVE_INFINITY;
                    const int at = place(found, taken);
                    if (!taken || at >= MOST_KEYS) continue;
                    const u64 id = groups[first + n * WARPS] * u64{GROUP} + 32 * half + lane;
                    keys[at] = static_cast<u64>(rank_of(value)) << 32 | id;
                }
            }
        }
    }
};

// Where a row's candidates go.
struct Candidates {
    const float* logits;
    int* ids;
    float* values;

    __device__ __forceinline__ void put(i64 place, u64 key) const {
        const int id = static_cast<int>(key & 0xffffffffu);
        const float value = value_of(static_cast<u32>(key >> 32));
        ids[place] = id;
        // Zeros of both signs have one rank.
        values[place] = value == 0.0f ? logits[id] : value;
    }
};

// Writes the `wanted` smallest of at most PICK_THREADS keys: a key's place is how many are smaller.
__device__ __forceinline__ void put_by_count(
    const u64* keys, int all, i64 wanted, const Candidates& out) {
    __shared__ int places[PICK_THREADS];
    const int padded = (all + 31) / 32 * 32, parts = PICK_THREADS / max(padded, 32);
    const int part = threadIdx.x / max(padded, 32), i = threadIdx.x % max(padded, 32);
    places[threadIdx.x] = 0;
    __syncthreads();
    if (part < parts && i < all) {
        const int each = (all + parts - 1) / parts;
        const u64 own = keys[i];
        int before = 0;
        for (int j = part * each; j < min((part + 1) * each, all); ++j) before += keys[j] < own;
        atomicAdd(&places[i], before);
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < all && places[threadIdx.x] < wanted) {
        out.put(places[threadIdx.x], keys[threadIdx.x]);
    }
}

// Folds each row's chunk sums and writes its candidates. One block a row; shared memory for MOST_KEYS
// keys and groups and for the sums. A row with more ids at its bound than that is read once per
// candidate.
extern "C" __global__ void __launch_bounds__(PICK_THREADS) finish_rows(
    const Row* rows, i64 size, const float* tops, i64 groups, const float* best,
    const float* bounds, const double* partials, i64 chunks, i64 stride, i64 wanted, int* ids,
    float* values, int* held, double* lse) {
    extern __shared__ __align__(16) u64 keys[];
    __shared__ u64 warps[PICK_THREADS / 32];
    __shared__ int reached, found;
    u32* listed = reinterpret_cast<u32*>(keys + MOST_KEYS);
    double* sums = reinterpret_cast<double*>(listed + MOST_KEYS);
    if (threadIdx.x == 0) reached = found = 0;
    __syncthreads();
    const i64 r = blockIdx.x;
    const Row row = rows[r];
    const float bound = bounds[r];
    const Keys taken{keys, listed, &reached, &found};
    if (threadIdx.x >= 32) {
        taken.list(tops + r * groups, groups, bound, threadIdx.x / 32 - 1);
    } else {
        const double sum = fold_sums(partials + r * stride, chunks, stride, sums);
        const double none = static_cast<double>(NEGATIVE_INFINITY);
        if (threadIdx.x == 0) {
            lse[r] = best[r] == NEGATIVE_INFINITY
                ? none : scaled(best[r], row.temperature) + log(sum);
        }
    }
    __syncthreads();
    if (reached <= MOST_KEYS) taken.gather(row.logits, size, bound);
    __syncthreads();
    // Every group that reaches the bound has an id that does.
    const int all = reached <= MOST_KEYS ? found : reached;
    const i64 count = min(static_cast<i64>(all), wanted);
    const Candidates out{row.logits, ids + r * wanted, values + r * wanted};
    if (all <= PICK_THREADS) {
        put_by_count(keys, all, wanted, out);
    } else if (all <= MOST_KEYS) {
        int padded = 2;
        while (padded < all) padded *= 2;
        for (int i = all + threadIdx.x; i < padded; i += PICK_THREADS) keys[i] = ~0ull;
        sort_keys(keys, padded);
        for (i64 j = threadIdx.x; j < count; j += PICK_THREADS) out.put(j, keys[j]);
    } else {
        u64 last = 0;
        for (i64 j = 0; j < count; ++j) {
            last = next_key(row.logits, size, bound, last, j > 0, warps);
            if (threadIdx.x == 0) out.put(j, last);
        }
    }
    for (i64 j = count + threadIdx.x; j < wanted; j += PICK_THREADS) {
        out.ids[j] = -1;
        out.values[j] = NEGATIVE_INFINITY;
    }
    if (threadIdx.x == 0) held[r] = static_cast<int>(count);
}
