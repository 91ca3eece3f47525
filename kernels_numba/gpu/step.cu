// What stands around the forward pass of a step: fed tokens before it, the engine's own picks after.
#include "common.cuh"

#define DEVICE __device__
#define SYNC() __syncthreads()
#define LANE static_cast<int>(threadIdx.x)
#define LANES static_cast<int>(blockDim.x)
#define ATOMIC_ADD(at, value) atomicAdd(at, value)

__device__ __forceinline__ double multiply(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double divide(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ double nearest(double x) { return rint(x); }

__device__ __forceinline__ double bits_double(u64 bits) {
    return __longlong_as_double(static_cast<i64>(bits));
}

__device__ __forceinline__ u64 double_bits(double x) {
    return static_cast<u64>(__double_as_longlong(x));
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

#include "draw.cuh"

__device__ __forceinline__ u64 device_time() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// tokens[r] = the last pick of the row's slot, where it is below 0. `began` gets the device's time
// in ns. One block.
extern "C" __global__ void begin_step(
    int* tokens, const int* slots, i64 count, const int* picks, u64* began) {
    if (threadIdx.x == 0) *began = device_time();
    for (i64 r = threadIdx.x; r < count; r += blockDim.x) {
        if (tokens[r] < 0) tokens[r] = picks[slots[r]];
    }
}

// Each row's token from its candidates, -1 where they do not decide it; kept for its slot as well,
// where an id that is at least valid takes the place of what was not decided. `times` gets when the
// step began and ended. One block a row, MOST_CANDIDATES threads.
extern "C" __global__ void __launch_bounds__(MOST_CANDIDATES) draw_rows(
    const Draw* draws, i64 wanted, const int* ids, const float* values, const int* held,
    const double* lse, int* picked, int* picks, const u64* began, u64* times) {
    __shared__ DrawScratch scratch;
    const i64 r = blockIdx.x;
    const Draw draw = draws[r];
    const int* own = ids + r * wanted;
    const int rank =
        draw.slot < 0 ? -1 : draw_rank(scratch, draw, values + r * wanted, held[r], lse[r]);
    if (threadIdx.x != 0) return;
    picked[r] = rank < 0 ? -1 : own[rank];
    if (draw.slot >= 0) picks[draw.slot] = max(own[max(rank, 0)], 0);
    if (r == 0) {
        times[0] = *began;
        times[1] = device_time();
    }
}
