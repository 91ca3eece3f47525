// A span of keys and values in shared memory, and what matrix instructions make of it: how the
// kernels of attention.cu and attend_shared.cu read the cache, bf16 [blocks, kv_heads, block_tokens,
// HEAD_DIM]; HEAD_DIM is the head's width padded to 32. Included by these two.
// The same on the CPU: cpu/span.py.

constexpr int UNITS = HEAD_DIM / 8;  // of 16 bytes, of a head's row
constexpr int STEPS = HEAD_DIM / 32;  // two matrix instructions each
constexpr int TILE_HEADS = 16;  // rows of a matrix instruction

// What tells of a step's rows stood in memory before its first kernel began, so it may be read before
// the kernels in front have ended; but not by way of a cache that may hold what was there before.
__device__ __forceinline__ int told_early(const int* from) { return __ldcg(from); }

struct Pool {
    const u16* keys;
    const u16* values;
    const int* table;
    u32 block_tokens, kv_heads, head;

    // Which row of HEAD_DIM values holds `position`.
    __device__ __forceinline__ u32 row_of_position(u32 position) const {
        const u32 at = position / block_tokens, block = told_early(table + at);
        return (block * kv_heads + head) * block_tokens + (position - at * block_tokens);
    }
};

// Rows exchange their units, where there are enough, so that neighbours' meet no bank twice.
__device__ __forceinline__ int exchange(int row) {
    return UNITS % 8 == 0 ? (row & 1) << 2 | (row >> 1 & 3) : 0;
}

__device__ __forceinline__ int place(int row, int unit) {
    return row * UNITS + (unit ^ exchange(row));
}

// A span's keys and values, and which rows of the pool they are.
struct SpanMemory {
    uint4* keys;
    uint4* values;
    u32* rows;

    __device__ __forceinline__ SpanMemory(u8* memory, u32 (&held)[SPAN])
        : keys(reinterpret_cast<uint4*>(memory)), values(keys + SPAN * UNITS), rows(held) {}

    // Finds the pool's rows of the positions from `first` on. A barrier stands before their use.
    __device__ __forceinline__ void find(const Pool& pool, i64 first, int count) const {
        if (static_cast<int>(threadIdx.x) < count) {
            rows[threadIdx.x] = pool.row_of_position(static_cast<u32>(first) + threadIdx.x);
        }
    }

    // Starts copying rows `begin` ... `end` - 1 of the span, out of the pool's keys to `keys`, or the
    // same of values. A thread copies one unit of some rows that follow one another.
    template <int THREADS>
    __device__ __forceinline__ void copy(const u16* pool, uint4* to, int begin, int end) const {
        constexpr int OWN = THREADS % UNITS == 0 ? SPAN * UNITS / THREADS : 1;
        constexpr int AT_ONCE = OWN < 8 ? OWN : 8, GROUPS = OWN / AT_ONCE;
        const u32 count = end - begin;
#pragma unroll 1
        for (int index = threadIdx.x; index < SPAN * UNITS / AT_ONCE; index += THREADS) {
            const int within = GROUPS == 1 ? index : index % THREADS;
            const int first = within / UNITS * OWN + (GROUPS == 1 ? 0 : index / THREADS * AT_ONCE);
            const int unit = within % UNITS;
            const u8* from = reinterpret_cast<const u8*>(pool + 8 * unit);
            const u32 here = shared_address(to + place(first, unit));
            u32 held[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) held[i] = rows[first + i];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (static_cast<u32>(first + i - begin) >= count) continue;
                // The exchange of two rows' units is that of their bits.
                copy_async_16((here ^ 16 * exchange(i)) + 16 * UNITS * i,
                              row_address(from, held[i], 2 * HEAD_DIM));
            }
        }
    }

    // What lies beyond the span's `begin` rows is zero.
    template <int THREADS>
    __device__ __forceinline__ void clear(uint4* of, int begin) const {
#pragma unroll 1
        for (int index = begin * UNITS + threadIdx.x; index < SPAN * UNITS; index += THREADS) {
            of[place(index / UNITS, index % UNITS)] = make_uint4(0, 0, 0, 0);
        }
    }
};

// Sixteen heads of one row: lane 4 g + t holds words t of each eight values of heads g and g + 8.
struct Queries {
    u32 low[STEPS][4];
    u32 high[STEPS][4];

    // `from` is the first of `group` heads of `dim` values, `stride` values apart.
    __device__ __forceinline__ void load(
        const u16* from, int group, int dim, int stride, int lane) {
        const int g = lane / 4, t = lane % 4;
        const u16* head = from + g * stride + 2 * t;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                const int at = 32 * s + 8 * u;
                low[s][u] = high[s][u] = 0;
                if (at < dim && g < group) low[s][u] = word_at(head + at);
                if (at < dim && g + 8 < group) high[s][u] = word_at(head + 8 * stride + at);
            }
        }
    }

    __device__ __forceinline__ static u32 word_at(const u16* from) {
        return *reinterpret_cast<const u32*>(from);
    }
};

// Units `unit` ... + 3 of keys key0 ... + 7, as second operands.
__device__ __forceinline__ void load_keys(
    u32 (&b)[4], const uint4* keys, int key0, int unit, int lane) {
    const u32 from = shared_address(keys + place(key0 + lane % 8, unit + lane / 8));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from));
}

// Scores of EIGHTS times eight keys, whose chains go side by side; -inf beyond `last`.
template <int EIGHTS>
__device__ __forceinline__ void score_keys(
    float* score, const Queries& queries, const uint4* keys, int key0, int first, int last,
    int lane) {
    const int t = lane % 4;
    float sum[EIGHTS][4] = {};
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const u32(&low)[4] = queries.low[s];
        const u32(&high)[4] = queries.high[s];
        u32 b[EIGHTS][4];
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) load_keys(b[n], keys, key0 + 8 * n, 4 * s, lane);
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) mma(sum[n], low[0], high[0], low[1], high[1], b[n][0], b[n][1]);
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) mma(sum[n], low[2], high[2], low[3], high[3], b[n][2], b[n][3]);
    }
#pragma unroll
    for (int i = 0; i < 4 * EIGHTS; ++i) {
        const int key = first + key0 + 8 * (i / 4) + 2 * t + i % 2;
        score[i] = key > last ? NEGATIVE_INFINITY : sum[i / 4][i % 4];
    }
}

// Values of keys key0 ... + 15 at units `unit` and `unit` + 1, as second operands.
__device__ __forceinline__ void load_values(
    u32 (&b)[4], const uint4* values, int key0, int unit, int lane) {
    const int row = key0 + lane % 16;
    const u32 from = shared_address(values + place(row, unit + lane / 16));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from));
}
