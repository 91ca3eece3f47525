// How a lane of a warp reads its share of a weight row. FORMAT is a `kernels_numba.weights.Form`.
//
// K is cut into chunks, and the chunks into eight runs, one a warp, as even as they can be. Inside a
// chunk, step s feeds two matrix instructions with eight consecutive values per lane. The order of
// a row's sum follows from K and the format alone, never from the number of rows.

constexpr int WARPS = 8;

// Chunks of a run; the last runs may be shorter or empty.
__device__ __forceinline__ int run_length(int chunks) { return (chunks + WARPS - 1) / WARPS; }

#if FORMAT == 1
// bf16: a chunk is 64 values, 128 bytes. Lane t of a quad takes values 32 s + 8 t ... + 7.
constexpr int CHUNK = 64;
constexpr int STEPS = 2;
constexpr int CHUNK_BYTES = 128;
constexpr int SCALE_BYTES = 0;

struct Share {
    uint4 unit[2];
};

__device__ __forceinline__ void words_of(const Share& share, int step, u32 (&words)[4]) {
    const uint4 unit = share.unit[step];
    words[0] = unit.x;
    words[1] = unit.y;
    words[2] = unit.z;
    words[3] = unit.w;
}

// Eight values of x in the order in which words_of gives weights.
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

struct Share {
    uint4 packed;
    u32 scales;
};

__device__ __forceinline__ u32 multiply_pair(u32 a, u32 b) {
    u32 product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

// Eight codes, low nibble first, times their scale / 2^8, as bf16 pairs (i, i + 4): two codes that
// lie sixteen bits apart become a pair with two shifts.
__device__ __forceinline__ void decode_word(u32 codes, float scale, u32 (&words)[4]) {
    const u32 scales = pack_bf16(scale * 0x1p118f, scale * 0x1p118f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // Exponent and mantissa of a code are a bf16's, 2^126 too small; this instruction takes
        // subnormals, whatever the compiler was told.
        const u32 magnitude = i < 2 ? codes << (6 - 4 * i) : codes >> (4 * i - 6);
        const u32 sign = codes << (12 - 4 * i);
        words[i] = multiply_pair(magnitude & 0x01c001c0u | sign & 0x80008000u, scales);
    }
}

// Eight values of x in the same order.
__device__ __forceinline__ uint4 paired(uint4 v) {
    return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                      __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
}

__device__ __forceinline__ void words_of(const Share& share, int step, u32 (&words)[4]) {
    const u32 codes = step == 0   ? share.packed.x
                      : step == 1 ? share.packed.y
                      : step == 2 ? share.packed.z
                                  : share.packed.w;
    decode_word(codes, e4m3_float(share.scales >> (8 * (step / 2)) & 255u), words);
}

__device__ __forceinline__ int input_unit(int step, int t) { return 4 * t + step; }
#else
#error "FORMAT is 1 (bf16) or 2 (nvfp4)"
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

    __device__ __forceinline__ float scaled(float sum, i64 weight_row) const {
        return factors == nullptr ? sum : __fmul_rn(sum, factors[weight_row]);
    }

    __device__ __forceinline__ void plain(i64 row, i64 n, i64 weight_row, float sum) const {
        float value = scaled(sum, weight_row);
        u8* to = row_at(out, row, stride, wide);
        if (bias != nullptr) value = __fadd_rn(value, bias[n]);
        if (add) value = __fadd_rn(load_value(to, n, wide), value);
        store_value(to, n, wide, value);
    }

    __device__ __forceinline__ void gated(
        i64 row, i64 n, i64 gate_row, i64 up_row, float gate, float up) const {
        const float g = scaled(gate, gate_row);
        const float u = scaled(up, up_row);
        const float silu = __fdiv_rn(g, __fadd_rn(1.0f, expf(-g)));
        store_value(row_at(out, row, stride, wide), n, wide, __fmul_rn(silu, u));
    }
};
