// Row work that touches no matrix: embedding, norm, conversion, joining.
#include "common.cuh"

constexpr int NORM_THREADS = 256;
// Values of a row that a thread keeps.
constexpr int HELD = 24;

// out[r] = table[tokens[r] - first] in float32, 0 beyond the table's `held` rows. FP8 scales lie in
// lines of eight rows, one per `group` values. Grid: (rows, width / 256).
extern "C" __global__ void embed(
    const int* tokens, i64 first, i64 held, i64 form, i64 group, const u8* data, i64 stride,
    const u8* scale, i64 scale_stride, const float* factors, i64 width, void* out, i64 out_stride,
    i64 out_wide) {
    const i64 i = static_cast<i64>(blockIdx.y) * blockDim.x + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (i >= width) return;
    const i64 token = tokens[blockIdx.x] - first;
    const u8* row = data + token * stride;
    float value;
    if (token < 0 || token >= held) {
        value = 0.0f;
    } else if (form == 1) {
        value = bf16_float(reinterpret_cast<const u16*>(row)[i]);
    } else if (form == 3) {
        const u8* line = scale + token / 8 * scale_stride;
        value = e4m3_float(row[i]) * reinterpret_cast<const float*>(line)[i / group];
    } else {
        const u32 code = row[i / 2] >> (i % 2 * 4) & 15u;
        value = e2m1_float(code) * e4m3_float(scale[token * scale_stride + i / 16]);
        value *= factors[token] * 0x1p-8f;
    }
    store_value(row_at(out, blockIdx.x, out_stride, out_wide), i, out_wide, value);
}

// out[r] = x[s] / sqrt(mean(x[s]^2) + eps) * weight with s = index[r] or r; x[s] itself without a
// weight. One block a row; the order of the sum follows from the width.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) norm_rows(
    const void* x, i64 x_stride, i64 x_wide, const int* index, const float* weight, double eps,
    i64 width, void* out, i64 out_stride, i64 out_wide) {
    __shared__ float parts[NORM_THREADS / 32];
    float weights[HELD], values[HELD];
    let_next_start();
    // All loads of a thread are on their way at once; what comes behind HELD is read where it is used.
#pragma unroll
    for (int j = 0; j < HELD; ++j) {
        const i64 i = threadIdx.x + j * NORM_THREADS;
        weights[j] = weight != nullptr && i < width ? weight[i] : 0.0f;
    }
    wait_for_previous();
    const i64 source = index == nullptr ? blockIdx.x : index[blockIdx.x];
    const u8* from = row_at(x, source, x_stride, x_wide);
    u8* to = row_at(out, blockIdx.x, out_stride, out_wide);
    constexpr i64 BEHIND = static_cast<i64>(HELD) * NORM_THREADS;
#pragma unroll
    for (int j = 0; j < HELD; ++j) {
        const i64 i = threadIdx.x + j * NORM_THREADS;
        values[j] = i < width ? load_value(from, i, x_wide) : 0.0f;
    }
    float inverse = 1.0f;
    if (weight != nullptr) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < HELD; ++j) sum = __fmaf_rn(values[j], values[j], sum);
        for (i64 i = BEHIND + threadIdx.x; i < width; i += NORM_THREADS) {
            const float value = load_value(from, i, x_wide);
            sum = __fmaf_rn(value, value, sum);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = parts[0];
        for (int w = 1; w < NORM_THREADS / 32; ++w) sum += parts[w];
        inverse = 1.0f / sqrtf(sum / static_cast<float>(width) + static_cast<float>(eps));
    }
#pragma unroll
    for (int j = 0; j < HELD; ++j) {
        const i64 i = threadIdx.x + j * NORM_THREADS;
        const float value = weight == nullptr ? values[j] : values[j] * inverse * weights[j];
        if (i < width) store_value(to, i, out_wide, value);
    }
    for (i64 i = BEHIND + threadIdx.x; i < width; i += NORM_THREADS) {
        const float value = load_value(from, i, x_wide);
        store_value(to, i, out_wide, weight == nullptr ? value : value * inverse * weight[i]);
    }
}

// 1 / sqrt(mean(x^2) + eps), the same in every thread, added up as norm_rows does.
__device__ __forceinline__ float inverse_norm(const u8* x, i64 wide, i64 width, double eps) {
    __shared__ float parts[NORM_THREADS / 32];
    float sum = 0.0f;
    for (i64 i = threadIdx.x; i < width; i += NORM_THREADS) {
        const float value = load_value(x, i, wide);
        sum = __fmaf_rn(value, value, sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = parts[0];
    for (int w = 1; w < NORM_THREADS / 32; ++w) sum += parts[w];
    return 1.0f / sqrtf(sum / static_cast<float>(width) + static_cast<float>(eps));
}

// Which value stands at 8 j + 2 t + c of a woven row of weights' form `form`. A lane t of linear.cu's
// multiplies word m of its eight values in matrix instruction m / 2 of step s; here j = 4 s + m, so
// that what one instruction multiplies stands together.
__device__ __forceinline__ i64 woven_value(i64 form, i64 j, int t, int c) {
    const i64 s = j / 4;
    const int m = static_cast<int>(j % 4);
    if (form == 1) return 32 * s + 8 * t + 2 * m + c;
    return s / 4 * 128 + 32 * t + s % 4 * 8 + m + 4 * c;
}

// The same as norm_rows to bf16 rows of `padded` values, woven for tile_hopper.cu.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) weave_rows(
    const void* x, i64 x_stride, i64 x_wide, const int* index, const float* weight, double eps,
    i64 width, uint4* out, i64 padded, i64 form) {
    let_next_start();
    wait_for_previous();
    const i64 source = index == nullptr ? blockIdx.x : index[blockIdx.x];
    const u8* from = row_at(x, source, x_stride, x_wide);
    uint4* to = out + blockIdx.x * (padded / 8);
    if (form == 1 && !x_wide && weight == nullptr && width == padded) {
        // Pairs keep together: words of four by four change places.
        const u32* words = reinterpret_cast<const u32*>(from);
        for (i64 j = threadIdx.x; j < padded / 8; j += NORM_THREADS) {
            const u32* own = words + j / 4 * 16 + j % 4;
            to[j] = make_uint4(own[0], own[4], own[8], own[12]);
        }
        return;
    }
    const float inverse = weight == nullptr ? 0.0f : inverse_norm(from, x_wide, width, eps);
    for (i64 j = threadIdx.x; j < padded / 8; j += NORM_THREADS) {
        u32 words[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            float pair[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const i64 i = woven_value(form, j, t, c);
                pair[c] = i < width ? load_value(from, i, x_wide) : 0.0f;
                if (weight != nullptr && i < width) pair[c] = pair[c] * inverse * weight[i];
            }
            words[t] = pack_bf16(pair[0], pair[1]);
        }
        to[j] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// out[r][at + i] = x[r][i]. Grid: (rows, width / 256).
extern "C" __global__ void copy_rows(
    const void* x, i64 x_stride, i64 x_wide, i64 width, void* out, i64 out_stride, i64 out_wide,
    i64 at) {
    const i64 i = static_cast<i64>(blockIdx.y) * blockDim.x + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (i >= width) return;
    const float value = load_value(row_at(x, blockIdx.x, x_stride, x_wide), i, x_wide);
    store_value(row_at(out, blockIdx.x, out_stride, out_wide), at + i, out_wide, value);
}
