// kernels_numba/gpu/draw.cuh for the host: one thread does what a block does.
#include <cmath>
#include <cstdint>
#include <cstring>

#define DEVICE static
#define SYNC() (void)0
#define LANE 0
#define LANES 1
#define ATOMIC_ADD(at, value) (*(at) += (value))

static double multiply(double a, double b) { return a * b; }
static double add(double a, double b) { return a + b; }
static double divide(double a, double b) { return a / b; }
static double nearest(double x) { return std::rint(x); }
static float divide_float(float a, float b) { return a / b; }
static double widen(float x) { return x; }
static float narrow(double x) { return static_cast<float>(x); }

static double bits_double(unsigned long long bits) {
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static unsigned long long double_bits(double x) {
    unsigned long long bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

#include "draw.cuh"

extern "C" int rank_of(const Draw* draw, const float* values, int held, double lse) {
    static DrawScratch scratch;
    return draw_rank(scratch, *draw, values, held, lse);
}

extern "C" double exp_of(double x) { return exact_exp(x); }

extern "C" double sum_of(const double* weights, int count) {
    static DrawScratch scratch;
    std::memcpy(scratch.weights, weights, count * sizeof(double));
    return exact_sum(scratch, count);
}
