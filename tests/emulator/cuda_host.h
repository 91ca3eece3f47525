// CUDA C++ on a host compiler: a block's threads are fibers of one thread, run in turn until each
// waits for the others. What the kernels of this project use is here, and nothing else.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fibers.h"

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ 800
// Blocks run one after the other, so one place per declaration is a block's own.
#define __shared__ static

namespace emulated {

constexpr size_t MOST_SHARED = 232448;

// An asynchronous copy: done when its thread waits for its group, and not before.
struct Copy {
    void* to;
    const void* from;
    int size, group;
};

// Those of a thread, oldest first.
struct Copies {
    Copy* items;
    int count, room, groups;

    void add(void* to, const void* from, int size) {
        if (count == room) {
            room = 2 * room + 16;
            items = static_cast<Copy*>(realloc(items, room * sizeof(Copy)));
            if (items == nullptr) abort();
        }
        items[count++] = {to, from, size, groups};
    }
    // Until no more than `pending` committed groups are outstanding.
    void wait(int pending) {
        int done = 0;
        for (; done < count && items[done].group < groups - pending; ++done) {
            memcpy(items[done].to, items[done].from, items[done].size);
        }
        if (done == 0) return;
        count -= done;
        memmove(items, items + done, count * sizeof(Copy));
    }
};

// What the lanes of a warp show one another.
typedef double Pair __attribute__((vector_size(16)));
struct Warp {
    uint64_t slots[32];
    Pair left[16][8], right[8][8];
};

alignas(1024) static unsigned char memory[MOST_SHARED];
static Warp warps[MOST_THREADS / 32];
static Copies copies[MOST_THREADS];
static void (*body)(const uint64_t*);
static const uint64_t* arguments;
static char failure[200];

inline void* dynamic_shared() { return memory; }

// Addresses of shared memory have 32 bits: distances from this place, all being in one file.
inline uint32_t shared_offset(const void* pointer) {
    return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - memory);
}

inline void* shared_pointer(uint32_t offset) {
    return memory + static_cast<int32_t>(offset);
}

inline void warp_barrier() { leave(AT_WARP, nullptr); }

inline Warp& own_warp() { return warps[current / 32]; }
inline int own_lane() { return current % 32; }

inline void enter() {
    body(arguments);
    leave(ENDED, nullptr);
}

inline bool run_block() {
    for (int thread = 0; thread < threads; ++thread) copies[thread].count = copies[thread].groups = 0;
    if (run_threads(enter)) return true;
    snprintf(failure, sizeof failure,
             "block (%u, %u, %u): threads wait for one another at different places",
             blockIdx.x, blockIdx.y, blockIdx.z);
    return false;
}

template <typename T>
inline T word_as(uint64_t word) {
    T value;
    memcpy(&value, &word, sizeof value);
    return value;
}

template <size_t... I>
struct Sequence {};
template <size_t N, size_t... I>
struct Counted : Counted<N - 1, N - 1, I...> {};
template <size_t... I>
struct Counted<0, I...> {
    typedef Sequence<I...> type;
};

template <typename... A, size_t... I>
inline void invoke(void (*kernel)(A...), const uint64_t* words, Sequence<I...>) {
    kernel(word_as<A>(words[I])...);
}

template <typename... A>
inline void invoke(void (*kernel)(A...), const uint64_t* words) {
    invoke(kernel, words, typename Counted<sizeof...(A)>::type());
}

template <typename... A>
constexpr int count_of(void (*)(A...)) {
    return sizeof...(A);
}

// Null, or what went wrong.
inline const char* launch(void (*entry)(const uint64_t*), const unsigned* grid, unsigned block,
                          unsigned shared, const uint64_t* words) {
    if (block == 0 || block > MOST_THREADS) return "a block has 1 to 1,024 threads";
    if (shared > MOST_SHARED) return "more shared memory than a block can have";
    if (stacks == nullptr) {
        void* got = mmap(nullptr, MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) return "no memory for stacks";
        stacks = static_cast<char*>(got);
    }
    body = entry;
    arguments = words;
    threads = static_cast<int>(block);
    blockDim = {block, 1, 1};
    gridDim = {grid[0], grid[1], grid[2]};
    for (unsigned z = 0; z < grid[2]; ++z) {
        for (unsigned y = 0; y < grid[1]; ++y) {
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                // Whoever reads what nobody wrote gets NaN.
                memset(memory, 0xff, shared);
                if (!run_block()) return failure;
            }
        }
    }
    return nullptr;
}

}  // namespace emulated

