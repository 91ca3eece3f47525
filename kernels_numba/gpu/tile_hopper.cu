// out = weights * x for many rows on sm_90a, bit for bit what linear.cu gives for few.
// Launched by wide.py.
// The same on the CPU: cpu/linear.py, cpu/dot.py. Oracle: tests/unit/kernels/test_linear.py.
//
// Two warpgroups own 64 weight rows each and up to MOST rows of x. Weights pass through registers,
// in the lanes and the order in which linear.cu's warps hold them; x lies in shared memory woven
// (rows.cu) so that the sixteen values of one matrix instruction stand together. A third warpgroup
// feeds both through the copy engine. Blocks come in pairs that share rows of x, and walk over tiles
// until none is left.
#include "common.cuh"
#include "weights.cuh"
#include "hopper.cuh"

constexpr int BM = 128;
// Rows of x of a tile. Sums of a run and of all runs take as many registers of a thread as a tile has
// rows.
constexpr int SMALL = 64, MEDIUM = 112, LARGE = 144, MOST = 160;
constexpr int PAIR = 2;
constexpr int ROW = 128;  // bytes of a row in shared memory: 64 values of x
constexpr int SLABS = CHUNK / 64;
constexpr int STAGES = FORMAT == 1 ? 5 : 4;  // what 227 KiB have room for, beside the sums' exit
constexpr int WEIGHT_BYTES = BM * CHUNK_BYTES;
constexpr int SLAB_BYTES = MOST * ROW;
constexpr int STAGE_BYTES = WEIGHT_BYTES + SLABS * SLAB_BYTES;
constexpr int NOTES = 8;  // more than STAGES + 1 tiles; a power of two
constexpr int AT_ONCE = 32;  // rows of x of which a warp's sums leave at once
constexpr int EXIT_BYTES = AT_ONCE * (16 + 4) * 4;  // where a warp's stand then: ROWS and PITCH of Exit
constexpr int MULTIPLIERS = 2 * WARPGROUP;
constexpr int RELEASES = PAIR * MULTIPLIERS / 32;  // of a stage: by the warps of both blocks
constexpr int MAP_BYTES = 128;  // of a map of boxes
// 256 threads with 232 registers and 128 with 40 are 64,512 of 65,536; with eight more they were too
// many.
constexpr int MULTIPLIER_REGISTERS = 232, FEEDER_REGISTERS = 40;
// Tiles of x that are swept together over all weights, so that they stay in the L2.
constexpr int SWEEP = 16;

struct Work {
    const void* weights;      // map of boxes of BM rows
    const u8* inputs;         // maps of boxes of half as many rows of x, for each size
    const int4* tiles;        // of experts, and how many after them; or null
    i64 most;                 // tiles there may be
    int size;                 // rows of x per tile without experts
    int rows;
    int strips;               // pairs of blocks of weight rows
    int chunks;

    __device__ __forceinline__ int count() const {
        const int found = tiles == nullptr ? (rows + size - 1) / size : tiles[most].x;
        return found * strips;
    }
};

struct Item {
    int expert, first, count, strip;

    __device__ __forceinline__ Item(const Work& work, int index) {
        if (work.tiles != nullptr) {
            const int4 tile = work.tiles[index / work.strips];
            expert = tile.x;
            first = tile.y;
            count = tile.z;
            strip = index % work.strips;
        } else {
            const int all = (work.rows + work.size - 1) / work.size;
            const int sweep = index / (SWEEP * work.strips);
            const int rest = index - sweep * SWEEP * work.strips;
            const int wide = min(SWEEP, all - sweep * SWEEP);
            expert = 0;
            strip = rest / wide;
            first = (sweep * SWEEP + rest % wide) * work.size;
            count = min(work.size, work.rows - first);
        }
    }

    __device__ __forceinline__ explicit Item(u32 note) {
        asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(expert), "=r"(first), "=r"(count), "=r"(strip)
                     : "r"(note));
    }

    __device__ __forceinline__ void leave_at(u32 note) const {
        asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(note), "r"(expert), "r"(first),
                     "r"(count), "r"(strip)
                     : "memory");
    }

    // Which of the sizes the tile has.
    __device__ __forceinline__ int kind() const {
        return (count > SMALL) + (count > MEDIUM) + (count > LARGE);
    }

    __device__ __forceinline__ int n() const {
        return count > LARGE ? MOST : count > MEDIUM ? LARGE : count > SMALL ? MEDIUM : SMALL;
    }
};

