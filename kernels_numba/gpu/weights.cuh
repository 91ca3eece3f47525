// How a lane of a warp reads its share of a weight row. FORMAT is a `kernels_numba.weights.Form`.
//
// K is cut into chunks, and the chunks into eight runs, one a warp, as even as they can be, longer
// ones first. Inside a chunk, step s feeds two matrix instructions with eight values per lane. The
// order of a row's sum follows from K and the format alone, never from the number of rows.

constexpr int WARPS = 8;

// The first chunk of run `run`; run WARPS begins behind the last chunk.
__device__ __forceinline__ int run_begin(int run, int chunks) {
    return run * (chunks / WARPS) + min(run, chunks % WARPS);
}

__device__ __forceinline__ u32 multiply_pair(u32 a, u32 b) {
    u32 product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

// Bytes 0 and 2 of a word, or 1 and 3, each with its highest bit repeated before it.
constexpr u32 EVEN_BYTES = 0xa280u;
constexpr u32 ODD_BYTES = 0xb391u;

template <u32 BYTES>
__device__ __forceinline__ u32 signed_bytes(u32 word) {
    u32 halves;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(halves) : "r"(word), "r"(0), "n"(BYTES));
    return halves;
}

#if FORMAT == 1
// bf16: a chunk is 64 values, 128 bytes. Lane t of a quad takes values 32 s + 8 t ... + 7.
constexpr int CHUNK = 64;
constexpr int STEPS = 2;
constexpr int CHUNK_BYTES = 128;
constexpr int SCALE_BYTES = 0;
constexpr int SCALE_ROWS = 1;

// Eight values as four words of two, in the order of `paired`.
__device__ __forceinline__ void words_of(const uint4& unit, u32 (&words)[4]) {
    words[0] = unit.x;
    words[1] = unit.y;
    words[2] = unit.z;
    words[3] = unit.w;
}

// Eight values of x in the order in which a weight's words hold theirs.
__device__ __forceinline__ uint4 paired(uint4 v) { return v; }

// Which 16-byte unit of a chunk of activations goes with step `step` of lane t.
__device__ __forceinline__ int input_unit(int step, int t) { return 4 * step + t; }
#elif FORMAT == 2
// NVFP4: a chunk is 128 values, 64 bytes and 8 scales. Lane t takes values 32 t + 8 s ... + 7.
// code * scale has six significant bits and is exact in bf16, here 2^8 too small: the rows' factors,
// which come last, hold the tensor's multiplier times 2^8.
constexpr int CHUNK = 128;
constexpr int STEPS = 4;
constexpr int CHUNK_BYTES = 64;
constexpr int SCALE_BYTES = 8;
constexpr int SCALE_ROWS = 1;

// Two e4m3 scales (never negative) times 2^118, each twice: a code's bits are a bf16's, 2^120 too small.
// The instruction takes subnormals, whatever the compiler was told.
__device__ __forceinline__ void scale_pairs(u32 codes, u32 (&pairs)[2]) {
    const u32 halves = __byte_perm(codes, 0, 0x4140) << 4;
    const u32 both = multiply_pair(multiply_pair(halves, 0x7f007f00u), 0x77007700u);
    pairs[0] = __byte_perm(both, 0, 0x1010);
    pairs[1] = __byte_perm(both, 0, 0x3232);
}

// The same of byte `which` alone.
__device__ __forceinline__ u32 scale_pair(u32 codes, int which) {
    const u32 twice = __byte_perm(codes, 0, 0x4040 + 0x0101 * which);
    return multiply_pair(multiply_pair(twice * 16, 0x7f007f00u), 0x77007700u);
}

// Eight codes, low nibble first, times their scale / 2^8, as bf16 pairs (i, i + 4). Exponent and
// mantissa of a code are a bf16's, 2^126 too small. A code at the top of a byte brings its sign along.
__device__ __forceinline__ void decode_word(u32 codes, u32 scales, u32 (&words)[4]) {
    const u32 low = codes << 4;
    const u32 halves[4] = {signed_bytes<EVEN_BYTES>(low), signed_bytes<EVEN_BYTES>(codes),
                           signed_bytes<ODD_BYTES>(low), signed_bytes<ODD_BYTES>(codes)};
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = multiply_pair(halves[i] << 2 & 0x81c081c0u, scales);
}

