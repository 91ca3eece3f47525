// Row work that touches no matrix: embedding, norm, conversion, joining.
// Launched by backend.py and project.py, weave_rows by wide.py.
// The same on the CPU: cpu/rows.py, cpu/norm.py. Oracle: tests/unit/kernels/test_linear.py.
#include "common.cuh"

constexpr int NORM_THREADS = 256;
// Values of a row lie in fours: a thread has the fours threadIdx.x + NORM_THREADS j.
// Fours of a row that a thread keeps: all of rows of up to 6,144 values.
constexpr int HELD = 6;

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
        // The kernels' factors hold the 2^8 that their codes lack (weights.cuh).
        value *= factors[token] * 0x1p-8f;
    }
    store_value(row_at(out, blockIdx.x, out_stride, out_wide), i, out_wide, value);
}

// The first `count` of four values, 0 for the others.
__device__ __forceinline__ float4 leading(const float4& own, int count) {
    return make_float4(count > 0 ? own.x : 0.0f, count > 1 ? own.y : 0.0f,
                       count > 2 ? own.z : 0.0f, count > 3 ? own.w : 0.0f);
}

// Four `at` of a row, which is padded to whole fours.
template <bool WIDE>
__device__ __forceinline__ float4 load_four(const void* row, int at) {
    if constexpr (WIDE) return __ldcg(static_cast<const float4*>(row) + at);
    const uint2 bits = __ldcg(static_cast<const uint2*>(row) + at);
    return make_float4(bf16_float(bits.x), high_bf16_float(bits.x), bf16_float(bits.y),
                       high_bf16_float(bits.y));
}

template <bool WIDE>
__device__ __forceinline__ void store_four(void* row, int at, const float4& own) {
    if constexpr (WIDE) {
        static_cast<float4*>(row)[at] = own;
    } else {
        static_cast<uint2*>(row)[at] =
            make_uint2(pack_bf16(own.x, own.y), pack_bf16(own.z, own.w));
    }
}

__device__ __forceinline__ float add_squares(float sum, const float4& own) {
    sum = __fmaf_rn(own.y, own.y, __fmaf_rn(own.x, own.x, sum));
    return __fmaf_rn(own.w, own.w, __fmaf_rn(own.z, own.z, sum));
}

__device__ __forceinline__ float4 scaled(const float4& own, float inverse, const float4& weight) {
    return make_float4(own.x * inverse * weight.x, own.y * inverse * weight.y,
                       own.z * inverse * weight.z, own.w * inverse * weight.w);
}

// 1 / sqrt(mean of all threads' squares + eps), the same in every thread; the order follows from the
// width.
__device__ __forceinline__ float inverse_norm(float sum, int width, double eps) {
    __shared__ float parts[NORM_THREADS / 32];
    sum = warp_sum(sum);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = parts[0];
#pragma unroll
    for (int w = 1; w < NORM_THREADS / 32; ++w) sum += parts[w];
    return 1.0f / sqrtf(sum / static_cast<float>(width) + static_cast<float>(eps));
}

// A row's squares as a thread of NORM_THREADS adds them up from its four `at` on.
template <bool WIDE>
__device__ __forceinline__ float sum_squares(const void* row, int at, int width, float sum) {
#pragma unroll 1
    for (; 4 * at < width; at += NORM_THREADS) {
        sum = add_squares(sum, leading(load_four<WIDE>(row, at), width - 4 * at));
    }
    return sum;
}

// Where a row comes from and goes, and what it is multiplied by (null: nothing is normed).
struct NormRow {
    const u8* from;
    u8* to;
    const float* weight;
    double eps;
    int width;
    bool counts;
};

// Little code runs here: it is read from memory for each kernel anew, and that takes longer than what
// it does.
template <bool WIDE, bool TO_WIDE>
__device__ __forceinline__ void norm_row(const NormRow& row, const float4 (&weights)[HELD]) {
    const bool normed = row.weight != nullptr;
    // Fours of this thread, and how many values the last of the row has.
    const int mine = ((row.width + 3) / 4 - static_cast<int>(threadIdx.x) + NORM_THREADS - 1) /
        NORM_THREADS;
    float4 values[HELD];
#pragma unroll
    for (int j = 0; j < HELD; ++j) {
        values[j] = make_float4(0, 0, 0, 0);
        if (j < mine) values[j] = load_four<WIDE>(row.from, threadIdx.x + j * NORM_THREADS);
    }
    if (row.width % 4 != 0) {
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            values[j] = leading(values[j], row.width - 4 * (threadIdx.x + j * NORM_THREADS));
        }
    }
    float inverse = 1.0f;
    if (normed) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < HELD; ++j) sum = add_squares(sum, values[j]);
        if (mine > HELD) {
            sum = sum_squares<WIDE>(row.from, threadIdx.x + HELD * NORM_THREADS, row.width, sum);
        }
        inverse = inverse_norm(sum, row.width, row.eps);
#pragma unroll
        for (int j = 0; j < HELD; ++j) values[j] = scaled(values[j], inverse, weights[j]);
    }
#pragma unroll
    for (int j = 0; j < HELD; ++j) {
        if (j < mine && row.counts) {
            store_four<TO_WIDE>(row.to, threadIdx.x + j * NORM_THREADS, values[j]);
        }
    }
#pragma unroll 1
    for (int j = HELD; j < mine && row.counts; ++j) {
        const int at = threadIdx.x + j * NORM_THREADS;
        float4 own = leading(load_four<WIDE>(row.from, at), row.width - 4 * at);
        if (normed) own = scaled(own, inverse, load_four<true>(row.weight, at));
        store_four<TO_WIDE>(row.to, at, own);
    }
}

// out[r] = x[s] / sqrt(mean(x[s]^2) + eps) * weight with s = index[r] or r; x[s] itself without a
// weight. One block a row.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) norm_rows(
    const void* x, i64 x_stride, i64 x_wide, const int* index, const float* weight, double eps,
    i64 width, void* out, i64 out_stride, i64 out_wide) {
    float4 weights[HELD];
    let_next_start();
    // All loads of a thread are on their way at once; what comes behind HELD is read where it is used.
#pragma unroll
    for (int j = 0; j < HELD; ++j) {
        const int at = threadIdx.x + j * NORM_THREADS;
        weights[j] = make_float4(0, 0, 0, 0);
        if (weight != nullptr && 4 * at < width) weights[j] = load_four<true>(weight, at);
    }
#pragma unroll 1
    for (int pass = first_pass(gridDim.x); pass < 2; ++pass) {
        const bool counts = counts_now(pass);
        const i64 source = index == nullptr || !counts ? blockIdx.x : index[blockIdx.x];
        const NormRow row{row_at(x, source, x_stride, x_wide),
                          row_at(out, blockIdx.x, out_stride, out_wide), weight, eps,
                          static_cast<int>(width), counts};
        if (x_wide && !out_wide) {
            norm_row<true, false>(row, weights);
        } else if (x_wide) {
            norm_row<true, true>(row, weights);
        } else if (out_wide) {
            norm_row<false, true>(row, weights);
        } else {
            norm_row<false, false>(row, weights);
        }
    }
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
    float inverse = 0.0f;
    if (weight != nullptr) {
        const int last = static_cast<int>(width);
        const float sum = x_wide ? sum_squares<true>(from, threadIdx.x, last, 0.0f)
                                 : sum_squares<false>(from, threadIdx.x, last, 0.0f);
        inverse = inverse_norm(sum, last, eps);
    }
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
