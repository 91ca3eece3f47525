// out = weights * x for at most eight rows of x and few of bf16 weights, bit for bit what linear.cu
// gives.
// Launched by project.py, dealt by dealing.py.
// The same on the CPU: cpu/linear.py, cpu/dot.py. Oracle: tests/unit/kernels/test_linear.py.
//
// So few weights keep no memory busy: what counts is how long a block takes from the end of the kernels
// in front of it. It takes one band of eight weight rows, half of a matrix instruction, and has all of
// them in its places when it may go on; then all of x is asked for at once. A block's warps split K and
// merge in warp order. Each waits for its own copies alone.
#include "common.cuh"
#include "weights.cuh"
#include "streamed.cuh"

// 16-byte units of a chunk of a row.
constexpr int UNITS = CHUNK_BYTES / 16;
// Units between two rows of x, so that eight lanes which read two of them meet no bank twice.
constexpr int APART = 4;

// Asks for the chunks of the lane's own row of weights.
__device__ __forceinline__ void ask_weights(
    uint4 (*to)[STEPS][32], const u8* row, int begin, int end) {
    const int lane = threadIdx.x % 32;
    for (int chunk = begin; chunk < end; ++chunk) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const u8* from = row + chunk * CHUNK_BYTES + 16 * input_unit(step, lane % 4);
            copy_async<16>(&to[chunk][step][lane], from);
        }
    }
}

// The warp asks for units `first` ... `behind` - 1 of `rows` rows of x.
__device__ __forceinline__ void ask_inputs(
    uint4* to, i64 stride, const uint4* x, i64 x_stride, int rows, int first, int behind) {
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll 1
        for (int unit = first + threadIdx.x % 32; unit < behind; unit += 32) {
            copy_async<16>(to + row * stride + unit, x + row * x_stride + unit);
        }
    }
}

STREAMING(linear_short, 2) {
    extern __shared__ __align__(16) u8 memory[];
    // Sums of each warp: of weight row r with row i of x at 8 r + i.
    float2(*sums)[32] = reinterpret_cast<float2(*)[32]>(memory);
    uint4(*weights)[STEPS][32] = reinterpret_cast<uint4(*)[STEPS][32]>(sums + WARPS);
    uint4* inputs = reinterpret_cast<uint4*>(weights + chunks);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = static_cast<int>(chunks);
    const int begin = run_begin(warp, all), end = run_begin(warp + 1, all);
    const int first = blockIdx.x * BAND, last = static_cast<int>(n) - 1;
    const int count = static_cast<int>(rows), apart = UNITS * all + APART;
    let_next_start();
    ask_weights(weights, data + min(first + lane / 4, last) * stride, begin, end);
    const Output output{out, out_stride, out_wide, nullptr, bias, add};
    // Columns of a product are independent: an absent row of x may be any other.
    const uint4* own = inputs + min(lane / 4, count - 1) * apart;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        ask_inputs(inputs, apart, reinterpret_cast<const uint4*>(x), x_stride / 8, count,
                   UNITS * begin, UNITS * end);
        copy_commit();
        copy_wait<0>();
        // By now all have read the sums of the pass before, too.
        __syncthreads();
        float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 2
        for (int chunk = begin; chunk < end; ++chunk) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                u32 a[4];
                words_of(weights[chunk][step][lane], a);
                const uint4 b = paired(own[UNITS * chunk + input_unit(step, lane % 4)]);
                mma(value, a[0], 0, a[1], 0, b.x, b.y);
                mma(value, a[2], 0, a[3], 0, b.z, b.w);
            }
        }
        sums[warp][lane] = make_float2(value[0], value[1]);
        __syncthreads();
        const int index = threadIdx.x, row = first + index / 8;
        if (index >= 8 * BAND || index % 8 >= count || row > last) continue;
        const float* at = reinterpret_cast<const float*>(sums) + index;
        float sum = at[0];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) sum += at[w * STRIP_SUMS / 2];
        output.plain(index % 8, row, row, sum, counts);
    }
}