struct Ring {
    u32 memory, barriers, notes;
    int stage = 0;
    u32 parity = 0;

    __device__ __forceinline__ Barrier full() const { return {barriers + 16 * stage}; }
    __device__ __forceinline__ Barrier empty() const { return {barriers + 16 * stage + 8}; }
    __device__ __forceinline__ u32 weights() const { return memory + stage * STAGE_BYTES; }
    __device__ __forceinline__ u32 input() const { return weights() + WEIGHT_BYTES; }

    // What tile number `turn` of this block is: written before its first stage fills. No more tiles
    // than stages, and one, are in hand.
    __device__ __forceinline__ u32 note(int turn) const { return notes + turn % NOTES * 16; }

    __device__ __forceinline__ float* exit(int warp) const {
        const u32 at = memory + STAGES * STAGE_BYTES + warp * EXIT_BYTES;
        return static_cast<float*>(__cvta_shared_to_generic(at));
    }

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

template <bool GATED>
__device__ __forceinline__ void feed(const Work& work, Ring ring, u32 rank) {
    const int items = work.count();
    int turn = 0;
    for (int index = blockIdx.x / PAIR; index < items; index += gridDim.x / PAIR, ++turn) {
        const Item item(work, index);
        item.leave_at(ring.note(turn));
        const int n = item.n(), half = n / 2;
        const int row = (item.strip * PAIR + rank) * BM, first = item.first + rank * half;
        const u8* input = work.inputs + MAP_BYTES * item.kind();
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            ring.empty().wait(ring.parity ^ 1);
            const Barrier full = ring.full();
            full.expect(WEIGHT_BYTES + SLABS * n * ROW);
            const int k = chunk * CHUNK_BYTES / (FORMAT == 1 ? 2 : 1);
            if (GATED) {
                load_box(ring.weights(), work.weights, full, k, 0, 0, row / 16, item.expert);
            } else {
                load_box(ring.weights(), work.weights, full, k, row, 0, 0, item.expert);
            }
#pragma unroll
            for (int slab = 0; slab < SLABS; ++slab) {
                load_box_to_pair(ring.input() + slab * SLAB_BYTES + rank * half * ROW, input, full,
                                 chunk * CHUNK + 64 * slab, first);
            }
            ring.advance();
        }
    }
}

// Which of eight weight rows a lane's fragment row g is: spread so that eight lanes read from all banks.
__device__ __forceinline__ int spread_row(int g) { return FORMAT == 1 ? (g & 1) * 4 + (g >> 1) : g; }

__device__ __forceinline__ int unit_at(int row, int unit) {
    return row * CHUNK_BYTES + (FORMAT == 1 ? (unit ^ (row & 7)) << 4 : unit << 4);
}

// Scales that come with a lane's two rows, fetched a chunk ahead.
struct FetchedScales {
    const u8 *low, *high;
    u32 now_low = 0, now_high = 0, next_low = 0, next_high = 0;

    __device__ __forceinline__ void fetch(int chunk) {
#if FORMAT == 2
        now_low = next_low;
        now_high = next_high;
        next_low = *reinterpret_cast<const u16*>(low + chunk * SCALE_BYTES);
        next_high = *reinterpret_cast<const u16*>(high + chunk * SCALE_BYTES);
#endif
    }
};

// A lane's weights for one step: eight values of two rows, as linear.cu multiplies them.
struct Words {
    u32 low[4], high[4];

    __device__ __forceinline__ void load(
        u32 weights, const FetchedScales& scales, int step, int row, int t) {
#if FORMAT == 1
        read(low, weights + unit_at(row, input_unit(step, t)));
        read(high, weights + unit_at(row + 8, input_unit(step, t)));
#else
        decode_word(code_at(weights + unit_at(row, t) + 4 * step),
                    scale_pair(scales.now_low, step / 2), low);
        decode_word(code_at(weights + unit_at(row + 8, t) + 4 * step),
                    scale_pair(scales.now_high, step / 2), high);
#endif
    }

    __device__ __forceinline__ static void read(u32 (&v)[4], u32 at) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(at));
    }

    __device__ __forceinline__ static u32 code_at(u32 at) {
        u32 code;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(code) : "r"(at));
        return code;
    }
};

