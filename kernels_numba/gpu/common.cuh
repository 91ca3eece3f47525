// Types, bf16 conversions and the matrix instruction of all kernels but Hopper's own (hopper.cuh). No
// headers, so that the runtime compiler needs nothing beside itself. Included by every .cu.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define NEGATIVE_INFINITY __int_as_float(0xff800000)

constexpr u32 ALL_LANES = 0xffffffffu;  // of a warp

// What is added to the exponent in the bits of a float32, an e4m3 and an e2m1.
constexpr u32 FLOAT_BIAS = 127, E4M3_BIAS = 7, E2M1_BIAS = 1;

__device__ __forceinline__ float bf16_float(u32 bits) { return __uint_as_float(bits << 16); }

// The high one of two bf16 in a word.
__device__ __forceinline__ float high_bf16_float(u32 bits) {
    return __uint_as_float(bits & 0xffff0000u);
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// Value i of a row that is float32 where `wide`, else bf16.
__device__ __forceinline__ float load_value(const void* row, i64 i, i64 wide) {
    return wide ? static_cast<const float*>(row)[i] : bf16_float(static_cast<const u16*>(row)[i]);
}

__device__ __forceinline__ void store_value(void* row, i64 i, i64 wide, float value) {
    if (wide) {
        static_cast<float*>(row)[i] = value;
    } else {
        static_cast<u16*>(row)[i] = static_cast<u16>(pack_bf16(value, 0.0f));
    }
}

// Row `row` of rows `stride` values apart, which are float32 where `wide`, else bf16.
__device__ __forceinline__ const u8* row_at(const void* base, i64 row, i64 stride, i64 wide) {
    return static_cast<const u8*>(base) + row * stride * (wide ? 4 : 2);
}

__device__ __forceinline__ u8* row_at(void* base, i64 row, i64 stride, i64 wide) {
    return static_cast<u8*>(base) + row * stride * (wide ? 4 : 2);
}

// c[16 x 8] += a[16 x 16] * b[16 x 8]. Lane 4 g + t holds rows g (a0, a2) and g + 8 (a1, a3) of a,
// column g of b, and columns 2 t, 2 t + 1 of c's rows g (c0, c1) and g + 8 (c2, c3).
__device__ __forceinline__ void mma(
    float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Compiled with -ftz=true (build.py): a float32 subnormal reads as zero, so codes are not decoded by way
// of one: those without an exponent are whole numbers of 2^-9 (e4m3) and of 0.5 (e2m1).
__device__ __forceinline__ float e4m3_float(u32 code) {
    const u32 exponent = code >> 3 & 15u, mantissa = code & 7u;
    const float magnitude = exponent == 0
        ? static_cast<float>(mantissa) * 0x1p-9f
        : __uint_as_float((exponent + FLOAT_BIAS - E4M3_BIAS) << 23 | mantissa << 20);
    return code & 128u ? -magnitude : magnitude;
}

__device__ __forceinline__ float e2m1_float(u32 code) {
    const u32 exponent = code >> 1 & 3u, mantissa = code & 1u;
    const float magnitude = exponent == 0
        ? 0.5f * static_cast<float>(mantissa)
        : __uint_as_float((exponent + FLOAT_BIAS - E2M1_BIAS) << 23 | mantissa << 22);
    return code & 8u ? -magnitude : magnitude;
}

__device__ __forceinline__ float warp_sum(float value) {
    for (int step = 16; step >= 1; step /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, step);
    }
    return value;
}

// Row `row` of rows `stride` bytes apart, in one instruction.
__device__ __forceinline__ const u8* row_address(const u8* base, u32 row, u32 stride) {
    u64 address;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(row), "r"(stride), "l"(base));
    return reinterpret_cast<const u8*>(address);
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Copies to shared memory that the thread which started them waits for itself. `PENDING` are the
// groups, newest first, that may still be on their way.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                     ::"r"(shared_address(to)), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     ::"r"(shared_address(to)), "l"(from), "n"(BYTES) : "memory");
    }
}

// For lines that are read once: the second cache gives them up before all others.
__device__ __forceinline__ u64 give_up_first() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void copy_async_16(void* to, const void* from, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(shared_address(to)), "l"(from), "l"(policy) : "memory");
}

__device__ __forceinline__ void copy_async_16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Kernels of a step may be launched before the one in front of them has ended. Every kernel launched
// so waits before it uses anything but weights and what was whole when a kernel that does not start so
// began in front of it, and says at its start that the next may come:
// its blocks then take the places that this one's leave, and load their first weights.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until everything launched before has ended and can be read.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Small kernels of a step of few rows run their code twice: first before they wait, on whatever lies
// there, and without a trace of it. The streams of weights between two launches leave nothing of a
// kernel's code in the caches, and reading it then would take longer than what it does. What is read
// both times must not go through a cache that could keep the first answer (__ldcg).
constexpr u32 FEW_ROWS = 64;  // as many as the streaming kernels take (project.py)

__device__ __forceinline__ int first_pass(u32 rows) { return rows <= FEW_ROWS ? 0 : 1; }

// Whether this pass counts; if so, everything launched before has ended.
__device__ __forceinline__ bool counts_now(int pass) {
    if (pass == 0) return false;
    wait_for_previous();
    return true;
}
