// How attention adds up, whatever the kernel. Keys are cut into spans of SPAN at fixed absolute
// positions; each gives a maximum, a sum and a weighted row of values from nothing but itself, and
// spans merge in order. A score is a chain of matrix instructions over sixteen values of the head
// each, weighted values a chain over sixteen keys each, sums go by lane, key by key, 32 keys at a time.
// Included by attention.cu, attend_shared.cu and attend_hopper.cu.
// The same on the CPU: cpu/span.py, with weights e^x in place of 2^x, and values times the inverse of
// their sum in place of divided by it. Its sinks and packed rows have no kernels here.

constexpr int SPAN = 128;

// What scores are multiplied by: their scale, and log2 e, since weights are powers of two.
__device__ __forceinline__ float score_factor(double scale) {
    return static_cast<float>(scale * 1.4426950408889634);
}

// The largest of a value over the four lanes that share heads.
__device__ __forceinline__ float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

__device__ __forceinline__ float quad_sum(float value) {
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

// What is taken from scaled scores below a maximum; any number where there is no key at all.
__device__ __forceinline__ float offset_of(float top, float scale) {
    return top == NEGATIVE_INFINITY ? 0.0f : __fmul_rn(top, scale);
}

// Turns the scores of 32 keys (a lane's: rows g and g + 8) into weights 2^(scale score - offset), as
// the first operand of two matrix instructions, and adds them up by lane.
__device__ __forceinline__ void weigh_keys(
    const float* scores, float offset_low, float offset_high, float scale, u32 (&weights)[2][4],
    float& sum_low, float& sum_high) {
    sum_low = sum_high = 0.0f;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float a = exp2f(__fmaf_rn(scores[4 * n], scale, -offset_low));
        const float b = exp2f(__fmaf_rn(scores[4 * n + 1], scale, -offset_low));
        const float c = exp2f(__fmaf_rn(scores[4 * n + 2], scale, -offset_high));
        const float d = exp2f(__fmaf_rn(scores[4 * n + 3], scale, -offset_high));
        weights[n / 2][n % 2 * 2] = pack_bf16(a, b);
        weights[n / 2][n % 2 * 2 + 1] = pack_bf16(c, d);
        sum_low = __fadd_rn(__fadd_rn(sum_low, a), b);
        sum_high = __fadd_rn(__fadd_rn(sum_high, c), d);
    }
}

// Factors that bring a total and a span to their common maximum.
struct Merge {
    float top, old_factor, new_factor;

    __device__ __forceinline__ Merge(float old_top, float new_top, float scale) {
        top = fmaxf(old_top, new_top);
        old_factor = exp2f(__fmul_rn(__fsub_rn(old_top, top), scale));
        new_factor = exp2f(__fmul_rn(__fsub_rn(new_top, top), scale));
    }

    __device__ __forceinline__ float apply(float old_value, float new_value) const {
        return __fmaf_rn(new_value, new_factor, __fmul_rn(old_value, old_factor));
    }
};