// Vector types ---------------------------------------------------------------------------------

#define EMULATED_VECTOR(NAME, T)                                                                  \
    struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                                            \
    struct alignas(4 * sizeof(T)) NAME##4 { T x, y, z, w; };                                      \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                    \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTOR(int, int)
EMULATED_VECTOR(uint, unsigned)
EMULATED_VECTOR(float, float)
EMULATED_VECTOR(double, double)

// Arithmetic -----------------------------------------------------------------------------------

template <typename To, typename From>
inline To emulated_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

inline float __uint_as_float(unsigned v) { return emulated_bits<float>(v); }
inline float __int_as_float(int v) { return emulated_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return emulated_bits<unsigned>(v); }
inline int __float_as_int(float v) { return emulated_bits<int>(v); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline double __longlong_as_double(long long v) { return emulated_bits<double>(v); }
inline long long __double_as_longlong(double v) { return emulated_bits<long long>(v); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __expf(float a) { return expf(a); }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
template <typename T>
inline T __ldg(const T* from) { return *from; }
inline size_t __cvta_generic_to_shared(const void* p) { return emulated::shared_offset(p); }

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned pick = selector >> (4 * i) & 15u;
        unsigned byte = both >> (8 * (pick & 7u)) & 255u;
        if (pick & 8u) byte = byte & 128u ? 255u : 0u;
        result |= byte << (8 * i);
    }
    return result;
}

