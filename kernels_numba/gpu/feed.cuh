// What linear_few.cu works on, and how it comes to a warp: weights, and FP8's scales with them, through
// shared memory, NVFP4's scales and rows of x in registers, all asked for ahead of time. streamed.cuh
// says what strips, bands and items are. Included by linear_few.cu.

// 16-byte units of a row's chunk that one lane reads.
constexpr int UNITS = CHUNK_BYTES / 64;

// Weights pass through the second cache once (an expert's of more than eight rows once a tile, one soon
// after the other), and x, which all blocks read, should stay there: they are given up first. Of a line of
// 128 bytes all must be asked for by then, and NVFP4's chunks are half ones.
constexpr bool ONE_READ = CHUNK_BYTES % 128 == 0;

// What a lane needs of the scales of a row's chunk.
#if FORMAT == 1
struct ChunkScales {};
#elif FORMAT == 2
typedef u32 ChunkScales;  // two bytes: a lane's 32 values of a chunk are two groups of 16
#elif FORMAT == 3
struct __align__(SCALE_BYTES) ChunkScales {
    float value[CHUNK / GROUP];
};
#endif

// One warp's place for a chunk of a strip: each lane's own units of two rows.
struct Slot {
    uint4 data[2][UNITS][32];
};

// Weight rows (GATED: gate rows) of a strip.
template <bool GATED>
constexpr int STRIP = GATED ? BAND : 2 * BAND;

// Half a strip has code of its own, which multiplies one band alone: FP8 waits for arithmetic as for
// bytes, bf16 for bytes alone, and NVFP4 gains nothing by it.
constexpr bool HALVES = FORMAT == 3;
// What is left of a matrix is dealt in strips, not in bands.
constexpr bool WHOLE_STRIPS = FORMAT == 2;

// An item's weight rows `first` ... `behind` - 1; none where `behind` is not above `first`. Of its
// first strip the low band is another item's where it is `lone`.
template <bool GATED>
struct Span {
    int first, behind;
    bool lone;

    __device__ __forceinline__ Span(int begin, int end, int n)
        : first(begin * BAND), behind(min(n, end * BAND)), lone(false) {
        if (GATED || !HALVES || (end - begin) % 2 == 0) return;
        lone = true;
        first -= BAND;
    }

    __device__ __forceinline__ int strips() const {
        return (behind - first + STRIP<GATED> - 1) / STRIP<GATED>;
    }
    __device__ __forceinline__ int own() const { return first + (lone ? BAND : 0); }
};

template <bool GATED>
struct Work {
    Matrix fixed, experts;
    int n, groups;
    const u16* x;
    u32 x_stride;
    // Rows of the fixed tile (0: there is none), the first one in x, and where its output goes.
    int rows;
    u32 from, to;
    EvenSplit split;
    u32 phase;
    const int4* tiles;
    const int* gather;

    __device__ __forceinline__ bool is_fixed(const Item& item) const { return ALONE || item.fixed(); }

    __device__ __forceinline__ Span<GATED> span(const Item& item) const {
        u32 begin, end;
        if constexpr (ALONE) {
            constexpr u32 BANDS = STRIP<GATED> / BAND;
            const u32 turn = item.group, block = blockIdx.x, blocks = gridDim.x;
            const u32 own = split.each + (turn < split.more ? 1 : 0);
            const u32 before = split.each * turn + min(turn, split.more);
            begin = BANDS * (blocks * before + block * own);
            end = begin + BANDS * own;
            if (turn + 1 == static_cast<u32>(groups)) {
                const u32 all = split.rest < blocks ? 0 : 1, rest = split.rest - all * blocks;
                constexpr u32 UNIT = WHOLE_STRIPS ? BANDS : 1;
                begin += UNIT * (all * block + min(block, rest));
                end += UNIT * (all * (block + 1) + min(block + 1, rest));
            }
        } else {
            const u32 bands = (n + BAND - 1) / BAND;
            // Each tile is cut at other places: a block that has more of one has less of the next.
            const u32 from = item.group * bands + item.tile * phase;
            begin = from / groups;
            end = (from + bands) / groups;
        }
        return Span<GATED>(begin, end, n);
    }
    __device__ __forceinline__ Tile tile(int index) const {
        return ALONE || index == 0 ? Tile{0, 0, rows} : tile_of(tiles, index - 1, 0, 0);
    }
    __device__ __forceinline__ u32 base(const Tile& tile) const {
        return static_cast<u32>(tile.expert) * (GATED ? 2 * n : n);
    }
    // The row of x that stands at `place` of tile number `index`; behind its last one that one again.
    __device__ __forceinline__ u32 input(int index, const Tile& tile, int place) const {
        const i64 at = tile.first + min(static_cast<i64>(place), tile.count - 1);
        if (ALONE || index == 0) return from + static_cast<u32>(at);
        return static_cast<u32>(gather == nullptr ? at : gather[at]);
    }
};

