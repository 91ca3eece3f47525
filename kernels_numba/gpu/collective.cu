// What the GPUs of one host do together through memory that all of them can write and read.
// Launched by ranks.py and, reduce_gathered, by nccl.py.
// The same on the CPU: cpu/exchange.py, cpu/merge.py. Test: tests/emulated/test_emulated_ranks.py.
//
// Small parts are pushed: a line of 16 bytes carries 8 bytes of data and the number of the
// collective, and is written and read whole, so whoever sees the number has the data. Large parts
// are pulled: ranks say that their part is ready, read one another's, and say that they have.
//
// The number is kept on the device and counted there, since a recorded graph replays its arguments.
// Lines have two sides, used in turn. A rank that begins collective g has all lines of g - 1, whose
// senders have left g - 2: no line is overwritten before it was read. A rank that gave up has numbers
// that nobody waits for.
#include "common.cuh"
#include "waiting.cuh"

constexpr int MOST_RANKS = 8;  // GPUs of a host
constexpr int THREADS = 256;
// Blocks wait for other ranks' blocks: all of them must find room at once, on every GPU.
constexpr int BLOCKS = 64;
constexpr int LARGE_BLOCKS = 128;
constexpr u64 NOBODY_S = 1ull << 63;  // a bit that no number has

typedef unsigned __int128 u128;

struct Line {
    u64 data;
    u64 number;
};

struct Ranks {
    u64 base[MOST_RANKS];
};

#define RANKS i64 r0, i64 r1, i64 r2, i64 r3, i64 r4, i64 r5, i64 r6, i64 r7
#define RANK_TABLE                                                                               \
    const Ranks ranks = {{static_cast<u64>(r0), static_cast<u64>(r1), static_cast<u64>(r2),      \
                          static_cast<u64>(r3), static_cast<u64>(r4), static_cast<u64>(r5),      \
                          static_cast<u64>(r6), static_cast<u64>(r7)}}

// 128 bits in one access: nobody sees half of a line.
__device__ __forceinline__ void put_line(u64 at, u64 data, u64 number) {
    const u128 line = static_cast<u128>(number) << 64 | data;
    asm volatile("st.relaxed.sys.global.b128 [%0], %1;" :: "l"(at), "q"(line) : "memory");
}

__device__ __forceinline__ Line get_line(u64 at) {
    u128 line;
    asm volatile("ld.relaxed.sys.global.b128 %0, [%1];" : "=q"(line) : "l"(at) : "memory");
    return {static_cast<u64>(line), static_cast<u64>(line >> 64)};
}

__device__ __forceinline__ bool is_first_thread() { return blockIdx.x == 0 && threadIdx.x == 0; }

// The number of this launch, the same in all of its blocks until all have said `count_on`.
__device__ __forceinline__ u64 number_of(const u64* counter, const u64* tally) {
    __shared__ u64 number;
    if (threadIdx.x == 0) {
        number = (*static_cast<const volatile u64*>(counter) + 1)
            | (has_given_up(tally) ? NOBODY_S : 0);
    }
    __syncthreads();
    return number;
}

// The last block that comes here counts the launch. While parts are on their way: it takes a while.
__device__ __forceinline__ void count_on(u64* counter, u32* tickets, u64 number) {
    // A number is never 0: the condition keeps the ticket behind the reading of the counter.
    if (threadIdx.x != 0 || number == 0) return;
    if (atomicAdd(tickets, 1u) != gridDim.x - 1) return;
    *tickets = 0;
    *static_cast<volatile u64*>(counter) = number;
}

// Where rank `to` finds what rank `from` sends as its line `index`.
__device__ __forceinline__ u64 line_at(
    const Ranks& ranks, i64 to, i64 from, i64 world, i64 lines, u64 number, i64 index) {
    const i64 side = static_cast<i64>(number & 1);
    return ranks.base[to] + ((side * world + from) * lines + index) * sizeof(Line);
}

// 0 where the line does not come: what goes on computing with it must find nothing out of range.
__device__ __forceinline__ u64 receive(u64 at, u64 number, int rank, Patience& patience) {
    while (true) {
        const Line line = get_line(at);
        if (line.number == number) return line.data;
        if (patience.lost(rank)) return 0;
    }
}

__device__ __forceinline__ u64 pair_bits(float low, float high) {
    return static_cast<u64>(__float_as_uint(high)) << 32 | __float_as_uint(low);
}

