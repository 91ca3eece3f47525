// What a rank does with the others over the RoCE bus, from the device: words go into the slab that the
// poller has registered, the peers' come out of it. Recorded in graphs, these kernels are all that a
// replay needs of the host: numbers and places in the rings are kept on the device and counted there.
// Launched by bus.py.
// The same on the CPU: cpu/bus.py. Oracle: tests/sum_oracles.py in tests/emulated/test_emulated_bus.py.
//
// Memory of the slab is the host's, and adapters write it: it is read and written by accesses of
// system scope alone, which no cache of the device answers. A channel's record is in the device's
// memory, its words as in kernels_numba/cpu/bus.py, and so are the cells.
//
// A launch is one collective of as many messages to each peer as it has blocks, which go round the
// lanes. Every peer is sent as many as it sends: one count of a lane's messages serves all. Blocks
// announce their messages and give slots back in order, each after the one in front of it.
#include "common.cuh"
#include "waiting.cuh"

constexpr int THREADS = 1024;
constexpr int ITEMS = 8;  // 8-byte words a thread: messages of up to 64 KiB
constexpr u64 FACTOR = 0x9E3779B97F4A7C15ull;  // 2^64 over the golden ratio, odd; in cpu/bus.py too
constexpr int CHANNEL_WORDS = 16, CELL_WORDS = 8;

enum { SEND, SEND_CELLS, CREDITS, RECEIVE, RECEIVE_CELLS, STAGED, STRIDE, SLOTS, SLOT_BYTES, READY,
       RELEASED, SEQUENCE, CREDITED, TAKEN, GIVEN };

// Behind what is counted: what a peer's message was of where it was not the one due.
enum { OTHER_GENERATION = TOLD + TALLIES, OTHER_TAG };

// Of the device's own counts: collectives, blocks of this one that have ended, messages of each lane.
enum { NUMBER, TICKETS, SENT };

__device__ __forceinline__ u64 get_word(u64 at) { return *reinterpret_cast<volatile u64*>(at); }

__device__ __forceinline__ void put_word(u64 at, u64 value) {
    *reinterpret_cast<volatile u64*>(at) = value;
}

__device__ __forceinline__ u64 hashed(u64 word, i64 position) {
    return (word + static_cast<u64>(position) + 1) * FACTOR;
}

struct Cell {
    u64 words[CELL_WORDS];

    __device__ __forceinline__ u64 seal() const {
        u64 told = 0;
        for (int i = 0; i < CELL_WORDS - 1; ++i) told ^= hashed(words[i], i);
        return told;
    }
};

// Whether a whole cell stands there.
__device__ __forceinline__ bool get_cell(u64 at, Cell& cell) {
    cell.words[0] = get_flag(at);
    for (int i = 1; i < CELL_WORDS; ++i) cell.words[i] = get_word(at + 8 * i);
    return cell.words[CELL_WORDS - 1] == cell.seal();
}

__device__ __forceinline__ void put_cell(u64 at, const Cell& cell) {
    for (int i = 0; i < CELL_WORDS; ++i) put_word(at + 8 * i, cell.words[i]);
}

// What the threads of the block tell one another. `over`: it waits, sends and gives back no more.
struct Shared {
    u64 values[THREADS];
    u64 promised;
    bool over;
};

// XOR over the block; every thread gets it.
__device__ __forceinline__ u64 block_xor(u64 value, Shared& shared) {
    u64* values = shared.values;
    values[threadIdx.x] = value;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (static_cast<int>(threadIdx.x) < step) values[threadIdx.x] ^= values[threadIdx.x + step];
        __syncthreads();
    }
    const u64 told = values[0];
    __syncthreads();
    return told;
}

// The whole bus, and this block's message of this collective.
struct Bus {
    i64 rank, world, lanes;
    i64* channels;
    u64* counts;
    u64 tag;
    u64* tally;
    volatile u64* host;
    i64 words;
    u64 generation = 0, number = 0;
    i64 lane = 0;

    __device__ __forceinline__ void begin() {
        const volatile u64* told = counts;
        lane = blockIdx.x % lanes;
        generation = told[NUMBER] + 1;
        number = told[SENT + lane] + blockIdx.x / lanes + 1;
    }

    __device__ __forceinline__ i64* channel(i64 peer) const {
        return channels + (peer * lanes + lane) * CHANNEL_WORDS;
    }

    // The place of the message in the ring of a channel.
    __device__ __forceinline__ u64 slot(const i64* channel) const {
        return (number - 1) % static_cast<u64>(channel[SLOTS]);
    }

    __device__ __forceinline__ u64 cell(const i64* channel, int cells) const {
        return static_cast<u64>(channel[cells]) + 8 * CELL_WORDS * slot(channel);
    }

    __device__ __forceinline__ u64 payload(const i64* channel, int payloads) const {
        return static_cast<u64>(channel[payloads]) + slot(channel) * channel[STRIDE];
    }