__device__ __forceinline__ uint4 paired(uint4 v) {
    return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                      __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
}

__device__ __forceinline__ int input_unit(int step, int t) { return 4 * t + step; }
#elif FORMAT == 3
// FP8 in blocks: a chunk is 128 values, 128 bytes. Lane t takes values 64 u + 16 t + 8 h ... + 7 of
// unit u in step s = 2 u + h. Codes are exact in bf16; scales, one per GROUP values and eight rows,
// multiply sums.
constexpr int CHUNK = 128;
constexpr int STEPS = 4;
constexpr int CHUNK_BYTES = 128;
constexpr int SCALE_BYTES = 4 * CHUNK / GROUP;
constexpr int SCALE_ROWS = 8;

// Eight codes as bf16 pairs (0, 2), (1, 3), (4, 6), (5, 7). A code's bits are a bf16's, 2^120 too
// small.
__device__ __forceinline__ void decode_codes(u32 first, u32 second, u32 (&words)[4]) {
    const u32 codes[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 even = signed_bytes<EVEN_BYTES>(codes[i]) << 4 & 0x87f087f0u;
        const u32 odd = signed_bytes<ODD_BYTES>(codes[i]) << 4 & 0x87f087f0u;
        words[2 * i] = multiply_pair(even, 0x7b807b80u);
        words[2 * i + 1] = multiply_pair(odd, 0x7b807b80u);
    }
}

__device__ __forceinline__ uint4 paired(uint4 v) {
    return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                      __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
}

__device__ __forceinline__ int input_unit(int step, int t) {
    return 8 * (step / 2) + 2 * t + step % 2;
}
#else
#error "FORMAT is 1 (bf16), 2 (nvfp4) or 3 (fp8 blocks)"
#endif

// The rows that a block works on: a slice of the step's rows, or an expert's tile of pairs.
struct Tile {
    i64 expert;
    i64 first;
    i64 count;
};

__device__ __forceinline__ Tile tile_of(const int4* tiles, i64 index, i64 size, i64 rows) {
    if (tiles != nullptr) {
        const int4 tile = tiles[index];
        return Tile{tile.x, tile.y, tile.z};
    }
    const i64 first = index * size;
    return Tile{0, first, rows - first < size ? rows - first : size};
}

// Where sums go. No operation here may be fused differently in one kernel than in another.
struct Output {
    void* out;
    i64 stride;
    i64 wide;
    const float* factors;
    const float* bias;
    i64 add;

    // A factor of one changes no bit.
    __device__ __forceinline__ float factor(i64 weight_row) const {
        return factors == nullptr ? 1.0f : factors[weight_row];
    }

    __device__ __forceinline__ static float gate(float gate, float up) {
        return __fmul_rn(__fdividef(gate, __fadd_rn(1.0f, __expf(-gate))), up);
    }

    // Leaves no trace where it does not count.
    __device__ __forceinline__ void plain(
        i64 row, i64 n, i64 weight_row, float sum, bool counts = true) const {
        float value = __fmul_rn(sum, factor(weight_row));
        u8* to = row_at(out, row, stride, wide);
        if (bias != nullptr) value = __fadd_rn(value, bias[n]);
        if (add && counts) value = __fadd_rn(load_value(to, n, wide), value);
        if (counts) store_value(to, n, wide, value);
    }

    __device__ __forceinline__ void gated(
        i64 row, i64 n, i64 gate_row, i64 up_row, float gate_sum, float up_sum) const {
        const float value = gate(
            __fmul_rn(gate_sum, factor(gate_row)), __fmul_rn(up_sum, factor(up_row)));
        store_value(row_at(out, row, stride, wide), n, wide, value);
    }
};