template <int N>
__device__ __forceinline__ void multiply(
    float (&acc)[N / 2], const Words& words, u32 input, int step, int going) {
    // Step s of a chunk: 32 values of slab s / 2, in two halves of sixteen.
    const u64 at = descriptor_at(input + step / 2 * SLAB_BYTES + step % 2 * 64);
    const u32(&a)[4] = words.low;
    const u32(&b)[4] = words.high;
    hold(acc);
    wgmma_fence();
    Wgmma<N>::template multiply<0>(acc, a[0], b[0], a[1], b[1], at, going);
    Wgmma<N>::template multiply<0>(acc, a[2], b[2], a[3], b[3], at + 2, 1);
    wgmma_commit();
    hold(acc);
}

// total = weights * x for a tile of N rows of x. A step's words load while the one before multiplies.
template <int N>
__device__ __forceinline__ void multiply_tile(
    float (&total)[N / 2], int chunks, FetchedScales scales, Ring& ring) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int row = threadIdx.x / 32 * 16 + spread_row(lane / 4);
    float acc[N / 2];
    Words words[2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) total[i] = acc[i] = 0.0f;
    scales.fetch(0);
    scales.fetch(min(1, chunks - 1));
    ring.full().wait(ring.parity);
    words[0].load(ring.weights(), scales, 0, row, t);
    Barrier used{0};
    for (int run = 1, chunk = 0; chunk < chunks; ++run) {
        const int end = run_begin(run, chunks);
        for (int going = 0; chunk < end; ++chunk, going = 1) {
            const u32 weights = ring.weights(), input = ring.input();
            const Barrier empty = ring.empty();
            ring.advance();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                multiply<N>(acc, words[step % 2], input, step, step == 0 ? going : 1);
                wgmma_wait<1>();
                if (step == 0 && chunk > 0 && lane < PAIR) used.arrive_at(lane);
                if (step + 1 < STEPS) {
                    words[(step + 1) % 2].load(weights, scales, step + 1, row, t);
                } else if (chunk + 1 < chunks) {
                    scales.fetch(min(chunk + 2, chunks - 1));
                    ring.full().wait(ring.parity);
                    words[0].load(ring.weights(), scales, 0, row, t);
                }
            }
            used = empty;
        }
        wgmma_wait<0>();
        hold(acc);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) total[i] += acc[i];
    }
    if (lane < PAIR) used.arrive_at(lane);
}

// A warp's sums on their way out: some rows of x, each with what its weight rows gave, side by side so
// that four of them leave at once. WIDE and ADD are the output's; only float32 is added to.
template <bool GATED, bool WIDE, bool ADD>
struct Exit {
    static constexpr int ROWS = GATED ? 8 : 16;
    static constexpr int PITCH = ROWS + 4;  // floats; lanes then write to all banks
    static constexpr int LANES = ROWS / 4;  // that share a row of x
    static constexpr int STEP = 32 / LANES;
    static constexpr bool SCALED = !GATED && FORMAT == 2;

    const float* held;  // the lane's four sums of its first row of x
    u8* to;             // where they go
    i64 stride;         // bytes to the row of x that follows in the same lane
    int left;           // rows of x from the lane's first on
    float4 factor, bias;

    __device__ __forceinline__ Exit(
        const float* memory, const Item& item, const Output& output, int at, int n) {
        constexpr int BYTES = WIDE ? 4 : 2;
        const int lane = threadIdx.x % 32, row = lane / LANES, quarter = lane % LANES * 4;
        held = memory + row * PITCH + quarter;
        to = static_cast<u8*>(output.out) +
            ((item.first + row) * output.stride + at + quarter) * BYTES;
        stride = output.stride * (BYTES * STEP);
        left = at + quarter < n ? item.count - row : 0;
        // Minus zero changes no bit of what it is added to.
        factor = bias = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
        if (left <= 0) return;
        if (SCALED) factor = four(output.factors + static_cast<i64>(item.expert) * n + at + quarter);
        if (output.bias != nullptr) bias = four(output.bias + at + quarter);
    }

    __device__ __forceinline__ static float4 four(const float* from) {
        return *reinterpret_cast<const float4*>(from);
    }

