/* Reading rows of 16-, 32- and 64-bit floating numbers, and exponentials of many numbers at a time.

   Loops here have no branches and no calls, so that a compiler makes vector code of them without being told to forget
   the rules of arithmetic: no bit depends on where in a row a number stands. */

#ifndef TRUING_NUMBERS_H
#define TRUING_NUMBERS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A matrix as NumPy has it: rows `stride` bytes apart, each of `columns` numbers of `bytes` bytes in one piece. */
typedef struct {
    const char *first;
    ptrdiff_t rows;
    ptrdiff_t columns;
    ptrdiff_t stride;
    ptrdiff_t bytes;
} matrix;

static inline ptrdiff_t smaller_of(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

/* Where row i begins. */
static inline const char *bytes_of_row(const matrix *m, ptrdiff_t i)
{
    return m->first + i * m->stride;
}

/* Row i of a matrix of doubles, to be written to if the matrix may. */
static inline double *row_of(const matrix *m, ptrdiff_t i)
{
    return (double *)bytes_of_row(m, i);
}

/* The exponent of a half is moved to where a float has it; infinities and NaN have the largest exponent in both. A
   subnormal half is a whole number of units of 2^-24: no float on the way is subnormal, which some processes set to 0. */
static inline float half_as_float(uint16_t half)
{
    uint32_t bits = half & 0x7fff, sign = (uint32_t)(half & 0x8000) << 16, subnormal_bits;
    uint32_t normal_bits = ((bits << 13) + (112u << 23)) | (bits >= 0x7c00 ? 0x7f800000 : 0);
    float number = (float)(int32_t)bits * 0x1p-24f;
    memcpy(&subnormal_bits, &number, sizeof bits);
    bits = (bits < 0x400 ? subnormal_bits : normal_bits) | sign;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Write row i as doubles. */
static inline void read_row(const matrix *m, ptrdiff_t i, double *restrict out)
{
    const char *row = bytes_of_row(m, i);
    ptrdiff_t n = m->columns;
    if (m->bytes == 8) {
        memcpy(out, row, (size_t)n * 8);
    } else if (m->bytes == 4) {
        const float *numbers = (const float *)row;
        for (ptrdiff_t j = 0; j < n; j++)
            out[j] = numbers[j];
    } else {
        const uint16_t *halves = (const uint16_t *)row;
        for (ptrdiff_t j = 0; j < n; j++)
            out[j] = half_as_float(halves[j]);
    }
}

/* e^x for x <= 709, to 1.4 units in the last place; 0 below -708.7, where no probability matters.

   x = k ln 2 + r with |r| <= ln 2 / 2 (Cody & Waite 1980), e^r = 1 + r + r^2 q(r) with q of degree 9, interpolated at
   Chebyshev points, so that it is right to 2^-55, and 2^k by the bits of the exponent, which are none at k = -1023. */
static inline double exponential(double x)
{
    const double to_integer = 0x1.8p52; /* Adding it rounds to an integer, which then stands in the lowest bits. */
    const double log2e = 0x1.71547652b82fep0, ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
    const double least = -1023 * 0x1.62e42fefa39efp-1;
    double clipped = least > x ? least : x;
    double shifted = clipped * log2e + to_integer;
    double k = shifted - to_integer;
    double r = (clipped - k * ln2_high) - k * ln2_low;
    double r2 = r * r, r4 = r2 * r2;
    double q = (0x1.0000000000001p-1 + r * 0x1.5555555555556p-3) +
               r2 * (0x1.5555555553d63p-5 + r * 0x1.11111111109b3p-7) +
               r4 * ((0x1.6c16c1788bd90p-10 + r * 0x1.a01a01a7c41d5p-13) +
                     r2 * (0x1.a019b90d2ae7ap-16 + r * 0x1.71de0dae63bb3p-19) +
                     r4 * (0x1.289185613a3d6p-22 + r * 0x1.af38a9b0ec855p-26));
    double p = (1.0 + r) + r2 * q;
    uint64_t bits;
    double power;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* ln x for normal x > 0, to 1 unit in the last place.

   x = 2^k m with m from sqrt(1/2) to sqrt(2), ln m = ln(1 + f) by a polynomial in s = f / (2 + f), with the coefficients
   of fdlibm's log (Sun Microsystems 1993). */
static inline double logarithm(double x)
{
    const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
    const uint64_t root_of_half = 0x3fe6a09e00000000, exponent = 0xfff0000000000000;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t k_bits = (bits - root_of_half) & exponent; /* Of x / sqrt(1/2), whose exponent without its bias is k. */
    uint64_t m_bits = bits - k_bits;
    uint64_t shifted = ((k_bits >> 52) ^ 0x800) | 0x4330000000000000; /* 2^52 + 2048 + k: the bits of k, signed. */
    double k, m;
    memcpy(&k, &shifted, sizeof k);
    memcpy(&m, &m_bits, sizeof m);
    k -= 0x1p52 + 2048;
    double f = m - 1.0, s = f / (2.0 + f), s2 = s * s, s4 = s2 * s2;
    double odd = s2 * (0x1.5555555555593p-1 +
                       s4 * (0x1.2492494229359p-2 + s4 * (0x1.7466496cb03dep-3 + s4 * 0x1.2f112df3e5244p-3)));
    double even = s4 * (0x1.999999997fa04p-2 + s4 * (0x1.c71c51d8e78afp-3 + s4 * 0x1.39a09d078c69fp-3));
    double half = 0.5 * f * f;
    return k * ln2_high - ((half - (s * (half + (odd + even)) + k * ln2_low)) - f);
}

/* ln(1 + x) for 0 <= x < 2^52: what is lost when 1 is added is put back. */
static inline double logarithm_of_1_plus(double x)
{
    double sum = 1.0 + x, lost = x - (sum - 1.0);
    return logarithm(sum) + lost / sum;
}

#endif
