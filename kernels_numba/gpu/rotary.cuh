// What happens to a head between projection and attention: norm and rotation. One warp has a head;
// lane l holds its values l + 32 j.

constexpr int OWN = HEAD_DIM / 32;

// Rows [q | k | v] of heads of `dim` values, and what is done to them. Null weights: no norm.
struct Projected {
    const void* qkv;
    i64 stride;
    int wide, heads, kv_heads, dim;
    const float* q_weight;
    const float* k_weight;
    float q_eps, k_eps;
    const float* angles;
    int half;

    __device__ __forceinline__ bool is_query(int index) const { return index < heads; }
    __device__ __forceinline__ bool is_value(int index) const { return index >= heads + kv_heads; }
};

// How the heads at one position turn: the first `half` values by the angle of each, the next by the
// same in the other direction; and the weights of their norms.
struct Turn {
    float cosine[OWN], sine[OWN], q_weight[OWN], k_weight[OWN];

    __device__ __forceinline__ void load(const Projected& how, int position, int lane) {
        const float* turn = how.angles + static_cast<i64>(position) * 2 * how.half;
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            const int i = lane + 32 * j, at = i < how.half ? i : i - how.half;
            cosine[j] = 1.0f;
            sine[j] = 0.0f;
            q_weight[j] = how.q_weight != nullptr && i < how.dim ? how.q_weight[i] : 0.0f;
            k_weight[j] = how.k_weight != nullptr && i < how.dim ? how.k_weight[i] : 0.0f;
            if (i >= 2 * how.half) continue;
            cosine[j] = turn[at];
            sine[j] = i < how.half ? -turn[how.half + at] : turn[how.half + at];
        }
    }
};

struct Head {
    float value[OWN];

    __device__ __forceinline__ void load(const Projected& from, i64 row, int index, int lane) {
        const u8* own = row_at(from.qkv, row, from.stride, from.wide);
        const int at = index * from.dim + lane;
        if (from.wide) {
            const float* values = reinterpret_cast<const float*>(own) + at;
#pragma unroll
            for (int j = 0; j < OWN; ++j) value[j] = lane + 32 * j < from.dim ? __ldcg(values + 32 * j) : 0.0f;
        } else {
            const u16* values = reinterpret_cast<const u16*>(own) + at;
#pragma unroll
            for (int j = 0; j < OWN; ++j) {
                value[j] = lane + 32 * j < from.dim ? bf16_float(__ldcg(values + 32 * j)) : 0.0f;
            }
        }
    }

    // Every operation's rounding is stated: all kernels give a head the same bits. `room` is the
    // warp's own, HEAD_DIM values.
    __device__ __forceinline__ void turn(
        const Projected& how, int index, const Turn& by, float* room, int lane) {
        if (how.is_value(index)) return;
        const bool query = how.is_query(index);
        if ((query ? how.q_weight : how.k_weight) != nullptr) {
            const float inverse = inverse_norm(query ? how.q_eps : how.k_eps, how.dim);
#pragma unroll
            for (int j = 0; j < OWN; ++j) {
                const float weight = query ? by.q_weight[j] : by.k_weight[j];
                value[j] = __fmul_rn(__fmul_rn(value[j], inverse), weight);
            }
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < OWN; ++j) room[lane + 32 * j] = value[j];
        __syncwarp();
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            const int i = lane + 32 * j;
            if (i >= 2 * how.half) continue;
            const float other = room[i < how.half ? i + how.half : i - how.half];
            value[j] = __fmaf_rn(other, by.sine[j], __fmul_rn(value[j], by.cosine[j]));
        }
    }

    __device__ __forceinline__ float inverse_norm(float eps, int dim) const {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < OWN; ++j) sum = __fmaf_rn(value[j], value[j], sum);
        const float mean = __fdiv_rn(warp_sum(sum), static_cast<float>(dim));
        return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
    }

    // Value j of the head in bf16, to put(its place, its bits).
    template <class PUT>
    __device__ __forceinline__ void store(const PUT& put, int lane) const {
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            put(lane + 32 * j, static_cast<u16>(pack_bf16(value[j], 0.0f)));
        }
    }
};