// A lane's two weight rows of every strip of an item: where a chunk of them lies, or its scales.
template <bool GATED>
struct Lines {
    const u8 *low, *high;
    u32 step;
    int own;
    bool lone;

    // Rows of `cursor`'s item, `offset` bytes into each; none where its tile is not below `known`.
    __device__ __forceinline__ void aim(
        const Work<GATED>& work, const ItemCursor& cursor, int known, bool scales, u32 offset) {
        own = 0;
        lone = false;
        if (cursor.tile >= known) return;
        const bool fixed = work.is_fixed(cursor);
        const Span<GATED> span = work.span(cursor);
        const u32 row = work.base(work.tile(cursor.tile)) + threadIdx.x % 32 / 4;
        const u32 each = scales ? SCALE_ROWS : 1, above = GATED ? work.n : BAND;
        const u8* base = scales ? (fixed ? work.fixed.scale : work.experts.scale)
                                : (fixed ? work.fixed.data : work.experts.data);
        const u32 stride = scales ? (fixed ? work.fixed.scale_stride : work.experts.scale_stride)
                                  : (fixed ? work.fixed.stride : work.experts.stride);
        // A lone band has its place, and perhaps no row below it.
        high = row_address(base + offset, (row + (span.first + static_cast<int>(above))) / each, stride);
        low = high - static_cast<u64>(above / each) * stride;
        step = (GATED ? BAND : 2 * BAND) / each * stride;
        own = (span.behind - span.first + BAND - 1) / BAND;
        lone = span.lone;
    }

    // Whether there is such a band. All its rows are read, those behind `n` too: of the next gate, up
    // or expert, and behind the last one's as far as CudaMatrix holds rows for it (memory.py).
    __device__ __forceinline__ bool has(int strip, int half) const {
        const bool taken = strip == 0 && half == 0 && lone;
        return !taken && (GATED ? strip : 2 * strip + half) < own;
    }

    __device__ __forceinline__ const u8* at(int strip, int half) const {
        return row_address(half == 0 ? low : high, strip, step);
    }

    __device__ __forceinline__ void advance(int bytes) {
        low += bytes;
        high += bytes;
    }
};

// Scales that go along with weights: FP8's. A band has the same for all its rows, and each of a warp's
// first lanes copies one band's. There is a place more than chunks on their way: all strips of a chunk
// read theirs while the first of another has been asked for.
#if FORMAT == 3
template <int STRIPS, bool GATED>
struct ScaleRing {
    struct Place {
        ChunkScales bands[STRIPS][2];
    };
    Place *const first, *const behind, *here, *next;
    const u8* from;
    bool has;

    __device__ __forceinline__ ScaleRing(void* memory, int depth)
        : first(static_cast<Place*>(memory) + threadIdx.x / 32 * (depth + 1)),
          behind(first + depth + 1), here(first), next(first), from(nullptr), has(false) {}

    __device__ __forceinline__ void aim(
        const Work<GATED>& work, const ItemCursor& cursor, int known, int chunk) {
        const int strip = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
        Lines<GATED> lines;
        lines.aim(work, cursor, known, true, chunk * SCALE_BYTES);
        has = strip < STRIPS && lines.has(strip, half);
        if (has) from = lines.at(strip, half);
    }

    // The scales of the cursor's chunk. Where they lie is found when weights have been asked for.
    __device__ __forceinline__ void copy(
        const Work<GATED>& work, const ItemCursor& cursor, int known, int chunk, bool first_chunk) {
        if (first_chunk) aim(work, cursor, known, chunk);
        if (has) copy_async<sizeof(ChunkScales)>(&next->bands[0][0] + threadIdx.x % 32, from);
        next = next + 1 == behind ? first : next + 1;
        from += SCALE_BYTES;
    }

    // What other lanes have copied is there.
    __device__ __forceinline__ void arrive() const { __syncwarp(); }
    __device__ __forceinline__ void leave() { here = here + 1 == behind ? first : here + 1; }

    // Of a strip's two bands.
    __device__ __forceinline__ void load(int strip, ChunkScales (&scales)[2]) const {
#if GROUP == 128
        const float2 both = *reinterpret_cast<const float2*>(here->bands[strip]);
        scales[0].value[0] = both.x;
        scales[1].value[0] = both.y;
#else
        scales[0] = here->bands[strip][0];
        scales[1] = here->bands[strip][1];
#endif
    }
};
#else
template <int STRIPS, bool GATED>
struct ScaleRing {
    __device__ __forceinline__ ScaleRing(void*, int) {}
    __device__ __forceinline__ void copy(
        const Work<GATED>&, const ItemCursor&, int, int, bool) {}
    __device__ __forceinline__ void arrive() const {}
    __device__ __forceinline__ void leave() {}
};
#endif

