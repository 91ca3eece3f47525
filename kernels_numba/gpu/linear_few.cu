// out = weights * x for at most eight rows of x and many of weights, bit for bit what linear.cu gives:
// with less done beside the products, and every block with as many weights as any other.
// Launched by project.py, dealt by dealing.py. Structs named as linear.cu's have the same part here.
// The same on the CPU: cpu/linear.py, cpu/dot.py. Oracle: tests/unit/kernels/test_linear.py.
//
// A block's warps split K and merge in warp order. Each lane copies the weights that it will multiply
// itself into its own places of shared memory, some chunks ahead and across items; FP8's scales, which
// a band has in common, one lane copies for its warp. So nothing in the loop waits for another warp.
// Rows of x stay in registers while an item's strips meet them.
//
// The grid is what fits the device; a block's items follow one another. Of a matrix alone all blocks
// have the same to do, up to a band (NVFP4: a strip): the last one to end decides when the next kernel
// begins. Of tiles (ALONE is 0) items are dealt one by one. Blocks ask for their first weights before
// the kernels in front of them have ended, unless those say which weights.
#include "common.cuh"
#include "weights.cuh"
#include "streamed.cuh"
#include "feed.cuh"

// Strips of which a warp multiplies one beside the other.
constexpr int SIDE_BY_SIDE = FORMAT == 1 ? 2 : 1;

// Whether a warp asks for the weights that follow in the first strip's place before it waits for the
// chunk's x, not behind that: FP8 gains 1 % by it, the other forms lose 2.
constexpr bool LATE_INPUT = FORMAT == 3;

// A lane's part of a strip's chunk, out of its own places.
struct StripFragment {
    uint4 unit[2][UNITS];
#if FORMAT == 2
    u32 scale[2][2];
#elif FORMAT == 3
    ChunkScales scale[2];
#endif

    template <class WEIGHTS, class SCALING>
    __device__ __forceinline__ void load(const WEIGHTS& weights, const SCALING& scales, int strip) {
        const Slot& slot = weights.here[strip];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int u = 0; u < UNITS; ++u) unit[half][u] = slot.data[half][u][threadIdx.x % 32];
#if FORMAT == 2
            scale_pairs(scales.value[strip][half], scale[half]);
#endif
        }
#if FORMAT == 3
        weights.scales.load(strip, scale);
#endif
    }

    __device__ __forceinline__ void words(int half, int step, u32 (&out)[4]) const {
#if FORMAT == 1
        words_of(unit[half][step], out);
#elif FORMAT == 2
        const uint4 own = unit[half][0];
        const u32 codes[4] = {own.x, own.y, own.z, own.w};
        decode_word(codes[step], scale[half][step / 2], out);
#else
        const uint4 own = unit[half][step / 2];
        decode_codes(step % 2 ? own.z : own.x, step % 2 ? own.w : own.y, out);
#endif
    }
};

// Sums of a warp over a strip, as `mma` lays them.
struct StripSums {
    float value[4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int c = 0; c < 4; ++c) value[c] = 0.0f;
    }

    // Adds one step's products. Bits of weights outside `mask` count as zero.
    template <bool WHOLE>
    __device__ __forceinline__ void add(
        const StripFragment& own, const uint4& x, int step, u32 mask) {
        u32 a[4] = {}, b[4];
        if constexpr (WHOLE) own.words(0, step, a);
        own.words(1, step, b);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            a[j] &= mask;
            b[j] &= mask;
        }
        mma(value, a[0], b[0], a[1], b[1], x.x, x.y);
        mma(value, a[2], b[2], a[3], b[3], x.z, x.w);
    }

#if FORMAT == 3
    // Adds the sums of a group of values, each times its scale.
    __device__ __forceinline__ void fold(
        const StripSums& part, const StripFragment& own, int group) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            value[c] = __fmaf_rn(part.value[c], own.scale[c / 2].value[group], value[c]);
        }
    }
#endif
};

// Products of COUNT strips from `first` on, or what there is of them, with one chunk of x. WHOLE: of
// both bands of each, else of the high one alone.
template <bool WHOLE, int COUNT, int STRIPS>
__device__ __forceinline__ void multiply(
    StripSums (&sums)[STRIPS], int first, const StripFragment (&fragments)[COUNT],
    const uint4 (&x)[STEPS]) {
#if FORMAT != 3
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
        for (int m = 0; m < COUNT; ++m) {
            if (first + m >= STRIPS) continue;
            sums[first + m].template add<WHOLE>(fragments[m], x[step], step, ~0u);
        }
    }