    // What is there of rows `first` ... `last` - 1 of the lane, counted from where it stands.
    template <int ALL>
    __device__ __forceinline__ void fetch(float4 (&old)[ALL], int at, int first, int last) const {
#pragma unroll
        for (int i = first; ADD && i < last; ++i) {
            if (at + i >= ALL) break;
            const u8* from = to + i * stride;
            old[at + i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (i * STEP >= left) continue;
            old[at + i] = *reinterpret_cast<const float4*>(from);
        }
    }

    // COUNT rows of x from `held` to memory.
    template <int COUNT, int TURNS>
    __device__ __forceinline__ void leave(const float4 (&old)[TURNS], int first) {
#pragma unroll
        for (int i = 0; i < COUNT / STEP; ++i) {
            float4 sum = four(held + i * STEP * PITCH);
            if (SCALED) {
                sum = make_float4(__fmul_rn(sum.x, factor.x), __fmul_rn(sum.y, factor.y),
                                  __fmul_rn(sum.z, factor.z), __fmul_rn(sum.w, factor.w));
            }
            if (!GATED) sum = plus(sum, bias);
            if (ADD) sum = plus(old[first + i], sum);
            if (i * STEP < left) put(sum);
            to += stride;
        }
        left -= COUNT;
    }

    __device__ __forceinline__ static float4 plus(const float4& a, const float4& b) {
        return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                           __fadd_rn(a.w, b.w));
    }

    __device__ __forceinline__ void put(const float4& sum) const {
        if (WIDE) {
            *reinterpret_cast<float4*>(to) = sum;
        } else {
            *reinterpret_cast<uint2*>(to) =
                make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w));
        }
    }
};

// Column 8 i + 2 t + c of the tile has its sums in total[4 i + c] (fragment row g) and
// total[4 i + 2 + c] (row g + 8, or the up rows).
template <int N, bool GATED, bool WIDE, bool ADD>
__device__ __forceinline__ void store_tile(
    const float (&total)[N / 2], const Item& item, const Output& output, float* held, int n,
    int at) {
    using Way = Exit<GATED, WIDE, ADD>;
    const int t = threadIdx.x % 4, row = spread_row(threadIdx.x % 32 / 4);
    Way way(held, item, output, at, n);
    // What is added to comes two turns ahead.
    constexpr int TURN = AT_ONCE / Way::STEP;
    float4 old[N / Way::STEP];
    way.fetch(old, 0, 0, 2 * TURN);
    float gate_factor = 1.0f, up_factor = 1.0f;
    if (GATED && FORMAT == 2 && at + row < n) {
        const float* own = output.factors + static_cast<i64>(item.expert) * 2 * n + at + row;
        gate_factor = own[0];
        up_factor = own[n];
    }
    float* mine = held + 2 * t * Way::PITCH + row;
#pragma unroll
    for (int from = 0; from < N; from += AT_ONCE) {
        constexpr int LAST = N % AT_ONCE == 0 ? AT_ONCE : N % AT_ONCE;
        const int some = from + AT_ONCE <= N ? AT_ONCE : LAST;
#pragma unroll
        for (int i = 0; i < some / 4; ++i) {
            const int place = (from + i / 2 * 8) / 2 + i % 2;
            float* to = mine + (i / 2 * 8 + i % 2) * Way::PITCH;
            if (GATED) {
                to[0] = FORMAT == 2 ? Output::gate(__fmul_rn(total[place], gate_factor),
                                                   __fmul_rn(total[place + 2], up_factor))
                                    : Output::gate(total[place], total[place + 2]);
            } else {
                to[0] = total[place];
                to[8] = total[place + 2];
            }
        }
        __syncwarp();
        way.fetch(old, from / Way::STEP, 2 * TURN, 3 * TURN);
        if (from + AT_ONCE <= N) {
            way.template leave<AT_ONCE>(old, from / Way::STEP);
        } else {
            way.template leave<LAST>(old, from / Way::STEP);
        }
        __syncwarp();
    }
}

template <int N, bool GATED>
__device__ __forceinline__ void store_any(
    const float (&total)[N / 2], const Item& item, const Output& output, float* held, int n,
    int n0) {
    const int at = n0 + threadIdx.x / 32 * (GATED ? 8 : 16);
    if (at >= n) return;
    if (GATED || !output.wide) {
        store_tile<N, GATED, false, false>(total, item, output, held, n, at);
    } else if (output.add) {
        store_tile<N, false, true, true>(total, item, output, held, n, at);
    } else {
        store_tile<N, false, true, false>(total, item, output, held, n, at);
    }
}

