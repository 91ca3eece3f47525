// What happens to heads between projection and attention: norm and rotation. Eight lanes have a head:
// lane r of them holds its values 32 j + 4 r ... + 3, and of each the one that it rotates with.
// Included by attention.cu.
// The same on the CPU: cpu/rotary.py. Oracle: tests/unit/kernels/test_attention.py.

constexpr int OWN = HEAD_DIM / 32;
constexpr int HEAD_LANES = 8;
constexpr int WARP_HEADS = 32 / HEAD_LANES;

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
    __device__ __forceinline__ bool rotates(int i) const { return i < 2 * half; }
    // The value that rotates with value i.
    __device__ __forceinline__ int partner(int i) const { return i < half ? i + half : i - half; }
};

// How the heads at one position rotate: the first `half` values by the angle of each, the next by the
// same in the other direction; and the weights of their norms. In shared memory.
struct Rotation {
    float cosine[HEAD_DIM], sine[HEAD_DIM], q_weight[HEAD_DIM], k_weight[HEAD_DIM];

    // A barrier stands before their use.
    template <int THREADS>
    __device__ __forceinline__ void load(const Projected& how, int position) {
        const float* from = how.angles + static_cast<i64>(position) * 2 * how.half;
#pragma unroll
        for (int first = 0; first < HEAD_DIM; first += THREADS) {
            const int i = first + threadIdx.x, at = i < how.half ? i : i - how.half;
            if (i >= how.dim) continue;
            q_weight[i] = how.q_weight != nullptr ? how.q_weight[i] : 0.0f;
            k_weight[i] = how.k_weight != nullptr ? how.k_weight[i] : 0.0f;
            if (!how.rotates(i)) continue;
            cosine[i] = from[at];
            sine[i] = i < how.half ? -from[how.half + at] : from[how.half + at];
        }
    }
};

// Four values as they lie in memory.
template <bool WIDE>
struct Packed;

template <>
struct Packed<true> {
    uint4 bits = {};

    __device__ __forceinline__ void unpack(float (&to)[4]) const {
        to[0] = __uint_as_float(bits.x), to[1] = __uint_as_float(bits.y);
        to[2] = __uint_as_float(bits.z), to[3] = __uint_as_float(bits.w);
    }
};

template <>
struct Packed<false> {
    uint2 bits = {};

    __device__ __forceinline__ void unpack(float (&to)[4]) const {
        to[0] = bf16_float(bits.x), to[1] = high_bf16_float(bits.x);
        to[2] = bf16_float(bits.y), to[3] = high_bf16_float(bits.y);
    }
};

// A head in memory, float32 where WIDE, else bf16; from one of its values on.
template <bool WIDE>
struct HeadRow {
    using Four = Packed<WIDE>;
    const u8* from;

    __device__ __forceinline__ HeadRow(const Projected& how, i64 row, int index, int first)
        : from(row_at(how.qkv, row, how.stride, how.wide)
               + static_cast<u32>(index * how.dim + first) * (WIDE ? 4 : 2)) {}

    __device__ __forceinline__ float one(int i) const {
        if (WIDE) return __ldcg(reinterpret_cast<const float*>(from) + i);
        return bf16_float(__ldcg(reinterpret_cast<const u16*>(from) + i));
    }

    // Values i ... + 3; i is a multiple of four.
    __device__ __forceinline__ void four(Four& to, int i) const {
        const u8* at = from + i * (WIDE ? 4 : 2);
        if constexpr (WIDE) {
            to.bits = __ldcg(reinterpret_cast<const uint4*>(at));
        } else {
            to.bits = __ldcg(reinterpret_cast<const uint2*>(at));
        }
    }
};

// A head's weights.
struct Weights {
    const float* from;

    __device__ __forceinline__ void four(float (&to)[4], int i) const {
        const float4 held = *reinterpret_cast<const float4*>(from + i);
        to[0] = held.x, to[1] = held.y, to[2] = held.z, to[3] = held.w;
    }
};

