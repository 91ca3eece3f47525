// What the streaming kernels are told: one matrix that all rows of x meet, another whose rows are dealt
// to tiles of them, or both; and which of their items a block takes.

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

// How a matrix alone is dealt: in each turn every block takes `each` strips, in the first `more` turns one
// more. What is left, `rest` bands (NVFP4: strips), goes to the last turn: all blocks have as much, up to one.
struct Shares {
    u32 each, more, rest;
};

// Items of one block, in turn. Of a matrix alone its groups are the turns.
struct Turn : Item {
    int tiles_on, groups_on, groups;

    __device__ __forceinline__ Turn(int groups_of, bool has_fixed, bool alone = false)
        : groups(groups_of) {
        const int index = alone ? 0 : blockIdx.x, step = alone ? 1 : gridDim.x;
        tile = index / groups + (has_fixed ? 0 : 1);
        group = index % groups;
        tiles_on = step / groups;
        groups_on = step % groups;
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
        const u8* dealt, i64 dealt_stride, const u8* dealt_scale, i64 dealt_scale_stride,         \
        const float* dealt_factors, i64 n, i64 groups, i64 chunks, const u16* x, i64 x_stride,    \
        void* out, i64 out_stride, i64 out_wide, const float* bias, i64 add, i64 rows, i64 from,  \
        i64 to, const int4* tiles, const int* used, const int* gather, i64 each, i64 more,        \
        i64 rest, i64 phase)

#define STREAMED                                                                                  \
    Matrix{data, static_cast<u32>(stride), scale, static_cast<u32>(scale_stride), factors},       \
        Matrix{dealt, static_cast<u32>(dealt_stride), dealt_scale,                                \
               static_cast<u32>(dealt_scale_stride), dealt_factors},                              \
        static_cast<int>(n), static_cast<int>(groups), x, static_cast<u32>(x_stride),             \
        static_cast<int>(rows), static_cast<u32>(from), static_cast<u32>(to)