template <int N, bool GATED>
__device__ __forceinline__ void consume_tile(
    const Work& work, u32 note, u32 rank, const FetchedScales& scales, Ring& ring, const Output& output,
    float* held, int n) {
    float total[N / 2];
    multiply_tile<N>(total, work.chunks, scales, ring);
    // Read anew: registers are short while the tile is multiplied.
    const Item item(note);
    const int n0 = (item.strip * PAIR + rank) * (GATED ? BM / 2 : BM);
    store_any<N, GATED>(total, item, output, held, n, n0);
}

template <bool GATED>
__device__ __forceinline__ void consume(
    const Work& work, Ring ring, u32 rank, const Output& output, const u8* scale, i64 scale_stride,
    int n) {
    const int items = work.count();
    float* held = ring.exit(threadIdx.x / 32);
    int turn = 0;
    for (int index = blockIdx.x / PAIR; index < items; index += gridDim.x / PAIR, ++turn) {
        const u32 note = ring.note(turn);
        ring.full().wait(ring.parity);
        const Item item(note);
        FetchedScales scales{nullptr, nullptr};
#if FORMAT == 2
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int n0 = (item.strip * PAIR + rank) * (GATED ? BM / 2 : BM);
        const int at = n0 + warp * (GATED ? 8 : 16) + spread_row(lane / 4);
        const i64 base = static_cast<i64>(item.expert) * (GATED ? 2 * n : n);
        const i64 low = base + min(at, n - 1), high = GATED ? low + n : base + min(at + 8, n - 1);
        scales.low = scale + low * scale_stride + 2 * (lane % 4);
        scales.high = scale + high * scale_stride + 2 * (lane % 4);
#endif
        switch (item.n()) {
#define CASE(N)                                                                     \
    case N:                                                                         \
        consume_tile<N, GATED>(work, note, rank, scales, ring, output, held, n);    \
        break
            CASE(SMALL);
            CASE(MEDIUM);
            CASE(LARGE);
            CASE(MOST);
        }
    }
}

template <bool GATED>
__device__ __forceinline__ void wide_linear(
    const Work& work, const Output& output, const u8* scale, i64 scale_stride, int n) {
    extern __shared__ u8 memory[];
    __shared__ u64 barriers[2 * STAGES];
    __shared__ int4 notes[NOTES];
    const u32 rank = cluster_rank();
    Ring ring{whole_atoms(shared_address(memory)), shared_address(barriers),
              shared_address(notes)};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            Barrier{ring.barriers + 16 * i}.open(1);
            Barrier{ring.barriers + 16 * i + 8}.open(RELEASES);
        }
        barriers_are_open();
    }
    cluster_sync();
    if (threadIdx.x >= MULTIPLIERS) {
        give_registers<FEEDER_REGISTERS>();
        if (threadIdx.x == MULTIPLIERS) feed<GATED>(work, ring, rank);
    } else {
        take_registers<MULTIPLIER_REGISTERS>();
        consume<GATED>(work, ring, rank, output, scale, scale_stride, n);
    }
    // A block that ended could not take its neighbour's releases.
    cluster_sync();
}

#define WIDE_LINEAR(NAME, GATED)                                                                  \
    extern "C" __global__ void __cluster_dims__(PAIR, 1, 1)                                       \
        __launch_bounds__(MULTIPLIERS + WARPGROUP, 1) NAME(                                       \
            const void* weights, const u8* scale, i64 scale_stride, const float* factors, i64 n,  \
            i64 chunks, const u8* inputs, void* out, i64 out_stride, i64 out_wide,                \
            const float* bias, i64 add, const int4* tiles, i64 most, i64 size, i64 rows) {        \
        const int strips = static_cast<int>((n * (GATED ? 2 : 1) + PAIR * BM - 1) / (PAIR * BM)); \
        const Work work{weights, inputs, tiles, most, static_cast<int>(size),                     \
                        static_cast<int>(rows), strips, static_cast<int>(chunks)};                \
        const Output output{out, out_stride, out_wide, factors, bias, add};                       \
        wide_linear<GATED>(work, output, scale, scale_stride, static_cast<int>(n));               \
    }

WIDE_LINEAR(wide_plain, false)
WIDE_LINEAR(wide_gated, true)
