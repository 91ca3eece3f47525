// A rank's sums over the RoCE bus, from the device: rows go into the slab that the poller has
// registered, the peers' come out of it. Recorded in graphs, these kernels are all that a replay
// needs of the host: numbers and places in the rings are kept on the device and counted there.
//
// Memory of the slab is the host's, and adapters write it: it is read and written by accesses of
// system scope alone, which no cache of the device answers. A channel's record is in the device's
// memory, its words as in kernels_numba/cpu/bus.py, and so are the cells. One block per launch.
#include "common.cuh"
#include "waiting.cuh"

constexpr int THREADS = 1024;
constexpr int ITEMS = 8;  // 8-byte words a thread: messages of up to 64 KiB
constexpr u64 FACTOR = 0x9E3779B97F4A7C15ull;
constexpr int CHANNEL_WORDS = 16, CELL_WORDS = 8;

enum { SEND, SEND_CELLS, CREDITS, RECEIVE, RECEIVE_CELLS, STAGED, STRIDE, SLOTS, SLOT_BYTES, READY,
       RELEASED, SEQUENCE, CREDITED, TAKEN, GIVEN };

// Beside what `waiting.cuh` has: what a peer's message was of where it was not the one due.
enum { OTHER_GENERATION = 6, OTHER_TAG = 7 };

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

// What the threads of the block tell one another.
struct Shared {
    u64 values[THREADS];
    u64 promised;
    int over;
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

// One thread: waits for a free slot of the ring, by the credits that come back.
__device__ __forceinline__ void await_room(i64* channel, int peer, Patience& patience) {
    while (channel[SEQUENCE] - channel[CREDITED] >= channel[SLOTS]) {
        Cell credit;
        const u64 due = static_cast<u64>(channel[CREDITED] + 1);
        const i64 slot = channel[CREDITED] % channel[SLOTS];
        if (get_cell(channel[CREDITS] + 8 * CELL_WORDS * slot, credit) && credit.words[0] == due) {
            channel[CREDITED] += 1;
        } else if (patience.lost(peer)) {
            return;
        }
    }
}

// One thread: the payload has been written to the next slot; the poller may post it.
__device__ __forceinline__ void announce(
    i64* channel, u64 length, u64 told, u64 generation, u64 tag) {
    const i64 slot = channel[SEQUENCE] % channel[SLOTS];
    channel[SEQUENCE] += 1;
    Cell cell = {{static_cast<u64>(channel[SEQUENCE]), generation, told,
                  length | static_cast<u64>(slot) << 32, tag, 0, 0, 0}};
    cell.words[CELL_WORDS - 1] = cell.seal();
    put_cell(channel[SEND_CELLS] + 8 * CELL_WORDS * slot, cell);
    __threadfence_system();
    put_flag(channel[READY], static_cast<u64>(channel[SEQUENCE]));
}

// One thread: the hash that the next message's cell promises. Called off where it does not come, or
// is of another collective.
__device__ __forceinline__ u64 await_cell(
    const i64* channel, u64 generation, u64 tag, int peer, volatile u64* host, Patience& patience) {
    const i64 slot = channel[TAKEN] % channel[SLOTS];
    Cell cell;
    while (!get_cell(channel[RECEIVE_CELLS] + 8 * CELL_WORDS * slot, cell)
           || cell.words[0] != static_cast<u64>(channel[TAKEN] + 1)) {
        if (patience.lost(peer)) return 0;
    }
    if (cell.words[1] != generation || cell.words[4] != tag) {
        host[OTHER_GENERATION] = cell.words[1];
        host[OTHER_TAG] = cell.words[4];
        if (host[FAILED] == 0) host[FAILED] = static_cast<u64>(peer) + 1;
        host[ABORT] = 1;
    }
    return cell.words[2];
}

// One thread: the message has been read; its credit may go back.
__device__ __forceinline__ void give_back(i64* channel) {
    const i64 slot = channel[GIVEN] % channel[SLOTS];
    Cell cell;
    get_cell(channel[RECEIVE_CELLS] + 8 * CELL_WORDS * slot, cell);
    put_cell(channel[STAGED] + 8 * CELL_WORDS * slot, cell);
    channel[GIVEN] += 1;
    __threadfence_system();
    put_flag(channel[RELEASED], static_cast<u64>(channel[GIVEN]));
}

__device__ __forceinline__ float2 two_floats(u64 bits) {
    return make_float2(__uint_as_float(static_cast<u32>(bits)),
                       __uint_as_float(static_cast<u32>(bits >> 32)));
}

// The words of one message into registers, once all of them hash to what the cell promises.
__device__ __forceinline__ void take(
    i64* channel, i64 words, u64 generation, u64 tag, int peer, volatile u64* host,
    u64 (&mine)[ITEMS], Shared& shared) {
    Patience patience{host, false};
    if (threadIdx.x == 0) {
        shared.promised = await_cell(channel, generation, tag, peer, host, patience);
    }
    __syncthreads();
    const u64 payload = channel[RECEIVE] + channel[TAKEN] % channel[SLOTS] * channel[STRIDE];
    while (true) {
        u64 told = 0;
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
            if (i >= words) break;
            mine[item] = get_word(payload + 8 * i);
            told ^= hashed(mine[item], i);
        }
        if (block_xor(told, shared) == shared.promised) return;
        if (threadIdx.x == 0) shared.over = host[ABORT] != 0 || patience.lost(peer);
        __syncthreads();
        if (!shared.over) continue;
        // What goes on computing must find nothing out of range.
        for (int item = 0; item < ITEMS; ++item) mine[item] = 0;
        return;
    }
}

