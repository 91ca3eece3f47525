// One row's token from its candidates: temperature, top-k, min-p, top-p and the draw with a given
// number, bit for bit as dgpp.sample computes it. One block a row; between its barriers every thread
// takes the same way. Included by step.cu.
// The same on the CPU: dgpp/sample. Test, with that for its oracle:
// tests/unit/sample/test_device_draw.py.
//
// No sum here is a fused multiply-add, and no float32 subnormal is flushed: dgpp.sample knows
// neither.

__device__ __forceinline__ double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }

__device__ __forceinline__ double bits_double(u64 bits) {
    return __longlong_as_double(static_cast<i64>(bits));
}

// The compiler is told to flush float32 subnormals (common.cuh); written out, these keep them.
__device__ __forceinline__ float divide_float(float a, float b) {
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
    return quotient;
}

__device__ __forceinline__ double widen(float x) {
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
}

__device__ __forceinline__ float narrow(double x) {
    float low;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(low) : "d"(x));
    return low;
}

// What a row asks for. `u` in [0, 1) is its random number; `min_p` is the natural logarithm of the
// least share of the best candidate's mass, -inf for none. A `slot` below 0 makes no pick.
struct Draw {
    double u;
    double top_p;
    double min_p;
    double temperature;
    i64 present;
    int top_k;
    int greedy;
    int slot;
    int unused;
};

constexpr int MOST_CANDIDATES = 256;
// Digits of 32 bits: from 2^-1074 up, as many weights of 1 as there are candidates end in the 34th.
constexpr int LIMBS = 36;

struct DrawScratch {
    double scaled[MOST_CANDIDATES];
    double weights[MOST_CANDIDATES];
    double masses[MOST_CANDIDATES];
    u64 limbs[LIMBS];
    double total;
    int answer;
};

// Below the first e^x rounds to zero, above the other it is infinite; both as in dgpp.sample.exact.
constexpr double EXP_MIN = -745.2, EXP_MAX = 709.78;
constexpr double LOG2_E = 0x1.71547652b82fep+0;
constexpr double LN2_HIGH = 0x1.62e42feep-1, LN2_LOW = 0x1.a39ef35793c76p-33;

__device__ __forceinline__ double power_of_two(int k) {
    return bits_double(static_cast<u64>(k + 1023) << 52);
}

// p * 2^k, rounded once: where 2^k is no double, or the product may be subnormal, by way of one that
// is exact.
__device__ __forceinline__ double scale_by(double p, int k) {
    if (k > 1023) return multiply(multiply(p, 2.0), power_of_two(k - 1));
    if (k >= -1021) return multiply(p, power_of_two(k));
    return multiply(multiply(p, power_of_two(k + 54)), 0x1p-54);
}

// dgpp.sample.exact.exp
__device__ __forceinline__ double exact_exp(double x) {
    constexpr double TERMS[14] = {
        0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29, 0x1.ae64567f544e4p-26,
        0x1.27e4fb7789f5cp-22, 0x1.71de3a556c734p-19, 0x1.a01a01a01a01ap-16,
        0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10, 0x1.1111111111111p-7,
        0x1.5555555555555p-5,  0x1.5555555555555p-3,  0x1.0000000000000p-1,
        0x1.0000000000000p+0,  0x1.0000000000000p+0};
    if (!(x >= EXP_MIN)) return 0.0;
    if (x > EXP_MAX) return bits_double(0x7ff0000000000000ull);
    const double k = rint(multiply(x, LOG2_E));
    const double r = add(add(x, -multiply(k, LN2_HIGH)), -multiply(k, LN2_LOW));
    double p = TERMS[0];
    for (int n = 1; n < 14; ++n) p = add(multiply(p, r), TERMS[n]);
    return scale_by(p, static_cast<int>(k));
}

// The sum of the first `count` weights, of which the first is 1 and none is larger, rounded once:
// whole numbers of 2^-1074 in digits of 32 bits.
__device__ __forceinline__ double exact_sum(DrawScratch& s, int count) {
    __syncthreads();
    for (int i = threadIdx.x; i < LIMBS; i += blockDim.x) s.limbs[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const u64 bits = static_cast<u64>(__double_as_longlong(s.weights[i]));
        const int exponent = static_cast<int>(bits >> 52);
        u64 digits = bits & 0xfffffffffffffull;
        if (exponent > 0) digits |= 1ull << 52;
        const int place = exponent > 0 ? exponent - 1 : 0, shift = place % 32;
        const u64 low = digits << shift;
        const u64 high = shift == 0 ? 0 : digits >> (64 - shift);
        atomicAdd(&s.limbs[place / 32], low & 0xffffffffull);
        atomicAdd(&s.limbs[place / 32 + 1], low >> 32);
        atomicAdd(&s.limbs[place / 32 + 2], high);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        // The highest digits, from one that is not 0 down, and whether any lies below them. Nothing
        // is written back, so that digits are loaded ahead of the carry.
        u64 carry = 0;
        u32 high = 0, middle = 0, low = 0, one = 0, two = 0;
        bool rest = false, below_two = false;
        int top = 0;
#pragma unroll 4
        for (int i = 0; i < LIMBS; ++i) {
            carry += s.limbs[i];
            const u32 limb = static_cast<u32>(carry);
            carry >>= 32;
            if (limb != 0) {
                top = i;
                high = limb;
                middle = one;
                low = two;
                rest = below_two;
            }
            below_two |= two != 0;
            two = one;
            one = limb;
        }
        // The 64 bits from the highest down.
        const int shift = __clz(static_cast<int>(high)), first = 32 * top + 31 - shift;
        const u64 head = (static_cast<u64>(high) << 32 | middle) << shift |
            static_cast<u64>(low) >> (32 - shift);
        rest |= low << shift != 0;
        u64 mantissa = head >> 11;
        const u64 below = head & 0x7ff;
        if (below > 0x400 || (below == 0x400 && (rest || (mantissa & 1)))) ++mantissa;
        // The first weight is 1: the sum is a normal number. A carry out moves the exponent up.
        s.total = bits_double((static_cast<u64>(first - 52) << 52) + mantissa);
    }
    __syncthreads();
    return s.total;
}