    // One thread, of the last block that comes here: the collective is over.
    __device__ __forceinline__ void count_on() const {
        if (atomicAdd(counts + TICKETS, 1ull) != gridDim.x - 1) return;
        counts[TICKETS] = 0;
        for (i64 of = 0; of < lanes; ++of) counts[SENT + of] += (gridDim.x - of + lanes - 1) / lanes;
        counts[NUMBER] = generation;
    }
};

// One thread: whether the block of the message in front of this one has done the same.
__device__ __forceinline__ bool await_turn(i64* done, u64 number, int peer, Patience& patience) {
    while (get_flag(reinterpret_cast<u64>(done)) != number - 1) {
        if (patience.lost(peer)) return false;
    }
    return true;
}

// One thread: whether the message's slot is free, by the credit of the one that lay there.
__device__ __forceinline__ bool await_room(
    const Bus& bus, const i64* channel, int peer, Patience& patience) {
    const u64 slots = static_cast<u64>(channel[SLOTS]);
    if (bus.number <= slots) return true;
    Cell credit;
    while (!get_cell(bus.cell(channel, CREDITS), credit) || credit.words[0] != bus.number - slots) {
        if (patience.lost(peer)) return false;
    }
    return true;
}

// One thread: the payload has been written; the poller may post it. Whether it may.
__device__ __forceinline__ bool announce(
    const Bus& bus, i64* channel, u64 told, int peer, Patience& patience) {
    Cell cell = {{bus.number, bus.generation, told,
                  8 * static_cast<u64>(bus.words) | bus.slot(channel) << 32, bus.tag, 0, 0, 0}};
    cell.words[CELL_WORDS - 1] = cell.seal();
    put_cell(bus.cell(channel, SEND_CELLS), cell);
    if (!await_turn(channel + SEQUENCE, bus.number, peer, patience)) return false;
    __threadfence_system();
    put_flag(channel[READY], bus.number);
    put_flag(reinterpret_cast<u64>(channel + SEQUENCE), bus.number);
    return true;
}

// One thread: whether the message's cell came, whose hash is then `promised`. One of another
// collective calls all off.
__device__ __forceinline__ bool await_cell(
    const Bus& bus, const i64* channel, int peer, Patience& patience, u64& promised) {
    Cell cell;
    while (!get_cell(bus.cell(channel, RECEIVE_CELLS), cell) || cell.words[0] != bus.number) {
        if (patience.lost(peer)) return false;
    }
    promised = cell.words[2];
    if (cell.words[1] == bus.generation && cell.words[4] == bus.tag) return true;
    bus.host[OTHER_GENERATION] = cell.words[1];
    bus.host[OTHER_TAG] = cell.words[4];
    patience.give_up(peer);
    return false;
}

// One thread: the message has been read; its credit may go back. Whether it may.
__device__ __forceinline__ bool give_back(
    const Bus& bus, i64* channel, int peer, Patience& patience) {
    Cell cell;
    get_cell(bus.cell(channel, RECEIVE_CELLS), cell);
    put_cell(bus.cell(channel, STAGED), cell);
    if (!await_turn(channel + GIVEN, bus.number, peer, patience)) return false;
    __threadfence_system();
    put_flag(channel[RELEASED], bus.number);
    put_flag(reinterpret_cast<u64>(channel + GIVEN), bus.number);
    return true;
}

// The words of one message into registers, once all of them hash to what the cell promises.
__device__ __forceinline__ void take(
    const Bus& bus, i64* channel, int peer, u64 (&mine)[ITEMS], Patience& patience, Shared& shared) {
    if (threadIdx.x == 0 && !shared.over) {
        shared.over = !await_cell(bus, channel, peer, patience, shared.promised);
    }
    __syncthreads();
    const u64 payload = bus.payload(channel, RECEIVE);
    while (!shared.over) {
        u64 told = 0;
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
            if (i >= bus.words) break;
            mine[item] = get_word(payload + 8 * i);
            told ^= hashed(mine[item], i);
        }
        if (block_xor(told, shared) == shared.promised) return;
        if (threadIdx.x == 0 && (bus.host[ABORT] != 0 || patience.lost(peer))) {
            patience.give_up(peer);
            shared.over = true;
        }
        __syncthreads();
    }
    // What goes on computing must find nothing out of range.
    for (int item = 0; item < ITEMS; ++item) mine[item] = 0;
}