// A warp's weights on their way: an item's strips of a chunk are asked for when those that stood in
// their places, DEPTH chunks before, have been read.
template <int STRIPS, bool GATED>
struct StripStream {
    static constexpr int DEPTH = RING / WARPS / (STRIPS * static_cast<int>(sizeof(Slot)));
    static_assert(DEPTH > 0, "no room for a chunk");
    const Work<GATED>& work;
    // Of this warp: the first of all, those of the current chunk, and the end.
    Slot *const first, *here, *const behind;
    int begin, end, chunk;
    // Tiles whose weights are known by now.
    int known;
    ItemCursor cursor;
    Lines<GATED> lines;
    const u64 policy;
    ScaleRing<STRIPS, GATED> scales;

    __device__ __forceinline__ StripStream(
        const Work<GATED>& of, void* memory, int begin, int end, const ItemCursor& first_item)
        : work(of), first(static_cast<Slot*>(memory) + threadIdx.x / 32 * (DEPTH * STRIPS)),
          here(first), behind(first + DEPTH * STRIPS), begin(begin), end(end), chunk(begin),
          known(begin < end ? 1 : 0), cursor(first_item), policy(ONE_READ ? give_up_first() : 0),
          scales(static_cast<u8*>(memory) + RING, DEPTH) {
        aim();
    }

    // Whether the next item's weights are not known.
    __device__ __forceinline__ bool waits() const { return cursor.tile >= known; }

    __device__ __forceinline__ void know(int tiles) {
        if (ALONE || begin == end) return;
        known = tiles;
        if (chunk == begin) aim();
    }

    __device__ __forceinline__ void aim() {
        lines.aim(work, cursor, known, false, begin * CHUNK_BYTES + threadIdx.x % 4 * 16);
    }

    // Asks for a strip's chunk, with the first one for the scales of all that go along. It is one group
    // of copies even where there is nothing to ask for: waits count them.
    __device__ __forceinline__ void copy(int strip) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (!lines.has(strip, half)) continue;
            const u8* from = lines.at(strip, half);
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                uint4* to = &here[strip].data[half][u][threadIdx.x % 32];
                if (ONE_READ) {
                    copy_async_16(to, from + 64 * u, policy);
                } else {
                    copy_async<16>(to, from + 64 * u);
                }
            }
        }
        if (strip == 0) scales.copy(work, cursor, known, begin, chunk == begin);
        copy_commit();
    }

    __device__ __forceinline__ void advance() {
        here = here + STRIPS == behind ? first : here + STRIPS;
        lines.advance(CHUNK_BYTES);
        if (++chunk == end) {
            chunk = begin;
            cursor.next();
            aim();
        }
    }
};

// Scales that each lane asks for itself, one chunk ahead: NVFP4's. They stay in registers: so small
// copies to shared memory take as long as large ones.
#if FORMAT == 2
template <int STRIPS, bool GATED>
struct ScaleRegisters {
    const Work<GATED>& work;
    Lines<GATED> lines;
    ChunkScales value[STRIPS][2];

    __device__ __forceinline__ explicit ScaleRegisters(const Work<GATED>& of) : work(of) {}

    __device__ __forceinline__ void aim(const ItemCursor& cursor, int known, int chunk) {
        lines.aim(work, cursor, known, true, chunk * SCALE_BYTES + threadIdx.x % 4 * 2);
    }

    __device__ __forceinline__ void advance() { lines.advance(SCALE_BYTES); }

    __device__ __forceinline__ void ask(int strip) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (!lines.has(strip, half)) continue;
            value[strip][half] = __ldg(reinterpret_cast<const u16*>(lines.at(strip, half)));
        }
    }
};
#else
template <int STRIPS, bool GATED>
struct ScaleRegisters {
    __device__ __forceinline__ explicit ScaleRegisters(const Work<GATED>&) {}
    __device__ __forceinline__ void aim(const ItemCursor&, int, int) {}
    __device__ __forceinline__ void advance() {}
    __device__ __forceinline__ void ask(int) {}
};
#endif

// A lane's row of x, asked for one chunk ahead.
template <bool GATED>
struct Input {
    const Work<GATED>& work;
    u32 row;
    uint4 following[STEPS], values[STEPS];

    __device__ __forceinline__ explicit Input(const Work<GATED>& of) : work(of) {}

    // Columns of a product are independent: an absent row may be any other.
    __device__ __forceinline__ void aim(const ItemCursor& cursor, int tiles) {
        if (cursor.tile >= tiles) return;
        row = work.input(cursor.tile, work.tile(cursor.tile), threadIdx.x % 32 / 4);
    }

    __device__ __forceinline__ void ask(int chunk) {
        const uint4* own = reinterpret_cast<const uint4*>(work.x) + chunk * (CHUNK / 8) +
            row * static_cast<u64>(work.x_stride / 8);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            following[step] = own[input_unit(step, threadIdx.x % 4)];
        }
    }

    // What was asked for, before the next is.
    __device__ __forceinline__ void take() {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) values[step] = paired(following[step]);
    }
};
