// What the streaming kernels are told: one matrix that all rows of x meet, another whose rows are dealt
// to tiles of them, or both.

struct Matrix {
    const u8* data;
    u32 stride;
    const u8* scale;
    u32 scale_stride;
    const float* factors;
};

// A kernel of so many BLOCKS per processor, and the first members of the work that it is given.
#define STREAMING(NAME, BLOCKS)                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) NAME(                        \
        const u8* data, i64 stride, const u8* scale, i64 scale_stride, const float* factors,      \
        const u8* dealt, i64 dealt_stride, const u8* dealt_scale, i64 dealt_scale_stride,         \
        const float* dealt_factors, i64 n, i64 groups, i64 chunks, const u16* x, i64 x_stride,    \
        void* out, i64 out_stride, i64 out_wide, const float* bias, i64 add, i64 rows, i64 from,  \
        i64 to, const int4* tiles, const int* used, const int* gather)

#define STREAMED                                                                                  \
    Matrix{data, static_cast<u32>(stride), scale, static_cast<u32>(scale_stride), factors},       \
        Matrix{dealt, static_cast<u32>(dealt_stride), dealt_scale,                                \
               static_cast<u32>(dealt_scale_stride), dealt_factors},                              \
        static_cast<int>(n), static_cast<int>(groups), x, static_cast<u32>(x_stride),             \
        static_cast<int>(rows), static_cast<u32>(from), static_cast<u32>(to)
