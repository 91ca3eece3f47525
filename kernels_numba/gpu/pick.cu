// From logits to candidates: penalties, bias, mask; exact head of the canonical order; log-sum-exp.
// Launched by picker.py and, keep_entries, by slot_tables.py.
// The same on the CPU: cpu/pick.py. Oracle: tests/unit/kernels/test_pick.py.
#include "common.cuh"
#include "bound.cuh"

constexpr int CHUNK = 256;  // logits that are summed by halving, before chunks are
constexpr int GROUP = 64;  // logits that have a top
constexpr int TOPS_THREADS = 256;
constexpr int PICK_THREADS = 1024;
constexpr int SUM_THREADS = 128;
constexpr int MOST_KEYS = 8192;  // in a block's shared memory: 80 KiB with their groups (picker.py)
// Of 2,097,152 ids, whose 32,768 groups have numbers of 16 bits.
constexpr int MOST_CHUNKS = 8192;
// With half of the registers a block finds room beside those of the kernel in front of it; only Hopper's
// processors have room for as many threads.
#if __CUDA_ARCH__ == 900
constexpr int FINISH_BLOCKS = 2;
#else
constexpr int FINISH_BLOCKS = 1;
#endif

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
    const u32 found = __ballot_sync(ALL_LANES, left);
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

// tops[r][g] = the largest of 64 logits, which half a warp reads in fours: rows are padded to whole
// fours. Grid: (groups / 16, rows).
extern "C" __global__ void __launch_bounds__(TOPS_THREADS) group_tops(
    const Row* rows, i64 size, float* tops, i64 groups) {
    constexpr int LANES = GROUP / 4;
    let_next_start();
    const i64 at = static_cast<i64>(blockIdx.x) * TOPS_THREADS + threadIdx.x, group = at / LANES;
    const i64 left = size - 4 * at;
    float top = NEGATIVE_INFINITY;
    if (left > 0) {
        const float4 own = reinterpret_cast<const float4*>(rows[blockIdx.y].logits)[at];
        top = own.x;
        if (left > 1) top = fmaxf(top, own.y);
        if (left > 2) top = fmaxf(top, own.z);
        if (left > 3) top = fmaxf(top, own.w);
    }
#pragma unroll
    for (int step = LANES / 2; step >= 1; step /= 2) {
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, step));
    }
    if (at % LANES == 0 && group < groups) tops[blockIdx.y * groups + group] = top;
}

__device__ __forceinline__ double scaled(float logit, double temperature) {
    return static_cast<double>(__fdiv_rn(logit, static_cast<float>(temperature)));
}

// partials[c] = sum of exp(logit / T - largest) over chunk c < last, by halving: SUM_THREADS threads a
// chunk, each of which takes the first step alone; the last ones a warp takes without a barrier.
__device__ __forceinline__ void sum_chunks(
    const Row& row, i64 size, i64 first, i64 last, float top, double* partials) {
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
    for (int step = 16; step >= 1; step /= 2) sum += __shfl_down_sync(ALL_LANES, sum, step);
    if (place == 0 && chunk < last) partials[chunk] = sum;
}

