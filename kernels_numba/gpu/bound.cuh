// Logits as ranks, and a bound that enough of a row's group tops reach, found from the ranks' bits.
// Included by pick.cu.
// The same on the CPU: cpu/pick.py, by np.partition. Oracle: tests/unit/kernels/test_pick.py.

// Threads of a block that finds it.
constexpr int SCAN_THREADS = 512;

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

// The ranks of a row's group tops, as the SCAN_THREADS threads of a block hold them: what one thread
// has no register for is read again each time.
struct Tops {
    static constexpr int HELD = 6;  // of 196,608 ids in groups of 64; pick.cu's TOPS hold as many
    static constexpr u32 NONE = 0xffffffffu;  // behind all ranks
    const float* tops;
    i64 groups;
    u32 held[HELD];

    // All loads of a thread are on their way at once.
    __device__ __forceinline__ void load() {
        float values[HELD];
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            const i64 i = threadIdx.x + j * SCAN_THREADS;
            values[j] = i < groups ? __ldcg(tops + i) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            held[j] = threadIdx.x + j * SCAN_THREADS < groups ? rank_of(values[j]) : NONE;
        }
    }

    template <typename Take>
    __device__ __forceinline__ void each(const Take& take) const {
#pragma unroll
        for (int j = 0; j < HELD; ++j) take(held[j]);
#pragma unroll 1
        for (i64 i = threadIdx.x + HELD * SCAN_THREADS; i < groups; i += SCAN_THREADS) {
            take(rank_of(__ldcg(tops + i)));
        }
    }
};

// The least rank, that is the largest, of all tops, as every thread of the block sees it.
__device__ __forceinline__ u32 least_rank(const Tops& tops) {
    __shared__ u32 warps[SCAN_THREADS / 32];
    u32 least = Tops::NONE;
    tops.each([&](u32 rank) { least = min(least, rank); });
    least = __reduce_min_sync(ALL_LANES, least);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = least;
    __syncthreads();
    return __reduce_min_sync(ALL_LANES, warps[threadIdx.x % (SCAN_THREADS / 32)]);
}

constexpr int DIGITS = 256;

// In which of DIGITS counts the `wanted`-th falls, how many lie before that digit and how many up to
// its end; DIGITS where there are fewer. Every warp finds it for itself.
struct Digit {
    u32 digit, before, through;

    __device__ __forceinline__ Digit(const u32* counts, u32 wanted) {
        constexpr int EACH = DIGITS / 32;
        const int lane = threadIdx.x % 32;
        u32 own[EACH], sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) sum += own[i] = counts[EACH * lane + i];
        u32 up_to = sum;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const u32 less = __shfl_up_sync(ALL_LANES, up_to, step);
            if (lane >= step) up_to += less;
        }
        const u32 holds = __ballot_sync(ALL_LANES, up_to >= wanted);
        u32 place = EACH * lane, start = up_to - sum, end = start;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (end < wanted) {
                place = EACH * lane + i;
                start = end;
                end += own[i];
            }
        }
        const int first = holds == 0 ? 0 : __ffs(static_cast<int>(holds)) - 1;
        digit = __shfl_sync(ALL_LANES, place, first);
        before = __shfl_sync(ALL_LANES, start, first);
        through = __shfl_sync(ALL_LANES, end, first);
        if (holds == 0) digit = DIGITS;
    }
};

// A rank that at least `wanted` tops do not exceed, of which there are more, and not many more than
// `wanted` unless they are equal: every candidate's rank is at most as large.
//
// The first digits are steps of a 64th of a power of two from the best top down, which mostly tell
// enough; what lies further below takes the last of them, and is told apart from its top byte on.
__device__ __forceinline__ u32 bounding_rank(const Tops& tops, u32 least, u32 wanted) {
    // A float32 has 23 bits of mantissa: steps of a 64th are 2^(23 - 6). Then a byte each.
    constexpr int PASSES = 5, FIRST_SHIFT = 23 - 6;
    constexpr u32 ABSENT = 0xff800000u;  // The rank of -inf.
    __shared__ __align__(16) u32 counts[PASSES * DIGITS];
    for (int i = threadIdx.x; i < PASSES * DIGITS; i += SCAN_THREADS) counts[i] = 0;
    __syncthreads();
    const u32 enough = wanted + wanted / 4 + 16;  // not many more
    u32 base = least, before = 0;
    int shift = FIRST_SHIFT;
#pragma unroll 1
    for (int pass = 0; pass < PASSES; ++pass) {
        u32* own = counts + pass * DIGITS;
        tops.each([&](u32 rank) {
            if (rank == Tops::NONE || rank < base) return;
            const u32 digit = (rank - base) >> shift;
            if (pass == 0 || digit < DIGITS) atomicAdd(&own[min(digit, DIGITS - 1u)], 1u);
        });
        __syncthreads();
        const Digit found(own, wanted - before);
        if (found.digit == DIGITS) return ABSENT;
        base += found.digit << shift;
        if (pass == 0 && found.digit == DIGITS - 1) {
            before += found.before;
            shift = 32 - 8;
            continue;
        }
        const u64 last = base + (1ull << shift) - 1;
        if (shift == 0 || before + found.through <= enough) {
            return static_cast<u32>(min(last, static_cast<u64>(ABSENT)));
        }
        before += found.before;
        shift = max(shift - 8, 0);
    }
    return ABSENT;
}
