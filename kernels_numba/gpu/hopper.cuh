// What sm_90a has beyond mma.sync: barriers in shared memory that count bytes, tiles copied by the
// copy engine, matrix instructions of a warpgroup. Given the same sixteen values of K, such an
// instruction gives the bits of mma.sync (tests/gpu holds it to that). Included by tile_hopper.cu and
// attend_hopper.cu.

constexpr int WARPGROUP = 128;  // threads of a warpgroup

struct Barrier {
    u32 at;

    __device__ __forceinline__ void open(u32 arrivals) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
    }

    __device__ __forceinline__ void expect(u32 bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                     : "memory");
    }

    __device__ __forceinline__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
    }

    // The barrier at the same place of block `rank` of the cluster. A wider release than the usual one
    // costs a fence of all memory.
    __device__ __forceinline__ void arrive_at(u32 rank) const {
        asm volatile(
            "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
            "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(at), "r"(rank)
            : "memory");
    }

    __device__ __forceinline__ void wait(u32 parity) const {
        asm volatile(
            "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
            "@!done bra again;}" ::"r"(at), "r"(parity)
            : "memory");
    }
};

__device__ __forceinline__ void barriers_are_open() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" :::
                     "memory");
}

// The box of `map` at (k, row, ...) to shared memory; its bytes arrive at `full`.
__device__ __forceinline__ void load_box(u32 to, const void* map, Barrier full, int c0, int c1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(full.at), "r"(c0), "r"(c1)
        : "memory");
}

__device__ __forceinline__ void load_box(
    u32 to, const void* map, Barrier full, int c0, int c1, int c2) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(full.at), "r"(c0), "r"(c1),
        "r"(c2)
        : "memory");
}

__device__ __forceinline__ void load_box(
    u32 to, const void* map, Barrier full, int c0, int c1, int c2, int c3, int c4) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to), "l"(map), "r"(full.at), "r"(c0),
        "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

// The same to both blocks of a pair, at the same places.
__device__ __forceinline__ void load_box_to_pair(
    u32 to, const void* map, Barrier full, int c0, int c1) {
    constexpr u16 BOTH = 3;  // a bit for each block of the cluster
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(map), "r"(full.at),
        "r"(c0), "r"(c1), "h"(BOTH)
        : "memory");
}

// A processor has 65,536 registers. A warpgroup gives some of its threads' back, and others take them.
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// How an instruction finds rows of 128 bytes in shared memory, their 16-byte units exchanged as the copy
// engine does: in bits 62 and 63 that exchange, from bit 32 on the distance of eight rows and below it
// the address, both in units of 16 bytes. Eight such rows begin at whole ATOMs.
constexpr u32 ATOM = 8 * 128;

__device__ __forceinline__ u64 descriptor_at(u32 address) {
    constexpr u64 EXCHANGED = 1ull << 62, EIGHT_ROWS = static_cast<u64>(ATOM >> 4) << 32;
    constexpr u32 ADDRESS_BITS = (1u << 18) - 1;
    return EXCHANGED | EIGHT_ROWS | (address & ADDRESS_BITS) >> 4;
}

__device__ __forceinline__ u32 whole_atoms(u32 address) { return (address + ATOM - 1) / ATOM * ATOM; }

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving accumulators while instructions may still write them.
template <int COUNT>
__device__ __forceinline__ void hold(float (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

#define LIST_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LIST_8 LIST_0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST_16 LIST_8 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LIST_24 LIST_16 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST_32 LIST_24 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define LIST_40 LIST_32 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define LIST_48 LIST_40 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define LIST_56 LIST_48 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define LIST_64 LIST_56 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define LIST_72 LIST_64 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define LIST_80 LIST_72 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define LIST_88 LIST_80 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define EIGHT(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),   \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define PLACES_24 EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24)
#define PLACES_32 PLACES_24, EIGHT(32)
#define PLACES_40 PLACES_32, EIGHT(40)
#define PLACES_48 PLACES_40, EIGHT(48)
#define PLACES_56 PLACES_48, EIGHT(56)
#define PLACES_64 PLACES_56, EIGHT(64)
#define PLACES_72 PLACES_64, EIGHT(72)
#define PLACES_80 PLACES_72, EIGHT(80)
#define PLACES_88 PLACES_80, EIGHT(88)

// d[64 x N] = (going ? d : 0) + a[64 x 16] * b[16 x N]. A warp's sixteen rows of a and d lie in its
// lanes as mma.sync has them; d's column 8 i + c is d[4 i + ...].
template <int N>
struct Wgmma;

// `b`: columns of K values each, or with TURNED rows of N values, one for each of K.
#define WGMMA(N, LAST, A0, A1, A2, A3, B, GOING, TURN)                                            \
    template <>                                                                                   \
    struct Wgmma<N> {                                                                             \
        template <int TURNED, int HELD>                                                           \
        __device__ __forceinline__ static void multiply(                                          \
            float (&d)[HELD], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int going) {                 \
            asm volatile(                                                                         \
                "{.reg .pred p; setp.ne.b32 p, %" #GOING ", 0;"                                   \
                "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST_##LAST          \
                "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TURN ";}"     \
                : PLACES_##LAST                                                                   \
                : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(going), "n"(TURNED));           \
        }                                                                                         \
        /* a in shared memory too: rows of K values each */                                       \
        template <int HELD>                                                                       \
        __device__ __forceinline__ static void multiply_shared(                                   \
            float (&d)[HELD], u64 a, u64 b, int going) {                                          \
            asm volatile(                                                                         \
                "{.reg .pred p; setp.ne.b32 p, %" #A2 ", 0;"                                      \
                "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST_##LAST          \
                "}, %" #A0 ", %" #A1 ", p, 1, 1, 0, 0;}"                                          \
                : PLACES_##LAST                                                                   \
                : "l"(a), "l"(b), "r"(going));                                                    \
        }                                                                                         \
    }
WGMMA(64, 24, 32, 33, 34, 35, 36, 37, 38);
WGMMA(80, 32, 40, 41, 42, 43, 44, 45, 46);
WGMMA(96, 40, 48, 49, 50, 51, 52, 53, 54);
WGMMA(112, 48, 56, 57, 58, 59, 60, 61, 62);
WGMMA(128, 56, 64, 65, 66, 67, 68, 69, 70);
WGMMA(144, 64, 72, 73, 74, 75, 76, 77, 78);
WGMMA(160, 72, 80, 81, 82, 83, 84, 85, 86);
WGMMA(176, 80, 88, 89, 90, 91, 92, 93, 94);
WGMMA(192, 88, 96, 97, 98, 99, 100, 101, 102);
