// What linear_few.cu works on, and how it comes to a warp: weights through shared memory,
// their scales and rows of x in registers, all asked for ahead of time.
//
// A strip is what one matrix instruction takes: two bands of eight rows (GATED: one of gate rows and its
// one of up rows). An item is some strips that follow one another, against one tile of rows of x.

// 16-byte units of a row's chunk that one lane reads.
constexpr int UNITS = CHUNK_BYTES / 64;
constexpr int BAND = 8;

// What a lane needs of the scales of a row's chunk.
#if FORMAT == 1
struct Scales {};
#elif FORMAT == 2
typedef u32 Scales;  // of which two bytes are used
#elif FORMAT == 3
struct __align__(SCALE_BYTES) Scales {
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

// What rows are dealt in: strips where a matrix alone waits for arithmetic, full ones or not; else bands,
// since it is bytes that take the time.
template <bool GATED>
constexpr int UNIT = ALONE && FORMAT != 1 ? STRIP<GATED> : BAND;

// An item's rows `first` ... `behind` - 1; none where `behind` is not above `first`.
template <bool GATED>
struct Span {
    int first, behind;

    __device__ __forceinline__ int strips() const {
        return (behind - first + STRIP<GATED> - 1) / STRIP<GATED>;
    }
};

template <bool GATED>
struct Work {
    Matrix fixed, dealt;
    int n, groups;
    const u16* x;
    u32 x_stride;
    // Rows of the fixed tile (0: there is none), the first one in x, and where its output goes.
    int rows;
    u32 from, to;
    Shares shares;
    u32 phase;
    const int4* tiles;
    const int* gather;

    __device__ __forceinline__ Span<GATED> span(const Item& item) const {
        u32 begin, end;
        if constexpr (ALONE) {
            const u32 turn = item.group, own = shares.each + (turn < shares.more ? 1 : 0);
            const u32 before = shares.each * turn + min(turn, shares.more);
            const u32 rest = turn + 1 == static_cast<u32>(groups) ? shares.rest : 0;
            begin = gridDim.x * before + blockIdx.x * own + min(blockIdx.x, rest);
            end = begin + own + (blockIdx.x < rest ? 1 : 0);
        } else {
            const u32 units = (n + UNIT<GATED> - 1) / UNIT<GATED>;
            // Each tile is cut at other places: a block that has more of one has less of the next.
            const u32 from = item.group * units + item.tile * phase;
            begin = from / groups;
            end = (from + units) / groups;
        }
        return {static_cast<int>(begin) * UNIT<GATED>, min(n, static_cast<int>(end) * UNIT<GATED>)};
    }
    __device__ __forceinline__ Tile tile(int index) const {
        return index == 0 ? Tile{0, 0, rows} : tile_of(tiles, index - 1, 0, 0);
    }
    __device__ __forceinline__ u32 base(const Tile& tile) const {
        return static_cast<u32>(tile.expert) * (GATED ? 2 * n : n);
    }
    // The row of x that stands at `place` of tile number `index`; behind its last one that one again.
    __device__ __forceinline__ u32 input(int index, const Tile& tile, int place) const {
        const i64 at = tile.first + min(static_cast<i64>(place), tile.count - 1);
        if (index == 0) return from + static_cast<u32>(at);
        return static_cast<u32>(gather == nullptr ? at : gather[at]);
    }
};

// `base` + `row` * `stride`, in one instruction.
__device__ __forceinline__ const u8* row_of(const u8* base, u32 row, u32 stride) {
    u64 address;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(row), "r"(stride), "l"(base));
    return reinterpret_cast<const u8*>(address);
}

// A lane's two rows of every strip of an item: where a chunk of them lies, or its scales.
template <bool GATED>
struct Lines {
    const u8 *low, *high;
    u32 step;
    int own;

    // Rows of `turn`'s item, `offset` bytes into each; none where its tile is not below `known`.
    __device__ __forceinline__ void aim(
        const Work<GATED>& work, const Turn& turn, int known, bool scales, u32 offset) {
        own = 0;
        if (turn.tile >= known) return;
        const bool fixed = turn.fixed();
        const Span<GATED> span = work.span(turn);
        const int first = span.first + threadIdx.x % 32 / 4;
        const u32 row = work.base(work.tile(turn.tile)) + first, each = scales ? SCALE_ROWS : 1;
        const u8* base = scales ? (fixed ? work.fixed.scale : work.dealt.scale)
                                : (fixed ? work.fixed.data : work.dealt.data);
        const u32 stride = scales ? (fixed ? work.fixed.scale_stride : work.dealt.scale_stride)
                                  : (fixed ? work.fixed.stride : work.dealt.stride);
        low = row_of(base + offset, row / each, stride);
        high = row_of(low, (GATED ? work.n : BAND) / each, stride);
        step = (GATED ? BAND : 2 * BAND) / each * stride;
        own = (span.behind - first + BAND - 1) / BAND;
    }

