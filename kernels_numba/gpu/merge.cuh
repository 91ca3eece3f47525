// How the spans of a head merge, in order, one value a thread: attend_merge's part of attention.cu,
// which includes it.
// The same on the CPU: cpu/span.py. Oracle: tests/unit/kernels/test_attention.py.

// Spans whose factors a warp finds at once; of their values, as many are on their way at once, in
// batches of which those that are whole are followed by the rest.
constexpr int ROUND = 128, AT_ONCE = 64, BATCH = 8, OF_LANE = ROUND / 32;

// What a warp knows of its spans. The other warps of a head find the same, each in a block of its own.
struct MergeRoom {
    float2 factors[ROUND];
    float sums[ROUND];
};

// The maxima and sums of `count` spans, OF_LANE a lane; where there are fewer, the last once more.
struct Ends {
    float top[OF_LANE], sum[OF_LANE];

    __device__ __forceinline__ void load(const float* ends, int count, int lane) {
#pragma unroll
        for (int i = 0; i < OF_LANE; ++i) {
            const float* from = ends + min(OF_LANE * lane + i, count - 1) * PARTIAL;
            top[i] = __ldcg(from);
            sum[i] = __ldcg(from + TILE_HEADS);
        }
    }

    // Sums and factors, to the warp's room; `before` is the maximum of all spans in front of these,
    // and then of these too.
    __device__ __forceinline__ void scan(
        float2* factors, float* sums, float& before, float factor, int lane) const {
        float reached = top[0];
#pragma unroll
        for (int i = 1; i < OF_LANE; ++i) reached = fmaxf(reached, top[i]);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(ALL_LANES, reached, step);
            if (lane >= step) reached = fmaxf(reached, other);
        }
        const float other = __shfl_up_sync(ALL_LANES, reached, 1);
        float highest = lane == 0 ? before : fmaxf(before, other);
        before = fmaxf(before, __shfl_sync(ALL_LANES, reached, 31));
#pragma unroll
        for (int i = 0; i < OF_LANE; ++i) {
            const Merge merge(highest, top[i], factor);
            highest = merge.top;
            factors[OF_LANE * lane + i] = make_float2(merge.old_factor, merge.new_factor);
            sums[OF_LANE * lane + i] = sum[i];
        }
    }
};

// A head's merged value of a thread, and the sum of its weights.
struct Merged {
    float value, sum;

    __device__ __forceinline__ void take(float other, float other_sum, float2 by) {
        sum = __fmaf_rn(other_sum, by.y, __fmul_rn(sum, by.x));
        value = __fmaf_rn(other, by.y, __fmul_rn(value, by.x));
    }
};

// `count` spans whose factors and sums are known. Loads begin before others' values are used; where
// it does not count, nothing is read, but all code runs.
struct Taken {
    float value[AT_ONCE], rest[BATCH];

    __device__ __forceinline__ void load_batch(const float* values, int batch) {
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            value[BATCH * batch + i] = __ldcg(values + (BATCH * batch + i) * PARTIAL);
        }
    }

    __device__ __forceinline__ void load(const float* values, int count) {
#pragma unroll
        for (int g = 0; g < AT_ONCE / BATCH; ++g) {
            if (BATCH * (g + 1) > count) break;
            load_batch(values, g);
        }
        const float* last = values + count / BATCH * BATCH * PARTIAL;
#pragma unroll
        for (int i = 0; i + 1 < BATCH; ++i) {
            if (i < count % BATCH) rest[i] = __ldcg(last + i * PARTIAL);
        }
    }

    __device__ __forceinline__ void merge(
        Merged& into, const float* values, int count, const float2* factors, const float* sums,
        bool counts) {
#pragma unroll 1
        for (int at = 0; at + BATCH <= count; at += AT_ONCE) {
            const float* following = values + (at + AT_ONCE) * PARTIAL;
#pragma unroll
            for (int g = 0; g < AT_ONCE / BATCH; ++g) {
                const int end = at + BATCH * (g + 1);
                if (end > count) break;
#pragma unroll
                for (int i = BATCH * g; i < BATCH * (g + 1); ++i) {
                    into.take(value[i], sums[at + i], factors[at + i]);
                }
                if (end + AT_ONCE <= count && counts) load_batch(following, g);
            }
        }
        const int whole = count / BATCH * BATCH;
#pragma unroll
        for (int i = 0; i + 1 < BATCH; ++i) {
            if (whole + i >= count) break;
            into.take(rest[i], sums[whole + i], factors[whole + i]);
        }
    }
};

// A head's merged value of this thread, of `held` spans; `ends` are their maxima, and TILE_HEADS
// behind them their sums.
__device__ __forceinline__ float merge_head(
    MergeRoom& room, const float* values, const float* ends, int held, float factor, bool counts) {
    const int lane = threadIdx.x;
    float top = NEGATIVE_INFINITY;
    Merged merged{0.0f, 0.0f};
#pragma unroll 1
    for (int first = 0; first < held; first += ROUND) {
        const int count = min(ROUND, held - first);
        const float* here = values + static_cast<i64>(first) * PARTIAL;
        Ends own{};
        Taken taken{};
        if (counts) {
            own.load(ends + static_cast<i64>(first) * PARTIAL, count, lane);
            taken.load(here, count);
        }
        // A lane may still read the spans in front.
        __syncwarp();
        own.scan(room.factors, room.sums, top, factor, lane);
        __syncwarp();
        taken.merge(merged, here, count, room.factors, room.sums, counts);
    }
    return __fdiv_rn(merged.value, merged.sum);
}