__device__ __forceinline__ float2 pair_of(u64 bits) {
    return make_float2(__uint_as_float(static_cast<u32>(bits)),
                       __uint_as_float(static_cast<u32>(bits >> 32)));
}

// Four values of item i: of row i / each.
__device__ __forceinline__ float4* four_at(float* rows, i64 stride, u32 i, u32 each) {
    const u32 row = i / each;
    return reinterpret_cast<float4*>(rows + row * stride + (i - row * each) * 4);
}

__device__ __forceinline__ float4 four_at(const float* rows, i64 stride, u32 i, u32 each) {
    return *four_at(const_cast<float*>(rows), stride, i, each);
}

// out[r] = sum over ranks of partial[r], first to last, added to out[r] when `add`: two values a
// line. Item i belongs to thread i % (BLOCKS * THREADS) whatever the grid. What the first one needs
// is asked for at once: little else takes as long as memory does.
extern "C" __global__ void __launch_bounds__(THREADS) reduce_small(
    const float* partial, i64 stride, i64 rows, i64 width, float* out, i64 out_stride, i64 add,
    i64 rank, i64 world, RANKS, i64 lines, u64* counter, u32* tickets, u64* tally,
    volatile u64* host) {
    RANK_TABLE;
    let_next_start();
    const u32 each = static_cast<u32>(width) / 4, items = static_cast<u32>(rows) * each;
    const u32 first = blockIdx.x * THREADS + threadIdx.x;
    float4 own = make_float4(0.0f, 0.0f, 0.0f, 0.0f), held = own;
    wait_for_previous();
    if (first < items) {
        own = four_at(partial, stride, first, each);
        if (add) held = *four_at(out, out_stride, first, each);
    }
    const u64 number = number_of(counter, tally);
    for (u32 i = first; i < items; i += BLOCKS * THREADS) {
        const float4 v = i == first ? own : four_at(partial, stride, i, each);
        for (int shift = 1; shift < world; ++shift) {
            const i64 to = (rank + shift) % world;
            const u64 at = line_at(ranks, to, rank, world, lines, number, 2 * i);
            put_line(at, pair_bits(v.x, v.y), number);
            put_line(at + sizeof(Line), pair_bits(v.z, v.w), number);
        }
    }
    count_on(counter, tickets, number);
    Patience patience{host, is_first_thread()};
    for (u32 i = first; i < items; i += BLOCKS * THREADS) {
        if (i != first) {
            own = four_at(partial, stride, i, each);
            if (add) held = *four_at(out, out_stride, i, each);
        }
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (i64 from = 0; from < world; ++from) {
            float4 v = own;
            if (from != rank) {
                const u64 at = line_at(ranks, rank, from, world, lines, number, 2 * i);
                const float2 low = pair_of(receive(at, number, static_cast<int>(from), patience));
                const float2 high = pair_of(
                    receive(at + sizeof(Line), number, static_cast<int>(from), patience));
                v = make_float4(low.x, low.y, high.x, high.y);
            }
            sum = from == 0 ? v
                            : make_float4(__fadd_rn(sum.x, v.x), __fadd_rn(sum.y, v.y),
                                          __fadd_rn(sum.z, v.z), __fadd_rn(sum.w, v.w));
        }
        if (add) {
            sum = make_float4(__fadd_rn(held.x, sum.x), __fadd_rn(held.y, sum.y),
                              __fadd_rn(held.z, sum.z), __fadd_rn(held.w, sum.w));
        }
        *four_at(out, out_stride, i, each) = sum;
    }
    patience.note(tally, SUMS, 4 * rows * width);
}