// FOURS: `half` is a multiple of four.
template <bool FOURS>
struct Head {
    float value[OWN][4], other[OWN][4];

    // `lane` is that of the head's eight, here and below.
    __device__ __forceinline__ void load(const Projected& from, i64 row, int index, int lane) {
        if (from.wide) {
            load_as(from, HeadRow<true>(from, row, index, 4 * lane), lane);
        } else {
            load_as(from, HeadRow<false>(from, row, index, 4 * lane), lane);
        }
    }

    template <class ROW>
    __device__ __forceinline__ void load_as(const Projected& from, const ROW& row, int lane) {
        typename ROW::Four own[OWN], partners[OWN];
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            const int i = 32 * j + 4 * lane;
            if (i < from.dim) row.four(own[j], 32 * j);
            if (FOURS && from.rotates(i)) row.four(partners[j], 32 * j + from.partner(i) - i);
        }
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            own[j].unpack(value[j]);
            partners[j].unpack(other[j]);
            if constexpr (!FOURS) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const int i = 32 * j + 4 * lane + c;
                    if (from.rotates(i)) other[j][c] = row.one(32 * j + c + from.partner(i) - i);
                }
            }
        }
    }

    // Every operation's rounding is stated: all kernels give a head the same bits.
    __device__ __forceinline__ void rotate(
        const Projected& how, int index, const Rotation& by, int lane) {
        const bool query = how.is_query(index), fixed = how.is_value(index);
        const float inverse = inverse_norm(query ? how.q_eps : how.k_eps, how.dim);
        if (fixed) return;
        const bool normed = (query ? how.q_weight : how.k_weight) != nullptr;
        const Weights weights{query ? by.q_weight : by.k_weight};
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            const int i = 32 * j + 4 * lane;
            if (i >= how.dim) continue;
            float weight[4], others[4] = {}, cosine[4], sine[4];
            weights.four(weight, i);
            Weights{by.cosine}.four(cosine, i);
            Weights{by.sine}.four(sine, i);
            if constexpr (FOURS) {
                if (how.rotates(i)) weights.four(others, how.partner(i));
            } else {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    if (how.rotates(i + c)) others[c] = weights.from[how.partner(i + c)];
                }
            }
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (normed) {
                    value[j][c] = __fmul_rn(__fmul_rn(value[j][c], inverse), weight[c]);
                    other[j][c] = __fmul_rn(__fmul_rn(other[j][c], inverse), others[c]);
                }
                if (!how.rotates(FOURS ? i : i + c)) continue;
                value[j][c] = __fmaf_rn(other[j][c], sine[c], __fmul_rn(value[j][c], cosine[c]));
            }
        }
    }

    // Squares add up by columns of 32, and these as a warp's lanes would. All lanes of a warp.
    __device__ __forceinline__ float inverse_norm(float eps, int dim) const {
        float sum[4] = {};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
            for (int j = 0; j < OWN; ++j) sum[c] = __fmaf_rn(value[j][c], value[j][c], sum[c]);
#pragma unroll
            for (int step = HEAD_LANES / 2; step >= 1; step /= 2) {
                sum[c] = __fadd_rn(sum[c], __shfl_xor_sync(ALL_LANES, sum[c], step));
            }
        }
        const float all = __fadd_rn(__fadd_rn(sum[0], sum[2]), __fadd_rn(sum[1], sum[3]));
        const float mean = __fdiv_rn(all, static_cast<float>(dim));
        return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
    }

    // Values in bf16, four at a time, to put(the first's place, their bits).
    template <class PUT>
    __device__ __forceinline__ void store(const PUT& put, int lane) const {
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            put(32 * j + 4 * lane, make_uint2(pack_bf16(value[j][0], value[j][1]),
                                              pack_bf16(value[j][2], value[j][3])));
        }
    }
};