// This block's words to all and theirs from all: `read(i)` gives word i, `got(rank, words)` is told
// every rank's, first to last, this rank's own too. Thread t has words t, t + THREADS, ...
template <typename Read, typename Got>
__device__ __forceinline__ void exchange(
    const Bus& bus, Patience& patience, Shared& shared, Read read, Got got) {
    u64 own[ITEMS];
    u64 told = 0;
    if (threadIdx.x == 0) shared.over = has_given_up(bus.tally);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
        if (i >= bus.words) break;
        own[item] = read(i);
        told ^= hashed(own[item], i);
    }
    told = block_xor(told, shared);
    for (i64 shift = 1; shift < bus.world; ++shift) {
        const int peer = static_cast<int>((bus.rank + shift) % bus.world);
        i64* channel = bus.channel(peer);
        if (threadIdx.x == 0 && !shared.over) {
            shared.over = !await_room(bus, channel, peer, patience);
        }
        __syncthreads();
        if (shared.over) break;
        const u64 payload = bus.payload(channel, SEND);
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
            if (i >= bus.words) break;
            put_word(payload + 8 * i, own[item]);
        }
        __threadfence_system();
        __syncthreads();
        if (threadIdx.x == 0) shared.over = !announce(bus, channel, told, peer, patience);
    }
    for (i64 from = 0; from < bus.world; ++from) {
        if (from == bus.rank) {
            got(from, own);
            continue;
        }
        u64 theirs[ITEMS];
        const int peer = static_cast<int>(from);
        take(bus, bus.channel(peer), peer, theirs, patience, shared);
        got(from, theirs);
        __syncthreads();
        if (threadIdx.x == 0 && !shared.over) {
            shared.over = !give_back(bus, bus.channel(peer), peer, patience);
        }
    }
    if (threadIdx.x == 0) bus.count_on();
}

__device__ __forceinline__ float2 two_floats(u64 bits) {
    return make_float2(__uint_as_float(static_cast<u32>(bits)),
                       __uint_as_float(static_cast<u32>(bits >> 32)));
}

// How many of `all` words the block has that begins at `first`.
__device__ __forceinline__ i64 own_words(i64 first, i64 all, i64 share) {
    return min(max(all - first, 0ll), share);
}

#define BUS_PARAMETERS                                                                            \
    i64 rank, i64 world, i64 lanes, i64 *channels, u64 *counts, u64 tag, u64 *tally,             \
        volatile u64 *host

// out[r] = sum over ranks of partial[r], first to last, added to out[r] when `add`, for the values
// [2 * begin, 2 * end) of rows of `width` one behind the other; `width` is even. Block b has the
// `share` pairs from begin + b * share on. `channels` are records [world][lanes], this rank's unused;
// `tag` is the collective's kind, wire and bytes.
extern "C" __global__ void __launch_bounds__(THREADS) bus_reduce(
    const float* partial, i64 stride, i64 width, i64 begin, i64 end, i64 share, float* out,
    i64 out_stride, i64 add, BUS_PARAMETERS) {
    __shared__ Shared shared;
    let_next_start();
    wait_for_previous();
    const i64 each = width / 2, first = begin + static_cast<i64>(blockIdx.x) * share;
    Bus bus{rank, world, lanes, channels, counts, tag, tally, host, own_words(first, end, share)};
    bus.begin();
    Patience patience{host, blockIdx.x == 0 && threadIdx.x == 0};
    float2 sums[ITEMS];
    exchange(
        bus, patience, shared,
        [&](i64 i) {
            const float* at = partial + (first + i) / each * stride + (first + i) % each * 2;
            return static_cast<u64>(__float_as_uint(at[1])) << 32 | __float_as_uint(at[0]);
        },
        [&](i64 from, const u64 (&words)[ITEMS]) {
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                if (static_cast<i64>(item) * THREADS + threadIdx.x >= bus.words) break;
                const float2 v = two_floats(words[item]);
                sums[item] = from == 0 ? v
                                       : make_float2(__fadd_rn(sums[item].x, v.x),
                                                     __fadd_rn(sums[item].y, v.y));
            }
        });
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
        if (i >= bus.words) break;
        float* to = out + (first + i) / each * out_stride + (first + i) % each * 2;
        to[0] = add ? __fadd_rn(to[0], sums[item].x) : sums[item].x;
        to[1] = add ? __fadd_rn(to[1], sums[item].y) : sums[item].y;
    }
    patience.note(tally, SUMS, 8 * (end - begin));
}

// out[from][begin, end) = the words [begin, end) of every rank, rows of `total` words. Block b has the
// `share` words from begin + b * share on.
extern "C" __global__ void __launch_bounds__(THREADS) bus_gather(
    const u64* source, i64 total, i64 begin, i64 end, i64 share, u64* out, BUS_PARAMETERS) {
    __shared__ Shared shared;
    let_next_start();
    wait_for_previous();
    const i64 first = begin + static_cast<i64>(blockIdx.x) * share;
    Bus bus{rank, world, lanes, channels, counts, tag, tally, host, own_words(first, end, share)};
    bus.begin();
    Patience patience{host, blockIdx.x == 0 && threadIdx.x == 0};
    if (patience.noted) {
        for (int k = 0; k < TALLIES; ++k) host[TOLD + k] = static_cast<volatile u64*>(tally)[k];
    }
    exchange(
        bus, patience, shared, [&](i64 i) { return source[first + i]; },
        [&](i64 from, const u64 (&words)[ITEMS]) {
#pragma unroll
            for (int item = 0; item < ITEMS; ++item) {
                const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
                if (i >= bus.words) break;
                out[from * total + first + i] = words[item];
            }
        });
    patience.note(tally, GATHERS, 8 * (end - begin));
}