// out[from] = the `words` words of every rank. Shares lines and number with reduce_small.
extern "C" __global__ void __launch_bounds__(THREADS) gather_words(
    const u64* source, i64 words, u64* out, i64 rank, i64 world, RANKS, i64 lines, u64* counter,
    u32* tickets, u64* tally, volatile u64* host) {
    RANK_TABLE;
    let_next_start();
    wait_for_previous();
    const u64 number = number_of(counter, tally);
    const i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    for (i64 i = first; i < words; i += BLOCKS * THREADS) {
        const u64 word = source[i];
        out[rank * words + i] = word;
        for (int shift = 1; shift < world; ++shift) {
            const i64 to = (rank + shift) % world;
            put_line(line_at(ranks, to, rank, world, lines, number, i), word, number);
        }
    }
    count_on(counter, tickets, number);
    Patience patience{host, is_first_thread()};
    if (patience.noted) {
        // While the parts are on their way; nothing waits for the host's memory at the end.
        for (int k = 0; k < TALLIES; ++k) host[TOLD + k] = static_cast<volatile u64*>(tally)[k];
    }
    for (i64 i = first; i < words; i += BLOCKS * THREADS) {
        for (int shift = 1; shift < world; ++shift) {
            const i64 from = (rank + shift) % world;
            const u64 at = line_at(ranks, rank, from, world, lines, number, i);
            out[from * words + i] = receive(at, number, static_cast<int>(from), patience);
        }
    }
    patience.note(tally, GATHERS, 8 * words);
}

// Every rank's block tells every other's that it has come so far, and waits for theirs. `flags` are
// u64 [step][rank][block] in each rank's memory.
__device__ __forceinline__ void meet(
    const Ranks& ranks, i64 flags, int step, i64 rank, i64 world, u64 number, Patience& patience) {
    __syncthreads();
    if (static_cast<i64>(threadIdx.x) < world && static_cast<i64>(threadIdx.x) != rank) {
        const i64 other = threadIdx.x;
        const i64 mine = (step * world + rank) * LARGE_BLOCKS + blockIdx.x;
        const i64 theirs = (step * world + other) * LARGE_BLOCKS + blockIdx.x;
        __threadfence_system();
        if (number < NOBODY_S) put_flag(ranks.base[other] + flags + 8 * mine, number);
        while (get_flag(ranks.base[rank] + flags + 8 * theirs) < number) {
            if (patience.lost(static_cast<int>(other))) break;
        }
    }
    __syncthreads();
}

// As reduce_small, where `partial` lies at `data` bytes from the base of every rank's memory.
extern "C" __global__ void __launch_bounds__(THREADS) reduce_large(
    i64 data, i64 stride, i64 rows, i64 width, float* out, i64 out_stride, i64 add, i64 rank,
    i64 world, RANKS, i64 flags, u64* counter, u32* tickets, u64* tally,
    volatile u64* host) {
    RANK_TABLE;
    let_next_start();
    wait_for_previous();
    const u64 number = number_of(counter, tally);
    // The first thread that waits for another rank.
    Patience patience{host, blockIdx.x == 0 && threadIdx.x == (rank == 0 ? 1 : 0)};
    meet(ranks, flags, 0, rank, world, number, patience);
    count_on(counter, tickets, number);
    const i64 each = width / 4, items = rows * each;
    const i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    for (i64 i = first; i < items; i += LARGE_BLOCKS * THREADS) {
        const i64 offset = data + (i / each * stride + i % each * 4) * 4;
        float4 parts[MOST_RANKS];
#pragma unroll
        for (int from = 0; from < MOST_RANKS; ++from) {
            // Not through the first-level cache, which knows nothing of what others wrote.
            if (from < world) parts[from] = __ldcg(reinterpret_cast<const float4*>(ranks.base[from] + offset));
        }
        float4 sum = parts[0];
#pragma unroll
        for (int from = 1; from < MOST_RANKS; ++from) {
            if (from >= world) break;
            const float4 v = parts[from];
            sum = make_float4(__fadd_rn(sum.x, v.x), __fadd_rn(sum.y, v.y), __fadd_rn(sum.z, v.z),
                              __fadd_rn(sum.w, v.w));
        }
        float4* to = reinterpret_cast<float4*>(out + i / each * out_stride + i % each * 4);
        if (add) {
            const float4 held = *to;
            sum = make_float4(__fadd_rn(held.x, sum.x), __fadd_rn(held.y, sum.y),
                              __fadd_rn(held.z, sum.z), __fadd_rn(held.w, sum.w));
        }
        *to = sum;
    }
    meet(ranks, flags, 1, rank, world, number, patience);
    patience.note(tally, SUMS, 4 * rows * width);
}