#else
#pragma unroll
    for (int piece = 0; piece < CHUNK / GROUP; ++piece) {
        // Where GROUP is 32, a quad's units hold two groups: lanes 0 and 1 the first, 2 and 3 the
        // second. The mask leaves the piece's own.
        constexpr bool ONE = GROUP == CHUNK;
        const u32 mask = ONE || threadIdx.x % 4 / 2 == piece % 2 ? ~0u : 0u;
        const int begin = ONE ? 0 : piece / 2 * 2;
        StripSums parts[COUNT];
#pragma unroll
        for (int m = 0; m < COUNT; ++m) parts[m].clear();
#pragma unroll
        for (int step = begin; step < (ONE ? STEPS : begin + 2); ++step) {
#pragma unroll
            for (int m = 0; m < COUNT; ++m) {
                parts[m].template add<WHOLE>(fragments[m], x[step], step, mask);
            }
        }
#pragma unroll
        for (int m = 0; m < COUNT; ++m) {
            if (first + m < STRIPS) sums[first + m].fold(parts[m], fragments[m], piece);
        }
    }
#endif
}

// Merges the warps' sums in order and writes the item's output.
template <int STRIPS, bool GATED>
__device__ __forceinline__ void finish(
    const StripSums (&sums)[STRIPS], float4* shared, const Work<GATED>& work, Output output,
    const Span<GATED>& span, const Tile& tile, bool fixed) {
    // By now all have read the item before.
    __syncthreads();
#pragma unroll
    for (int m = 0; m < STRIPS; ++m) {
        const float(&c)[4] = sums[m].value;
        const int at = threadIdx.x / 32 * STRIPS + m;
        shared[at * 32 + threadIdx.x % 32] = make_float4(c[0], c[1], c[2], c[3]);
    }
    __syncthreads();
    const float* flat = reinterpret_cast<const float*>(shared);
    output.factors = fixed ? work.fixed.factors : work.experts.factors;
    const u32 base = work.base(tile);
    // A thread has two of a strip's sums, of weight rows eight apart.
    for (int index = threadIdx.x; index < STRIP_SUMS / 2 * span.strips(); index += 32 * WARPS) {
        const int column = index % 8, row = index / 8 % 8, m = index / 64;
        if (column >= tile.count) continue;
        const float* at = flat + (m * 32 + 4 * row + column / 2) * 4 + column % 2;
        float first = at[0], second = at[2];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) {
            first += at[w * STRIPS * STRIP_SUMS];
            second += at[w * STRIPS * STRIP_SUMS + 2];
        }
        const i64 to = (fixed ? work.to : tile.first) + column;
        const int n = span.first + m * STRIP<GATED> + row;
        if (GATED) {
            if (n < span.behind) output.gated(to, n, base + n, base + n + work.n, first, second);
        } else {
            if (span.own() <= n && n < span.behind) output.plain(to, n, base + n, first);
            if (n + BAND < span.behind) output.plain(to, n + BAND, base + n + BAND, second);
        }
    }
}

// A warp's run of K.
template <int STRIPS, bool GATED>
struct Run {
    typedef StripStream<STRIPS, GATED> Weights;
    static constexpr int TOGETHER = STRIPS < SIDE_BY_SIDE ? STRIPS : SIDE_BY_SIDE;
    const int begin, end;
    int tiles, filled;
    Weights weights;
    ScaleRegisters<STRIPS, GATED> scales;
    Input<GATED> input;

    __device__ __forceinline__ Run(
        const Work<GATED>& work, void* memory, const ItemCursor& cursor, int begin, int end)
        : begin(begin), end(end), tiles(1), filled(0), weights(work, memory, begin, end, cursor),
          scales(work), input(work) {
        while (filled < Weights::DEPTH && !weights.waits()) fill();
        if (cursor.tile < tiles) begin_scales(cursor);
    }