// out[r] = sum over ranks of partial[r], first to last, added to out[r] when `add`. `channels` are
// the records of the latency pool, one a rank, this rank's unused; `width` is even and all rows fit
// into a slot. `tag` is the collective's kind, wire and bytes.
extern "C" __global__ void __launch_bounds__(THREADS) bus_reduce(
    const float* partial, i64 stride, i64 rows, i64 width, float* out, i64 out_stride, i64 add,
    i64 rank, i64 world, i64* channels, u64* counter, u64 tag, volatile u64* host) {
    __shared__ Shared shared;
    let_next_start();
    wait_for_previous();
    const u64 generation = *counter + 1;
    const i64 each = width / 2, words = rows * each;
    u64 own[ITEMS];
    u64 told = 0;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
        if (i >= words) break;
        const float* at = partial + i / each * stride + i % each * 2;
        own[item] = static_cast<u64>(__float_as_uint(at[1])) << 32 | __float_as_uint(at[0]);
        told ^= hashed(own[item], i);
    }
    told = block_xor(told, shared);
    for (i64 shift = 1; shift < world; ++shift) {
        const i64 peer = (rank + shift) % world;
        i64* channel = channels + peer * CHANNEL_WORDS;
        Patience patience{host, false};
        if (threadIdx.x == 0) await_room(channel, static_cast<int>(peer), patience);
        __syncthreads();
        const u64 payload = channel[SEND] + channel[SEQUENCE] % channel[SLOTS] * channel[STRIDE];
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
            if (i >= words) break;
            put_word(payload + 8 * i, own[item]);
        }
        __threadfence_system();
        __syncthreads();
        if (threadIdx.x == 0) announce(channel, 8 * static_cast<u64>(words), told, generation, tag);
    }
    float2 sums[ITEMS];
    for (i64 from = 0; from < world; ++from) {
        u64 theirs[ITEMS];
        i64* channel = channels + from * CHANNEL_WORDS;
        if (from != rank) {
            take(channel, words, generation, tag, static_cast<int>(from), host, theirs, shared);
        }
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
            if (i >= words) break;
            const float2 v = two_floats(from == rank ? own[item] : theirs[item]);
            sums[item] = from == 0 ? v
                                   : make_float2(__fadd_rn(sums[item].x, v.x),
                                                 __fadd_rn(sums[item].y, v.y));
        }
        __syncthreads();
        if (from != rank && threadIdx.x == 0) {
            channel[TAKEN] += 1;
            give_back(channel);
        }
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = static_cast<i64>(item) * THREADS + threadIdx.x;
        if (i >= words) break;
        float* to = out + i / each * out_stride + i % each * 2;
        to[0] = add ? __fadd_rn(to[0], sums[item].x) : sums[item].x;
        to[1] = add ? __fadd_rn(to[1], sums[item].y) : sums[item].y;
    }
    if (threadIdx.x == 0) *counter = generation;
}