// As reduce_small, from parts [world][rows][stride] that were gathered here.
extern "C" __global__ void __launch_bounds__(THREADS) reduce_gathered(
    const float* gathered, i64 stride, i64 rows, i64 width, float* out, i64 out_stride, i64 add,
    i64 world, u64* tally, volatile u64* host) {
    let_next_start();
    wait_for_previous();
    if (is_first_thread()) {
        host[TOLD + SUMS] = atomicAdd(tally + SUMS, 1ull) + 1;
        host[TOLD + BYTES] = atomicAdd(tally + BYTES, 4ull * rows * width) + 4 * rows * width;
    }
    const i64 items = rows * width;
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < items;
         i += static_cast<i64>(gridDim.x) * THREADS) {
        const i64 at = i / width * stride + i % width;
        float sum = gathered[at];
        for (i64 from = 1; from < world; ++from) {
            sum = __fadd_rn(sum, gathered[from * rows * stride + at]);
        }
        float* to = out + i / width * out_stride + i % width;
        *to = add ? __fadd_rn(*to, sum) : sum;
    }
}

// Whether candidate a stands before b: logit descending, then id ascending.
__device__ __forceinline__ bool before(float value, int id, float other, int other_id) {
    return value > other || (value == other && id < other_id);
}

// One row's candidates of every slice of the vocabulary, `bytes` of results a rank, to those of the
// whole row. Results begin with lse f64 [rows]; where values f32 [rows][wanted], ids i32 alike, held
// i32 [rows] and present i32 [rows] begin is told in bytes. `starts` is the first id of each slice.
// One block a row.
extern "C" __global__ void __launch_bounds__(THREADS) merge_candidates(
    const u8* gathered, i64 bytes, i64 world, i64 wanted, i64 values_at, i64 ids_at, i64 held_at,
    i64 present_at, const int* starts, u8* results) {
    let_next_start();
    wait_for_previous();
    const i64 r = blockIdx.x;
    const auto values = [&](i64 w) {
        return reinterpret_cast<const float*>(gathered + w * bytes + values_at) + r * wanted;
    };
    const auto ids = [&](i64 w) {
        return reinterpret_cast<const int*>(gathered + w * bytes + ids_at) + r * wanted;
    };
    const auto count = [&](i64 w) {
        return min(max(reinterpret_cast<const int*>(gathered + w * bytes + held_at)[r], 0),
                   static_cast<int>(wanted));
    };
    float* out_values = reinterpret_cast<float*>(results + values_at) + r * wanted;
    int* out_ids = reinterpret_cast<int*>(results + ids_at) + r * wanted;
    i64 total = 0;
    for (i64 w = 0; w < world; ++w) total += count(w);
    for (i64 i = threadIdx.x; i < world * wanted; i += THREADS) {
        const i64 own = i / wanted, j = i % wanted;
        if (j >= count(own)) continue;
        const float value = values(own)[j];
        const int id = ids(own)[j] + starts[own];
        i64 place = j;
        for (i64 w = 0; w < world; ++w) {
            if (w == own) continue;
            i64 low = 0, high = count(w);
            while (low < high) {
                const i64 middle = (low + high) / 2;
                const bool earlier =
                    before(values(w)[middle], ids(w)[middle] + starts[w], value, id);
                (earlier ? low : high) = earlier ? middle + 1 : middle;
            }
            place += low;
        }
        if (place < wanted) {
            out_values[place] = value;
            out_ids[place] = id;
        }
    }
    for (i64 j = total + threadIdx.x; j < wanted; j += THREADS) {
        out_values[j] = NEGATIVE_INFINITY;
        out_ids[j] = -1;
    }
    if (threadIdx.x != 0) return;
    double top = 0.0, sum = 0.0;
    int present = 0;
    bool undefined = false;
    for (i64 w = 0; w < world; ++w) {
        const double part = reinterpret_cast<const double*>(gathered + w * bytes)[r];
        present += reinterpret_cast<const int*>(gathered + w * bytes + present_at)[r];
        undefined |= part != part;
        top = w == 0 ? part : fmax(top, part);
    }
    for (i64 w = 0; w < world; ++w) {
        sum += exp(reinterpret_cast<const double*>(gathered + w * bytes)[r] - top);
    }
    const double none = static_cast<double>(NEGATIVE_INFINITY);
    double merged = top == none ? none : top + log(sum);
    // Whatever a NaN of another rank was, this one is the usual.
    if (undefined) merged = __longlong_as_double(0x7ff8000000000000LL);
    reinterpret_cast<double*>(results)[r] = merged;
    reinterpret_cast<int*>(results + held_at)[r] = static_cast<int>(total < wanted ? total : wanted);
    reinterpret_cast<int*>(results + present_at)[r] = present;
}
