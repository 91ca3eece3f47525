// What the streaming kernels (linear.cu, linear_few.cu, linear_short.cu) are told: a fixed matrix that
// the same rows of x meet, the experts' matrices, each for its own tiles of rows of x, or both; and
// which items a block takes. dealing.py says how many. Included by these three.
//
// `n` counts weight rows of one matrix (GATED: gate rows, and as many up rows behind them), `rows` rows
// of x. Of each matrix and its tile of rows of x:
//   band   eight weight rows, half of what a matrix instruction takes;
//   strip  what it takes: two bands, or with GATED one of gate rows and its one of up rows;
//   item   some strips that follow one another, against one tile of rows of x;
//   group  the number of an item in its tile, one of `groups`.
// Items are dealt to blocks, whose warps cut K into runs of chunks (weights.cuh).

constexpr int BAND = 8;
// Sums of a strip with eight rows of x: four in each lane, as `mma` lays them.
constexpr int STRIP_SUMS = 128;

struct Matrix {
    const u8* data;
    u32 stride;
    const u8* scale;
    u32 scale_stride;
    const float* factors;
};

// A tile's part of one matrix. Tile 0 is the fixed matrix's, where there is one.
struct Item {
    int tile;
    int group;

    __device__ __forceinline__ bool fixed() const { return tile == 0; }
};

// How a matrix alone is dealt (linear_few.cu): in each turn every block takes `each` strips, in the
// first `more` turns one more. What is left, `rest` bands (NVFP4: strips), goes to the last turn: no
// block has more than one band (NVFP4: one strip) above another.
struct EvenSplit {
    u32 each, more, rest;
};

// Which item a block is at: its first, then `next`. Of a matrix alone, the fixed one, an item is a turn.
struct ItemCursor : Item {
    int tiles_on, groups_on, groups;

    __device__ __forceinline__ ItemCursor(int groups_of, bool has_fixed, bool alone = false)
        : groups(groups_of) {
        if (alone) {
            tile = group = tiles_on = 0;
            groups_on = 1;
            return;
        }
        tile = blockIdx.x / groups + (has_fixed ? 0 : 1);
        group = blockIdx.x % groups;
        tiles_on = gridDim.x / groups;
        groups_on = gridDim.x % groups;
    }

    __device__ __forceinline__ void next() {
        tile += tiles_on;
        group += groups_on;
        if (group >= groups) {
            group -= groups;
            ++tile;
        }
    }
};

// A kernel of so many BLOCKS per processor, and the first members of the work that it is given.
#define STREAMING(NAME, BLOCKS)                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) NAME(                        \
        const u8* data, i64 stride, const u8* scale, i64 scale_stride, const float* factors,      \
        const u8* experts, i64 experts_stride, const u8* experts_scale,                           \
        i64 experts_scale_stride, const float* experts_factors, i64 n, i64 groups, i64 chunks,    \
        const u16* x, i64 x_stride, void* out, i64 out_stride, i64 out_wide, const float* bias,   \
        i64 add, i64 rows, i64 from, i64 to, const int4* tiles, const int* used,                  \
        const int* gather, i64 each, i64 more, i64 rest, i64 phase)

#define STREAMED                                                                                  \
    Matrix{data, static_cast<u32>(stride), scale, static_cast<u32>(scale_stride), factors},       \
        Matrix{experts, static_cast<u32>(experts_stride), experts_scale,                          \
               static_cast<u32>(experts_scale_stride), experts_factors},                          \
        static_cast<int>(n), static_cast<int>(groups), x, static_cast<u32>(x_stride),             \
        static_cast<int>(rows), static_cast<u32>(from), static_cast<u32>(to)
