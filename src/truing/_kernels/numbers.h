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

/* The exponent of a half is moved to where a float has it, and scaled by the difference of their biases, which also
   makes subnormal halves come out right. The largest exponent stays the largest: infinities and NaN. */
static inline float half_as_float(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float size;
    memcpy(&size, &bits, sizeof size);
    size *= 0x1p112f;
    memcpy(&bits, &size, sizeof bits);
    bits |= (half & 0x7c00) == 0x7c00 ? sign | 0x7f800000 : sign;
    memcpy(&size, &bits, sizeof size);
    return size;
}

/* Write row i as doubles. */
static inline void read_row(const matrix *m, ptrdiff_t i, double *restrict out)
{
    const char *row = m->first + i * m->stride;
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

/* e^x for x <= 709, to 1 unit in the last place; 0 below -708, where no probability matters.

   x = k ln 2 + r with |r| <= ln 2 / 2 (Cody & Waite 1980), e^r by its Taylor polynomial of degree 13, whose remainder
   is below 2^-57, and 2^k by the bits of the exponent. */
static inline double exponential(double x)
{
    const double to_integer = 0x1.8p52; /* Adding it rounds to an integer, which then stands in the lowest bits. */
    const double log2e = 0x1.71547652b82fep0, ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
    double clipped = x < -708.0 ? -708.0 : x;
    double shifted = clipped * log2e + to_integer;
    double k = shifted - to_integer;
    double r = (clipped - k * ln2_high) - k * ln2_low;
    double r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
    double p = (1.0 + r) + r2 * (1.0 / 2 + r * (1.0 / 6)) +
               r4 * ((1.0 / 24 + r * (1.0 / 120)) + r2 * (1.0 / 720 + r * (1.0 / 5040))) +
               r8 * ((1.0 / 40320 + r * (1.0 / 362880)) + r2 * (1.0 / 3628800 + r * (1.0 / 39916800)) +
                     r4 * (1.0 / 479001600 + r * (1.0 / 6227020800)));
    uint64_t bits;
    double power;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&power, &bits, sizeof power);
    return x < -708.0 ? 0.0 : p * power;
}

#endif
