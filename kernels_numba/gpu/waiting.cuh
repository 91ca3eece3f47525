// How a kernel waits for what another processor writes, how it is let go, and what of it is counted.
// Included by bus.cu and collective.cu.
constexpr int POLLS = 1024;  // between two looks at the host's memory and the clock, which take long

// Words of the host's memory that a waiting kernel looks at, and where it leaves what it found; from
// TOLD on what was counted before the last gather.
enum { ABORT = 0, FAILED = 1, LIMIT_NS = 2, TOLD = 3 };

// What is counted on the device, where replays count as well. WAITED is in cycles: the clock that
// knows the time takes as long to read as a line takes to come. Behind that: whether a kernel gave up.
// Its rank says nothing more: what it computes from then on is rubbish, with the right numbers, and
// others may still be waiting for it.
enum { SUMS = 0, GATHERS = 1, BYTES = 2, WAITS = 3, WAITED = 4, TALLIES = 5, GAVE_UP = TALLIES };

__device__ __forceinline__ void put_flag(u64 at, u64 number) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(at), "l"(number) : "memory");
}

__device__ __forceinline__ u64 get_flag(u64 at) {
    u64 number;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(number) : "l"(at) : "memory");
    return number;
}

__device__ __forceinline__ u64 now_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ u64 now_cycles() {
    u64 now;
    asm volatile("mov.u64 %0, %clock64;" : "=l"(now));
    return now;
}

__device__ __forceinline__ bool has_given_up(const u64* tally) {
    return static_cast<const volatile u64*>(tally)[GAVE_UP] != 0;
}

// Polls that take too long, or that the host has called off. FAILED gets 1 + the missing rank. The
// thread that is `noted` says how long it waited.
struct Patience {
    volatile u64* host;
    bool noted;
    int polls = 0;
    u64 began = 0, since = 0;
    bool over = false;

    __device__ __forceinline__ bool lost(int rank) {
        if (polls == 0 && noted) since = now_cycles();
        if (++polls % POLLS != 0) return false;
        if (began == 0) began = now_ns();
        if (host[ABORT] == 0 && now_ns() - began < host[LIMIT_NS]) return false;
        give_up(rank);
        return true;
    }

    // The first one who does is told to the host, and all others end at once.
    __device__ __forceinline__ void give_up(int rank) {
        over = true;
        if (host[FAILED] == 0) host[FAILED] = static_cast<u64>(rank) + 1;
        host[ABORT] = 1;
    }

    // All threads, at the end: one more of `kind`, with `bytes` of this rank's. Nobody reads the sums
    // here: nothing waits.
    __device__ __forceinline__ void note(u64* tally, int kind, u64 bytes) const {
        if (over) tally[GAVE_UP] = 1;
        if (!noted) return;
        atomicAdd(tally + kind, 1ull);
        atomicAdd(tally + BYTES, bytes);
        if (polls == 0) return;
        atomicAdd(tally + WAITS, 1ull);
        atomicAdd(tally + WAITED, now_cycles() - since);
    }
};
