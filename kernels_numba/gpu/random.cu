// Seeded random weights in checkpoint form, made where they lie.
// Launched by dummy.py.
// The same on the CPU, with other numbers: kernels_numba/weights.py. Test:
// tests/unit/kernels/test_dummy.py.
#include "common.cuh"

// One step of splitmix64: a well mixed function of (seed, index).
__device__ __forceinline__ u64 mixed(u64 seed, u64 index) {
    u64 z = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// Four uniform 16-bit parts summed: near normal, with the deviation asked for.
extern "C" __global__ void fill_bf16(u16* out, i64 count, i64 seed, double deviation) {
    const i64 step = static_cast<i64>(gridDim.x) * blockDim.x;
    for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const u64 bits = mixed(static_cast<u64>(seed), static_cast<u64>(i));
        float sum = 0.0f;
        for (int part = 0; part < 64; part += 16) {
            sum += static_cast<float>(bits >> part & 0xffffu) * 0x1p-16f - 0.5f;
        }
        // The sum's variance is 4 / 12: times sqrt(3) its deviation is one.
        const float value = sum * 1.7320508f * static_cast<float>(deviation);
        out[i] = static_cast<u16>(pack_bf16(value, 0.0f));
    }
}

// Bytes low ... low + span - 1, with random bits of `signs`.
extern "C" __global__ void fill_bytes(
    u8* out, i64 count, i64 seed, i64 low, i64 span, i64 signs) {
    const i64 step = static_cast<i64>(gridDim.x) * blockDim.x;
    for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const u64 bits = mixed(static_cast<u64>(seed), static_cast<u64>(i));
        const i64 code = low + static_cast<i64>((bits >> 8) % static_cast<u64>(span));
        out[i] = static_cast<u8>(code | (static_cast<i64>(bits) & signs));
    }
}