// masses[i] = the first `count` weights' shares of their sum, rounded to float32.
__device__ __forceinline__ void shares(DrawScratch& s, int count) {
    const double total = exact_sum(s, count);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        s.masses[i] = widen(narrow(__ddiv_rn(s.weights[i], total)));
    }
    __syncthreads();
}

// The first of `count` masses up to which their sum exceeds `threshold` (or meets it, `inclusive`);
// -1 where it does not.
__device__ __forceinline__ int crossing(DrawScratch& s, int count, double threshold, bool inclusive) {
    constexpr int AHEAD = 4;
    static_assert(MOST_CANDIDATES % AHEAD == 0, "what is loaded ahead lies in the scratch");
    if (threadIdx.x == 0) {
        double mass = 0.0;
        int at = -1;
        // Masses are loaded ahead of what they are added to.
        for (int first = 0; first < count && at < 0; first += AHEAD) {
            double own[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) own[n] = s.masses[first + n];
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) {
                mass = add(mass, own[n]);
                const bool reaches = mass > threshold || (inclusive && mass == threshold);
                if (at < 0 && first + n < count && reaches) at = first + n;
            }
        }
        s.answer = at;
    }
    __syncthreads();
    const int answer = s.answer;
    __syncthreads();
    return answer;
}

__device__ __forceinline__ int last_positive(const double* masses, int count) {
    for (int i = count - 1; i > 0; --i) {
        if (masses[i] > 0.0) return i;
    }
    return 0;
}

// The rank of the token among the `held` candidates, -1 where they do not decide it. `values` are
// logits in canonical order (null: all are 0), `lse` the log-sum-exp of all present ids at the row's
// temperature.
__device__ __forceinline__ int draw_rank(
    DrawScratch& s, const Draw& draw, const float* values, int held, double lse) {
    if (held <= 0) return -1;
    if (draw.greedy) return 0;
    for (int i = threadIdx.x; i < held; i += blockDim.x) {
        const float value = values == nullptr ? 0.0f : __ldcg(values + i);
        s.scaled[i] = widen(divide_float(value, narrow(draw.temperature)));
    }
    __syncthreads();
    const double best = s.scaled[0];
    for (int i = threadIdx.x; i < held; i += blockDim.x) {
        s.weights[i] = i == 0 ? 1.0 : exact_exp(add(s.scaled[i], -best));
    }
    __syncthreads();
    const bool complete = held >= draw.present;
    const int top_k = draw.top_k > 0 && draw.top_k < draw.present ? draw.top_k : 0;
    const bool has_min_p = draw.min_p > -bits_double(0x7ff0000000000000ull);
    const bool has_top_p = draw.top_p < 1.0;
    if (!top_k && !has_min_p) {
        // Shares of the whole distribution, as far as the candidates reach.
        const double scale = exact_exp(add(best, -lse));
        for (int i = threadIdx.x; i < held; i += blockDim.x) s.masses[i] = multiply(s.weights[i], scale);
        __syncthreads();
        if (!has_top_p) {
            const int rank = crossing(s, held, draw.u, false);
            if (rank >= 0 || !complete) return rank;
            return last_positive(s.weights, held);
        }
    }
    int count = held;
    if (top_k) {
        if (held < top_k) return -1;
        count = top_k;
    }
    if (has_min_p) {
        const double floor = add(best, draw.min_p);
        int kept = 0;
        while (kept < count && s.scaled[kept] >= floor) ++kept;
        if (kept == count && kept == held && !top_k && !complete) return -1;
        count = kept > 1 ? kept : 1;
    }
    if (has_top_p) {
        if (!top_k && !has_min_p) {
            const int at = crossing(s, held, draw.top_p, true);
            if (at < 0 && !complete) return -1;
            count = at < 0 ? count : at + 1;
        } else {
            shares(s, count);
            const int at = crossing(s, count, draw.top_p, true);
            count = at < 0 ? count : at + 1;
        }
    }
    if (count == 1) return 0;
    shares(s, count);
    const int rank = crossing(s, count, draw.u, false);
    return rank >= 0 ? rank : last_positive(s.masses, count);
}