template <typename A, typename B>
inline auto min(A a, B b) -> decltype(a + b) {
    typedef decltype(a + b) T;
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <typename A, typename B>
inline auto max(A a, B b) -> decltype(a + b) {
    typedef decltype(a + b) T;
    return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}

template <typename T>
inline T atomicAdd(T* to, T value) {
    const T before = *to;
    *to = before + value;
    return before;
}
template <typename T>
inline T atomicMax(T* to, T value) {
    const T before = *to;
    if (value > before) *to = value;
    return before;
}
template <typename T>
inline T atomicOr(T* to, T value) {
    const T before = *to;
    *to = before | value;
    return before;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <typename T>
inline T __ldcg(const T* from) { return *from; }

// Exchanges ------------------------------------------------------------------------------------

// The call's own address tells places apart: inlined, each use has its own label.
#define __syncthreads()                                                                           \
    do {                                                                                          \
        static const char site = 0;                                                               \
        emulated::leave(emulated::AT_BLOCK, &site);                                               \
    } while (0)
inline void __syncwarp(unsigned = 0xffffffffu) { emulated::warp_barrier(); }

template <typename T>
inline T emulated_from(T value, int lane) {
    static_assert(sizeof(T) <= 8, "a lane shows 8 bytes");
    emulated::Warp& warp = emulated::own_warp();
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    warp.slots[emulated::own_lane()] = word;
    emulated::warp_barrier();
    const T found = emulated::word_as<T>(warp.slots[lane & 31]);
    emulated::warp_barrier();
    return found;
}
template <typename T>
inline T __shfl_sync(unsigned, T value, int lane) { return emulated_from(value, lane); }
template <typename T>
inline T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulated_from(value, emulated::own_lane() ^ mask);
}
template <typename T>
inline T __shfl_up_sync(unsigned, T value, int step) {
    const int lane = emulated::own_lane();
    return emulated_from(value, lane < step ? lane : lane - step);
}
template <typename T>
inline T __shfl_down_sync(unsigned, T value, int step) {
    const int lane = emulated::own_lane();
    return emulated_from(value, lane + step > 31 ? lane : lane + step);
}

inline unsigned __ballot_sync(unsigned, int predicate) {
    emulated::Warp& warp = emulated::own_warp();
    warp.slots[emulated::own_lane()] = predicate != 0;
    emulated::warp_barrier();
    unsigned found = 0;
    const int first = emulated::current / 32 * 32;
    for (int lane = 0; lane < 32 && first + lane < emulated::threads; ++lane) {
        if (emulated::fibers[first + lane].state != emulated::ENDED && warp.slots[lane] != 0) {
            found |= 1u << lane;
        }
    }
    emulated::warp_barrier();
    return found;
}
template <typename T>
inline unsigned __match_any_sync(unsigned, T value) {
    unsigned alike = 0;
    for (int lane = 0; lane < 32; ++lane) {
        const T other = emulated_from(value, lane);
        if (__ballot_sync(0xffffffffu, other == value) >> emulated::own_lane() & 1u) {
            alike |= 1u << lane;
        }
    }
    return alike;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    for (int step = 16; step >= 1; step /= 2) value = max(value, __shfl_xor_sync(0u, value, step));
    return value;
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
    for (int step = 16; step >= 1; step /= 2) value = min(value, __shfl_xor_sync(0u, value, step));
    return value;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// Instructions: `asm` statements become calls of these, operands in order -----------------------

inline unsigned emulated_bf16(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline float emulated_float(unsigned bits) { return __uint_as_float((bits & 0xffffu) << 16); }
inline emulated::Pair emulated_pair(unsigned both) {
    return emulated::Pair{emulated_float(both), emulated_float(both >> 16)};
}

inline void ptx_cvt_rn_bf16x2_f32(unsigned& packed, float high, float low) {
    packed = emulated_bf16(high) << 16 | emulated_bf16(low);
}

inline void ptx_prmt_b32(unsigned& out, unsigned a, unsigned b, unsigned selector) {
    out = __byte_perm(a, b, selector);
}

inline void ptx_fma_rn_bf16x2(unsigned& out, unsigned a, unsigned b, unsigned c) {
    unsigned result = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const float value = fmaf(emulated_float(a >> shift), emulated_float(b >> shift),
                                 emulated_float(c >> shift));
        result |= emulated_bf16(value) << shift;
    }
    out = result;
}

inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
    float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
    unsigned b0, unsigned b1) {
    emulated::Warp& warp = emulated::own_warp();
    const int lane = emulated::own_lane(), g = lane / 4, t = lane % 4;
    const unsigned left[4] = {a0, a1, a2, a3}, right[2] = {b0, b1};
    for (int item = 0; item < 4; ++item) {
        warp.left[g + item % 2 * 8][t + item / 2 * 4] = emulated_pair(left[item]);
    }
    for (int item = 0; item < 2; ++item) warp.right[g][t + item * 4] = emulated_pair(right[item]);
    emulated::warp_barrier();
    float* sums[4] = {&c0, &c1, &c2, &c3};
    for (int item = 0; item < 4; ++item) {
        const emulated::Pair* row = warp.left[g + item / 2 * 8];
        const emulated::Pair* column = warp.right[2 * t + item % 2];
        // Products of bf16 values and their sums are exact enough in any order.
        emulated::Pair even = row[0] * column[0], odd = row[1] * column[1];
        for (int k = 2; k < 8; k += 2) {
            even += row[k] * column[k];
            odd += row[k + 1] * column[k + 1];
        }
        *sums[item] = static_cast<float>(*sums[item] + ((even[0] + even[1]) + (odd[0] + odd[1])));
    }
    emulated::warp_barrier();
}

inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
    unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned address) {
    emulated::Warp& warp = emulated::own_warp();
    const int lane = emulated::own_lane();
    warp.slots[lane] = address;
    emulated::warp_barrier();
    unsigned* out[4] = {&r0, &r1, &r2, &r3};
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned word = 0;
        for (int half = 0; half < 2; ++half) {
            const int row = 2 * (lane % 4) + half;
            const void* from = emulated::shared_pointer(static_cast<uint32_t>(warp.slots[8 * matrix + row]));
            word |= static_cast<unsigned>(static_cast<const uint16_t*>(from)[lane / 4]) << (16 * half);
        }
        *out[matrix] = word;
    }
    emulated::warp_barrier();
}

inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(
    unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned address) {
    emulated::Warp& warp = emulated::own_warp();
    const int lane = emulated::own_lane();
    warp.slots[lane] = address;
    emulated::warp_barrier();
    unsigned* out[4] = {&r0, &r1, &r2, &r3};
    for (int matrix = 0; matrix < 4; ++matrix) {
        const uint32_t row = static_cast<uint32_t>(warp.slots[8 * matrix + lane / 4]);
        memcpy(out[matrix], static_cast<const char*>(emulated::shared_pointer(row)) + lane % 4 * 4, 4);
    }
    emulated::warp_barrier();
}