// Each row's largest logit, a bound that at least `wanted` group tops reach (-inf where there are no
// more groups than that), and the sums of its chunks. Grid: (1 + chunks / 4, rows); the first block of
// a row finds the bounds.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) row_bounds_and_sums(
    const Row* rows, i64 size, const float* tops, i64 groups, i64 wanted, float* best,
    float* bounds, double* partials, i64 chunks, i64 stride) {
    constexpr int CHUNKS = SCAN_THREADS / SUM_THREADS;
    const i64 r = blockIdx.y, first = static_cast<i64>(blockIdx.x - 1) * CHUNKS;
    let_next_start();
    // Rows and logits stood there before group_tops began.
    const Row row = rows[r];
#pragma unroll 1
    for (int pass = first_pass(gridDim.y); pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        Tops own{tops + r * groups, groups};
        own.load();
        const u32 least = least_rank(own);
        const float top = value_of(least);
        if (blockIdx.x > 0) {
            sum_chunks(row, size, first, counts ? chunks : 0, top, partials + r * stride);
            continue;
        }
        const float bound = groups <= wanted
            ? NEGATIVE_INFINITY
            : value_of(bounding_rank(own, least, static_cast<u32>(wanted)));
        if (threadIdx.x == 0 && counts) {
            best[r] = top;
            bounds[r] = bound;
        }
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
        least = min(least, __shfl_xor_sync(ALL_LANES, least, step));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = least;
    __syncthreads();
    least = warps[0];
    for (int w = 1; w < PICK_THREADS / 32; ++w) least = min(least, warps[w]);
    return least;
}

template <int N>
__device__ __forceinline__ double halved(double (&values)[N]) {
#pragma unroll
    for (int half = N / 2; half >= 1; half /= 2) {
#pragma unroll
        for (int j = 0; j < half; ++j) values[j] += values[j + half];
    }
    return values[0];
}

// What a thread of PICK_THREADS adds up of a row's chunk sums, by halving: the first steps, in which
// sums beyond the last are zero. `chunks` are at most MOST_CHUNKS.
__device__ __forceinline__ double fold_own(const double* partials, i64 chunks) {
    constexpr int EACH = MOST_CHUNKS / PICK_THREADS;
    double own[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const i64 c = threadIdx.x + j * PICK_THREADS;
        own[j] = c < chunks ? __ldcg(partials + c) : 0.0;
    }
    return halved(own);
}

// The rest of it: a warp folds what the threads have left in `sums`; in its first lane.
__device__ __forceinline__ double fold_rest(const double* sums) {
    constexpr int ROWS = PICK_THREADS / 32;
    const double* from = sums + threadIdx.x % 32;
    double own[ROWS / 4];
#pragma unroll
    for (int j = 0; j < ROWS / 4; ++j) {
        own[j] = (from[32 * j] + from[32 * (j + ROWS / 2)]) +
            (from[32 * (j + ROWS / 4)] + from[32 * (j + ROWS * 3 / 4)]);
    }
    double sum = halved(own);
#pragma unroll
    for (int step = 16; step >= 1; step /= 2) sum += __shfl_down_sync(ALL_LANES, sum, step);
    return sum;
}

// Tops that a thread of PICK_THREADS has on their way at once: of 196,608 ids.
constexpr int TOPS = 3;

__device__ __forceinline__ void load_tops(const float* tops, i64 count, float (&held)[TOPS]) {
#pragma unroll
    for (int n = 0; n < TOPS; ++n) {
        const i64 g = n * PICK_THREADS + threadIdx.x;
        held[n] = g < count ? __ldcg(tops + g) : NEGATIVE_INFINITY;
    }
}

// Keys of ids at or above the row's bound, as many as there is room for; `found` counts all.
struct Keys {
    static constexpr int GROUPS = 4;
    u64* keys;
    u16* groups;
    int* reached;
    int* found;

    // Lists groups that reach the bound; `held` are a thread's first tops, -inf beyond the last. All
    // threads.
    __device__ __forceinline__ void list(
        const float* tops, i64 count, float (&held)[TOPS], float bound) const {
#pragma unroll 1
        for (i64 first = 0; first < count; first += TOPS * PICK_THREADS) {
            if (first > 0) load_tops(tops + first, count - first, held);
            bool reaches[TOPS];
            int at[TOPS];
#pragma unroll
            for (int n = 0; n < TOPS; ++n) {
                const i64 g = first + n * PICK_THREADS + threadIdx.x;
                reaches[n] = g < count && !(held[n] < bound);
            }
            place(reached, reaches, at);
#pragma unroll
            for (int n = 0; n < TOPS; ++n) {
                if (reaches[n] && at[n] < MOST_KEYS) {
                    groups[at[n]] = static_cast<u16>(first + n * PICK_THREADS + threadIdx.x);
                }
            }
        }
    }

    // A place of its own for each of what the warp's lanes want.
    template <int N>
    __device__ __forceinline__ void place(
        int* counter, const bool (&wants)[N], int (&at)[N]) const {
        const int lane = threadIdx.x % 32;
        int all = 0;
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const u32 wanting = __ballot_sync(ALL_LANES, wants[n]);
            at[n] = all + __popc(wanting & ((1u << lane) - 1u));
            all += __popc(wanting);
        }
        if (all == 0) return;
        int first = 0;
        if (lane == 0) first = atomicAdd(counter, all);
        first = __shfl_sync(ALL_LANES, first, 0);
#pragma unroll
        for (int n = 0; n < N; ++n) at[n] += first;
    }

    // Of the first `listed` groups. All warps but the first; one takes some groups at once, as above.
    __device__ __forceinline__ void gather(
        const float* logits, i64 size, float bound, int listed) const {
        constexpr int AT_ONCE = 2 * GROUPS, WARPS = PICK_THREADS / 32 - 1;
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int first = threadIdx.x / 32 - 1; first < listed; first += GROUPS * WARPS) {
            float values[AT_ONCE];
            bool taken[AT_ONCE];
            int at[AT_ONCE];
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                const int from = first + n / 2 * WARPS;
                const u32 id = from < listed ? u32{groups[from]} * GROUP + n % 2 * 32 + lane : ~0u;
                values[n] = id < size ? logits[id] : NEGATIVE_INFINITY;
            }
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                taken[n] = !(values[n] < bound) && values[n] != NEGATIVE_INFINITY;
            }
            place(found, taken, at);
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                if (!taken[n] || at[n] >= MOST_KEYS) continue;
                const u32 id = u32{groups[first + n / 2 * WARPS]} * GROUP + n % 2 * 32 + lane;
                keys[at[n]] = static_cast<u64>(rank_of(values[n])) << 32 | id;
            }
        }
    }
};