    // Whether the lane has a row in this half of a strip.
    __device__ __forceinline__ bool has(int strip, int half) const {
        return (GATED ? strip : 2 * strip + half) < own;
    }

    __device__ __forceinline__ const u8* at(int strip, int half) const {
        return row_of(half == 0 ? low : high, strip, step);
    }

    __device__ __forceinline__ void advance(int bytes) {
        low += bytes;
        high += bytes;
    }
};

// A warp's weights: an item's strips of a chunk are asked for when those that stood in their places,
// DEPTH chunks before, have been read.
template <int STRIPS, bool GATED>
struct Ahead {
    static constexpr int DEPTH = RING / WARPS / (STRIPS * static_cast<int>(sizeof(Slot)));
    static_assert(DEPTH > 0, "no room for a chunk");
    const Work<GATED>& work;
    // Of this warp: the first of all, those of the current chunk, and the end.
    Slot *const first, *here, *const behind;
    int begin, end, chunk;
    // Tiles whose weights are known by now.
    int known;
    Turn turn;
    Lines<GATED> lines;

    __device__ __forceinline__ Ahead(
        const Work<GATED>& of, void* memory, int begin, int end, const Turn& first_turn)
        : work(of), first(static_cast<Slot*>(memory) + threadIdx.x / 32 * (DEPTH * STRIPS)),
          here(first), behind(first + DEPTH * STRIPS), begin(begin), end(end), chunk(begin),
          known(begin < end ? 1 : 0), turn(first_turn) {
        aim();
    }

    // Whether the next item's weights are not known.
    __device__ __forceinline__ bool waits() const { return turn.tile >= known; }

    __device__ __forceinline__ void know(int tiles) {
        if (begin == end) return;
        known = tiles;
        if (chunk == begin) aim();
    }

    __device__ __forceinline__ void aim() {
        lines.aim(work, turn, known, false, begin * CHUNK_BYTES + threadIdx.x % 4 * 16);
    }

    // Asks for a strip's chunk.
    __device__ __forceinline__ void copy(int strip) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (!lines.has(strip, half)) continue;
            const u8* from = lines.at(strip, half);
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                copy_async<16>(&here[strip].data[half][u][threadIdx.x % 32], from + 64 * u);
            }
        }
        copy_commit();
    }

    __device__ __forceinline__ void advance() {
        here = here + STRIPS == behind ? first : here + STRIPS;
        lines.advance(CHUNK_BYTES);
        if (++chunk == end) {
            chunk = begin;
            turn.next();
            aim();
        }
    }
};

// Scales of an item's strips, asked for one chunk ahead. They stay in registers: copies of four bytes
// to shared memory take as long as copies of sixteen.
template <int STRIPS, bool GATED>
struct Scaling {
    const Work<GATED>& work;
    Lines<GATED> lines;
    Scales value[STRIPS][2];

    __device__ __forceinline__ explicit Scaling(const Work<GATED>& of) : work(of) {}

#if FORMAT == 1
    __device__ __forceinline__ void aim(const Turn&, int, int) {}
    __device__ __forceinline__ void advance() {}
    __device__ __forceinline__ void ask(int) {}
#else
    __device__ __forceinline__ void aim(const Turn& turn, int known, int chunk) {
        const int own = FORMAT == 2 ? threadIdx.x % 4 * 2 : 0;
        lines.aim(work, turn, known, true, chunk * SCALE_BYTES + own);
    }

    __device__ __forceinline__ void advance() { lines.advance(SCALE_BYTES); }

    __device__ __forceinline__ void ask(int strip) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (lines.has(strip, half)) value[strip][half] = load(lines.at(strip, half));
        }
    }

    __device__ __forceinline__ static Scales load(const u8* from) {
#if FORMAT == 2
        return __ldg(reinterpret_cast<const u16*>(from));
#elif GROUP == 128
        return {{__ldg(reinterpret_cast<const float*>(from))}};
#else
        const float4 v = __ldg(reinterpret_cast<const float4*>(from));
        return {{v.x, v.y, v.z, v.w}};
#endif
    }
#endif
};

// A lane's row of x, asked for one chunk ahead.
template <bool GATED>
struct Input {
    const Work<GATED>& work;
    u32 row;
    uint4 following[STEPS], values[STEPS];

    __device__ __forceinline__ explicit Input(const Work<GATED>& of) : work(of) {}

    // Columns of a product are independent: an absent row may be any other.
    __device__ __forceinline__ void aim(const Turn& turn, int tiles) {
        if (turn.tile >= tiles) return;
        row = work.input(turn.tile, work.tile(turn.tile), threadIdx.x % 32 / 4);
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