// In even blocks copies arrive when they are waited for, in odd ones at once: so a place that is read too
// early is found, and one that is still read when it is copied to.
inline void emulated_copy(unsigned to, const void* from, int size) {
    void* place = emulated::shared_pointer(to);
    if (blockIdx.x % 2 == 1) {
        memcpy(place, from, size);
    } else {
        emulated::copies[emulated::current].add(place, from, size);
    }
}
inline void ptx_cp_async_cg_shared_global(unsigned to, const void* from, int size) {
    emulated_copy(to, from, size);
}
inline void ptx_cp_async_ca_shared_global(unsigned to, const void* from, int size) {
    emulated_copy(to, from, size);
}
inline void ptx_cp_async_cg_shared_global_L2_128B(unsigned to, const void* from, int size) {
    emulated_copy(to, from, size);
}
inline void ptx_createpolicy_fractional_L2_evict_first_b64(unsigned long long& policy) { policy = 0; }
inline void ptx_cp_async_cg_shared_global_L2_cache_hint_L2_128B(
    unsigned to, const void* from, unsigned long long, int size) {
    emulated_copy(to, from, size);
}
inline void ptx_cp_async_commit_group() { ++emulated::copies[emulated::current].groups; }
inline void ptx_cp_async_wait_group(int pending) {
    emulated::copies[emulated::current].wait(pending);
}

inline void ptx_div_rn_f32(float& out, float a, float b) { out = a / b; }
inline void ptx_cvt_f64_f32(double& out, float a) { out = a; }
inline void ptx_cvt_rn_f32_f64(float& out, double a) { out = static_cast<float>(a); }
// %globaltimer, and %clock64 of a device at 1 GHz.
inline void ptx_mov_u64(unsigned long long& out) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    out = now.tv_sec * 1000000000ull + now.tv_nsec;
}

inline void ptx_mad_wide_u32(unsigned long long& out, unsigned a, unsigned b, const void* c) {
    out = static_cast<uint64_t>(a) * b + reinterpret_cast<uint64_t>(c);
}

inline void ptx_ld_global_nc_L1_no_allocate_v4_u32(
    unsigned& x, unsigned& y, unsigned& z, unsigned& w, const void* from) {
    const unsigned* words = static_cast<const unsigned*>(from);
    x = words[0];
    y = words[1];
    z = words[2];
    w = words[3];
}

// Words that devices, which are threads or processes here, show one another. A line of 16 bytes is never seen by
// halves: its upper half is written last and read first.
inline void ptx_st_relaxed_sys_global_b128(unsigned long long at, unsigned __int128 line) {
    unsigned long long* to = reinterpret_cast<unsigned long long*>(at);
    to[0] = static_cast<unsigned long long>(line);
    __atomic_store_n(to + 1, static_cast<unsigned long long>(line >> 64), __ATOMIC_RELEASE);
}

inline void ptx_ld_relaxed_sys_global_b128(unsigned __int128& line, unsigned long long at) {
    emulated::poll(at);
    const unsigned long long* from = reinterpret_cast<const unsigned long long*>(at);
    const unsigned long long high = __atomic_load_n(from + 1, __ATOMIC_ACQUIRE);
    line = static_cast<unsigned __int128>(high) << 64 | from[0];
}

inline void ptx_st_release_sys_global_u64(unsigned long long at, unsigned long long value) {
    __atomic_store_n(reinterpret_cast<unsigned long long*>(at), value, __ATOMIC_RELEASE);
}

inline void ptx_ld_acquire_sys_global_u64(unsigned long long& value, unsigned long long at) {
    emulated::poll(at);
    value = __atomic_load_n(reinterpret_cast<unsigned long long*>(at), __ATOMIC_ACQUIRE);
}

// Kernels by name: EMULATED_ENTRY(name) after the source that declares it.
#define EMULATED_ENTRY(NAME)                                                                      \
    static void emulated_body_##NAME(const uint64_t* words) { emulated::invoke(&NAME, words); }   \
    extern "C" int emulated_count_##NAME() { return emulated::count_of(&NAME); }                  \
    extern "C" const char* emulated_launch_##NAME(                                                \
        const unsigned* grid, unsigned block, unsigned shared, const uint64_t* words) {           \
        return emulated::launch(&emulated_body_##NAME, grid, block, shared, words);               \
    }