// Where a row's candidates go.
struct Candidates {
    const float* logits;
    int* ids;
    float* values;
    bool counts;

    __device__ __forceinline__ void put(i64 place, u64 key) const {
        const int id = static_cast<int>(static_cast<u32>(key));
        const float value = value_of(static_cast<u32>(key >> 32));
        ids[place] = id;
        // Zeros of both signs have one rank.
        values[place] = value == 0.0f ? logits[id] : value;
    }
};

// Writes the `wanted` smallest of at most PICK_THREADS keys: a key's place is how many are smaller.
// `places` are zero.
__device__ __forceinline__ void put_by_count(
    const u64* keys, int all, i64 wanted, int* places, const Candidates& out) {
    // A power of two threads, one a key, for each part of what keys are compared with.
    const int bits = all <= 32 ? 5 : 32 - __clz(all - 1), parts = PICK_THREADS >> bits;
    const int part = static_cast<int>(threadIdx.x) >> bits;
    const int i = static_cast<int>(threadIdx.x) & ((1 << bits) - 1);
    if (i < all) {
        const int each = (all + parts - 1) / parts;
        const u64 own = keys[i];
        int before = 0;
#pragma unroll 4
        for (int j = part * each; j < min((part + 1) * each, all); ++j) before += keys[j] < own;
        atomicAdd(&places[i], before);
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < all && places[threadIdx.x] < wanted && out.counts) {
        out.put(places[threadIdx.x], keys[threadIdx.x]);
    }
}

// Shared memory of finish_rows beside MOST_KEYS keys and groups.
struct Finish {
    double sums[PICK_THREADS];
    u64 warps[PICK_THREADS / 32];
    int places[PICK_THREADS];
    int reached, found;
};