    __device__ __forceinline__ void fill() {
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) weights.copy(m);
        weights.advance();
        ++filled;
    }

    __device__ __forceinline__ void begin_scales(const ItemCursor& cursor) {
        if (begin == end) return;
        scales.aim(cursor, tiles, begin);
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) scales.ask(m);
    }

    // Goes on when all that was launched before has ended: there are `all` tiles.
    __device__ __forceinline__ void start(const ItemCursor& cursor, int all) {
        tiles = all;
        weights.know(all);
        while (filled < Weights::DEPTH) fill();
        if (cursor.tile > 0) begin_scales(cursor);
        input.aim(cursor, tiles);
        if (cursor.tile < tiles && begin < end) input.ask(begin);
    }

    // Takes the chunk's values of x, and asks for those of the one that follows it.
    __device__ __forceinline__ void next_input(const ItemCursor& cursor, int chunk) {
        const bool last = chunk + 1 == end;
        input.take();
        if (last) input.aim(cursor, tiles);
        input.ask(last ? begin : chunk + 1);
    }

    // What follows in the place of strip `m`.
    __device__ __forceinline__ void renew(int m) {
        scales.ask(m);
        weights.copy(m);
    }

    // The item's sums over this run; of its first strip the high band alone where it is `lone`.
    // `cursor` is the item that follows.
    __device__ __forceinline__ void sum(
        StripSums (&sums)[STRIPS], int strips, bool lone, const ItemCursor& cursor) {
#pragma unroll
        for (int m = 0; m < STRIPS; ++m) sums[m].clear();
        for (int chunk = begin; chunk < end; ++chunk) {
            const bool last = chunk + 1 == end;
            if (!LATE_INPUT) next_input(cursor, chunk);
            if (last) {
                scales.aim(cursor, tiles, begin);
            } else {
                scales.advance();
            }
#pragma unroll
            for (int first = 0; first < STRIPS; first += TOGETHER) {
                if (FORMAT == 1 && first >= strips) {
#pragma unroll
                    for (int m = first; m < first + TOGETHER && m < STRIPS; ++m) renew(m);
                    continue;
                }
                StripFragment fragments[TOGETHER];
#pragma unroll
                for (int m = first; m < first + TOGETHER && m < STRIPS; ++m) {
                    if (m < strips) {
                        copy_wait<STRIPS * Weights::DEPTH - 1>();
                        if (m == 0) weights.scales.arrive();
                        fragments[m - first].load(weights, scales, m);
                    }
                    renew(m);
                }
                if (LATE_INPUT && first == 0) next_input(cursor, chunk);
                if (first >= strips) continue;
                if (HALVES && first == 0 && lone) {
                    multiply<false>(sums, first, fragments, input.values);
                } else {
                    multiply<true>(sums, first, fragments, input.values);
                }
            }
            weights.advance();
            weights.scales.leave();
        }
    }
};

template <int STRIPS, bool GATED>
__device__ __forceinline__ void linear(
    const Work<GATED>& work, int chunks, const Output& output, const int* used) {
    extern __shared__ __align__(16) u8 memory[];
    float4* shared = reinterpret_cast<float4*>(memory);
    const int warp = threadIdx.x / 32;
    let_next_start();
    ItemCursor cursor(work.groups, work.rows > 0, ALONE);
    Run<STRIPS, GATED> run(
        work, shared + WARPS * STRIPS * 32, cursor, run_begin(warp, chunks),
        run_begin(warp + 1, chunks));
    wait_for_previous();
    const int tiles = 1 + (ALONE || used == nullptr ? 0 : *used);
    run.start(cursor, tiles);
    while (cursor.tile < tiles) {
        const int index = cursor.tile;
        const Tile tile = work.tile(index);
        const Span<GATED> span = work.span(cursor);
        cursor.next();
        StripSums sums[STRIPS];
        run.sum(sums, span.strips(), span.lone, cursor);
        finish(sums, shared, work, output, span, tile, ALONE || index == 0);
    }
}

#define LINEAR(NAME, STRIPS, GATED)                                                               \
    STREAMING(NAME, 2) {                                                                          \
        const EvenSplit split{static_cast<u32>(each), static_cast<u32>(more),                     \
                            static_cast<u32>(rest)};                                              \
        const Work<GATED> work{STREAMED, split, static_cast<u32>(phase), tiles, gather};          \
        const Output output{out, out_stride, out_wide, nullptr, bias, add};                       \
        linear<STRIPS, GATED>(work, static_cast<int>(chunks), output, used);                      \
    }

// By strips of an item; the order of a sum is the same in all, and in linear.cu.
LINEAR(linear_few_2, 2, false)
LINEAR(gated_few_2, 2, true)
#if FORMAT == 2
LINEAR(linear_few_4, 4, false)
LINEAR(gated_few_4, 4, true)
#else
LINEAR(linear_few_3, 3, false)
LINEAR(gated_few_3, 3, true)
#endif
