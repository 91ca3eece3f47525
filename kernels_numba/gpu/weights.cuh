// How a lane of a warp reads its part of a weight row. FORMAT is a `kernels_numba.weights.Form`.
// Included by linear.cu, linear_few.cu, linear_short.cu, tile.cu and tile_hopper.cu.
// The same on the CPU: cpu/forms.py. Oracle: tests/unit/kernels/kernel_oracles.py.
//
// K is cut into chunks, and the chunks into eight runs, one a warp, as even as they can be, longer
// ones first. Inside a chunk, step s feeds two matrix instructions with eight values per lane. The
// order of a row's sum follows from K and the format alone, never from the number of rows.

constexpr int WARPS = 8;  // of a block that streams; so many runs K has in every kernel

// The first chunk of run `run`; run WARPS begins behind the last chunk.
__device__ __forceinline__ int run_begin(int run, int chunks) {
    return run * (chunks / WARPS) + min(run, chunks % WARPS);
}

// Two bf16 in a word: minus zero, which changes no product that it is added to, not even a zero's sign;
// and powers of two, which bring bits that were read as a bf16's to their value.
constexpr u32 PAIR_MINUS_ZERO = 0x80008000u;
constexpr u32 PAIR_2_111 = 0x77007700u, PAIR_2_120 = 0x7b807b80u, PAIR_2_127 = 0x7f007f00u;

__device__ __forceinline__ u32 multiply_pair(u32 a, u32 b) {
    u32 product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(PAIR_MINUS_ZERO));
    return product;
}

// Selectors of a byte permutation: a digit says which byte of two words stands there, from the lowest
// up; 8 beside it, that the byte's highest bit stands there eight times. Bytes 0 and 2 of a word, or 1
// and 3, each with its highest bit repeated before it.
constexpr u32 EVEN_BYTES = 0xa280u;
constexpr u32 ODD_BYTES = 0xb391u;
// The low or the high halves of two words, side by side.
constexpr u32 LOW_HALVES = 0x5410u;
constexpr u32 HIGH_HALVES = 0x7632u;

template <u32 BYTES>
__device__ __forceinline__ u32 signed_bytes(u32 word) {
    u32 halves;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(halves) : "r"(word), "r"(0), "n"(BYTES));
    return halves;
}

// Of each form: values of a chunk, steps that it takes, bytes of a row's chunk and of its scales, and
// weight rows that share a line of scales.
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

// Bytes 0 and 1 of a word, or byte 0 twice, each with a zero above it; the low or the high half twice.
constexpr u32 TWO_BYTES = 0x4140u, BYTE_TWICE = 0x4040u, NEXT_BYTE = 0x0101u;
constexpr u32 LOW_TWICE = 0x1010u, HIGH_TWICE = 0x3232u;

// Two e4m3 scales (never negative), each below a zero byte, times 2^118. A code's bits are a bf16's,
// 2^120 too small, and no bf16 holds 2^238. The instruction takes subnormals, whatever the compiler was
// told.
__device__ __forceinline__ u32 scales_of(u32 halves) {
    return multiply_pair(multiply_pair(halves << 4, PAIR_2_127), PAIR_2_111);
}

// The scales of bytes 0 and 1, each twice.
__device__ __forceinline__ void scale_pairs(u32 codes, u32 (&pairs)[2]) {
    const u32 both = scales_of(__byte_perm(codes, 0, TWO_BYTES));
    pairs[0] = __byte_perm(both, 0, LOW_TWICE);
    pairs[1] = __byte_perm(both, 0, HIGH_TWICE);
}

// The scale of byte `which`, twice.
__device__ __forceinline__ u32 scale_pair(u32 codes, int which) {
    return scales_of(__byte_perm(codes, 0, BYTE_TWICE + NEXT_BYTE * which));
}

// Where a code lies in each half of a word: its sign at a bf16's, its two bits of exponent at the
// lowest two of a bf16's, its bit of mantissa behind them.
constexpr u32 E2M1_BITS = 0x81c081c0u;

// Eight codes, low nibble first, times their scale / 2^8, as bf16 pairs (i, i + 4). Exponent and
// mantissa of a code are a bf16's, 2^126 too small. A code at the top of a byte brings its sign along.
__device__ __forceinline__ void decode_word(u32 codes, u32 scales, u32 (&words)[4]) {
    const u32 low = codes << 4;
    const u32 halves[4] = {signed_bytes<EVEN_BYTES>(low), signed_bytes<EVEN_BYTES>(codes),
                           signed_bytes<ODD_BYTES>(low), signed_bytes<ODD_BYTES>(codes)};
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = multiply_pair(halves[i] << 2 & E2M1_BITS, scales);
}

__device__ __forceinline__ uint4 paired(uint4 v) {
    return make_uint4(__byte_perm(v.x, v.z, LOW_HALVES), __byte_perm(v.x, v.z, HIGH_HALVES),
                      __byte_perm(v.y, v.w, LOW_HALVES), __byte_perm(v.y, v.w, HIGH_HALVES));
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

// Where a code lies in each half of a word: its sign at a bf16's, four bits of exponent at the lowest
// four of a bf16's, three of mantissa behind them.
constexpr u32 E4M3_BITS = 0x87f087f0u;

// Eight codes as bf16 pairs (0, 2), (1, 3), (4, 6), (5, 7). A code's bits are a bf16's, 2^120 too
// small.
__device__ __forceinline__ void decode_codes(u32 first, u32 second, u32 (&words)[4]) {
    const u32 codes[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 even = signed_bytes<EVEN_BYTES>(codes[i]) << 4 & E4M3_BITS;
        const u32 odd = signed_bytes<ODD_BYTES>(codes[i]) << 4 & E4M3_BITS;
        words[2 * i] = multiply_pair(even, PAIR_2_120);
        words[2 * i + 1] = multiply_pair(odd, PAIR_2_120);
    }
}

__device__ __forceinline__ uint4 paired(uint4 v) {
    return make_uint4(__byte_perm(v.x, v.y, LOW_HALVES), __byte_perm(v.x, v.y, HIGH_HALVES),
                      __byte_perm(v.z, v.w, LOW_HALVES), __byte_perm(v.z, v.w, HIGH_HALVES));
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