// Writes the candidates of a row of `all` keys, or of more ids than there is room for.
__device__ __forceinline__ void put_many(
    u64* keys, int all, i64 size, float bound, i64 wanted, u64* warps, const Candidates& out) {
    const i64 count = min(static_cast<i64>(all), wanted);
    if (all <= MOST_KEYS) {
        int padded = 2;
        while (padded < all) padded *= 2;
        for (int i = all + threadIdx.x; i < padded; i += PICK_THREADS) keys[i] = ~0ull;
        sort_keys(keys, padded);
        for (i64 j = threadIdx.x; j < count; j += PICK_THREADS) out.put(j, keys[j]);
    } else {
        u64 last = 0;
        for (i64 j = 0; j < count; ++j) {
            last = next_key(out.logits, size, bound, last, j > 0, warps);
            if (threadIdx.x == 0) out.put(j, last);
        }
    }
}

// Folds each row's chunk sums and writes its candidates. One block a row; shared memory for MOST_KEYS
// keys and groups. A row with more ids at its bound than that is read once per candidate.
extern "C" __global__ void __launch_bounds__(PICK_THREADS, FINISH_BLOCKS) finish_rows(
    const Row* rows, i64 size, const float* tops, i64 groups, const float* best,
    const float* bounds, const double* partials, i64 chunks, i64 stride, i64 wanted, int* ids,
    float* values, int* held, double* lse) {
    // What a first pass finds at a bound of a step before is more than it needs to have run.
    constexpr int FIRST_GROUPS = Keys::GROUPS * (PICK_THREADS / 32 - 1), FIRST_KEYS = 32;
    extern __shared__ __align__(16) u64 keys[];
    __shared__ Finish own;
    const i64 r = blockIdx.x;
    let_next_start();
    // Rows and logits stood there before group_tops began.
    const Row row = rows[r];
    const Keys taken{keys, reinterpret_cast<u16*>(keys + MOST_KEYS), &own.reached, &own.found};
#pragma unroll 1
    for (int pass = first_pass(gridDim.x); pass < 2; ++pass) {
        __syncthreads();
        own.places[threadIdx.x] = 0;
        if (threadIdx.x == 0) own.reached = own.found = 0;
        __syncthreads();
        const bool counts = counts_now(pass);
        const float top = __ldcg(best + r), bound = __ldcg(bounds + r);
        float held_tops[TOPS];
        load_tops(tops + r * groups, groups, held_tops);
        own.sums[threadIdx.x] = fold_own(partials + r * stride, chunks);
        taken.list(tops + r * groups, groups, held_tops, bound);
        __syncthreads();
        const int reached = own.reached, listed = counts ? reached : min(reached, FIRST_GROUPS);
        if (threadIdx.x >= 32) {
            if (listed <= MOST_KEYS) taken.gather(row.logits, size, bound, listed);
        } else {
            const double sum = fold_rest(own.sums), none = static_cast<double>(NEGATIVE_INFINITY);
            const double found =
                top == NEGATIVE_INFINITY ? none : scaled(top, row.temperature) + log(sum);
            if (threadIdx.x == 0 && counts) lse[r] = found;
        }
        __syncthreads();
        // Every group that reaches the bound has an id that does.
        const int every = reached <= MOST_KEYS ? own.found : reached;
        const int all = counts ? every : min(own.found, FIRST_KEYS);
        const Candidates out{row.logits, ids + r * wanted, values + r * wanted, counts};
        if (all <= PICK_THREADS) {
            put_by_count(keys, all, wanted, own.places, out);
        } else {
            put_many(keys, all, size, bound, wanted, own.warps, out);
        }
        if (!counts) continue;
        const i64 count = min(static_cast<i64>(all), wanted);
        for (i64 j = count + threadIdx.x; j < wanted; j += PICK_THREADS) {
            out.ids[j] = -1;
            out.values[j] = NEGATIVE_INFINITY;
        }
        if (threadIdx.x == 0) held[r] = static_cast<int>(count);
    }
}
