// Norm and turn q and k of each row; q goes to the queries, k and v to the paged cache.
#include "common.cuh"

constexpr int ROTARY_WARPS = 4;
constexpr int MOST_DIM = 512;

// One warp per head of [q | k | v]. Grid: (rows, heads / ROTARY_WARPS).
extern "C" __global__ void __launch_bounds__(32 * ROTARY_WARPS) rotary_cache_write(
    const void* qkv, i64 qkv_stride, i64 qkv_wide, const int* positions, const int* slots,
    const int* tables, i64 width, i64 heads, i64 kv_heads, i64 dim, i64 padded,
    const float* q_weight, const float* k_weight, double q_eps, double k_eps, const float* angles,
    i64 half, u16* queries, i64 queries_stride, u16* keys, u16* values, i64 block_tokens) {
    __shared__ float held[ROTARY_WARPS][MOST_DIM];
    const int lane = threadIdx.x % 32;
    let_next_start();
    wait_for_previous();
    const i64 index = static_cast<i64>(blockIdx.y) * ROTARY_WARPS + threadIdx.x / 32;
    if (index >= heads + 2 * kv_heads) return;
    float* head = held[threadIdx.x / 32];
    const i64 row = blockIdx.x, position = positions[row];
    const u8* from = row_at(qkv, row, qkv_stride, qkv_wide);
    const bool is_query = index < heads, is_value = index >= heads + kv_heads;
    const float* weight = is_query ? q_weight : is_value ? nullptr : k_weight;
    float sum = 0.0f;
    for (i64 i = lane; i < dim; i += 32) {
        const float value = load_value(from, index * dim + i, qkv_wide);
        head[i] = value;
        sum = __fmaf_rn(value, value, sum);
    }
    if (weight != nullptr) {
        const float eps = static_cast<float>(is_query ? q_eps : k_eps);
        const float inverse = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + eps);
        for (i64 i = lane; i < dim; i += 32) head[i] = head[i] * inverse * weight[i];
    }
    __syncwarp();

    u16* to;
    if (is_query) {
        to = queries + row * queries_stride + index * dim;
    } else {
        const i64 kv_head = (index - heads) % kv_heads;
        const i64 block = tables[slots[row] * width + position / block_tokens];
        to = (is_value ? values : keys) +
            ((block * kv_heads + kv_head) * block_tokens + position % block_tokens) * padded;
        for (i64 i = dim + lane; i < padded; i += 32) to[i] = 0;
    }
    const float* turn = angles + position * 2 * half;
    for (i64 i = lane; i < dim; i += 32) {
        float value = head[i];
        if (!is_value && i < half) {
            value = value * turn[i] - head[i + half] * turn[half + i];
        } else if (!is_value && i < 2 * half) {
            value = value * turn[i - half] + head[i - half] * turn[i];
        }
        to[i] = static_cast<u16>(pack_bf16(value, 0.0f));
    }
}
