/* Sums over the numbers of a row, whose bits depend on the row alone. */

#ifndef TRUING_ROWS_H
#define TRUING_ROWS_H

#include <math.h>

#include "numbers.h"

/* Terms of a sum are added in so many lanes, by their place in the row, the lanes in pairs, and what fills no lanes
   behind them. A compiler turns lanes into vector code, and may not change their order, as it may that of a reduction,
   by where a row lies in memory. */
#define LANES 16

/* Called with constants, each of which makes a function of its own. */
#define INLINE static inline __attribute__((always_inline))

/* x y + z, rounded once where the processor has an instruction for it. Left to a compiler, this would depend on the loop
   that it stands in, and so on the type of a row's numbers. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMA)
#define MULTIPLY_ADD(x, y, z) __builtin_fma(x, y, z)
#else
#define MULTIPLY_ADD(x, y, z) ((x) * (y) + (z))
#endif

/* Number j of a row of numbers of so many bytes: a constant, where this is called. */
static inline double number_of(const char *row, ptrdiff_t bytes, ptrdiff_t j)
{
    if (bytes == 8)
        return ((const double *)row)[j];
    if (bytes == 4)
        return ((const float *)row)[j];
    return half_as_float(((const uint16_t *)row)[j]);
}

static inline double sum_of_lanes(double *lanes)
{
    for (ptrdiff_t half = LANES / 2; half > 0; half /= 2)
        for (ptrdiff_t k = 0; k < half; k++)
            lanes[k] += lanes[k + half];
    return lanes[0];
}

/* Numbers of a row, one after another, that are added up side by side: their order is no compiler's choice. */
typedef double four __attribute__((vector_size(32), aligned(8), may_alias));
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));

static inline double sum_of_four(const four *numbers)
{
    return ((*numbers)[0] + (*numbers)[2]) + ((*numbers)[1] + (*numbers)[3]);
}

/* All lanes, four by four, in the order of `sum_of_lanes`. */
static inline double sum_of_fours(const four *lanes)
{
    four sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    return sum_of_four(&sum);
}

/* Numbers j to j + 3 of a row of floats or doubles. */
INLINE void read_four(const char *row, ptrdiff_t bytes, ptrdiff_t j, four *numbers)
{
    if (bytes == 8)
        *numbers = *(const four *)(row + 8 * j);
    else
        *numbers = __builtin_convertvector(*(const four_floats *)(row + 4 * j), four);
}

/* Where LANES numbers from j on of a row stand as floats or doubles: where they are, or as floats where they are halves. */
INLINE const char *lanes_of_row(const char *row, ptrdiff_t bytes, ptrdiff_t j, float *floats)
{
    if (bytes != 2)
        return row + bytes * j;
    for (ptrdiff_t k = 0; k < LANES; k++)
        floats[k] = half_as_float(((const uint16_t *)row)[j + k]);
    return (const char *)floats;
}

/* The product of a row of numbers of so many bytes, a constant, with coef. */
INLINE double product(const char *row, ptrdiff_t bytes, const double *coef, ptrdiff_t n)
{
    four lanes[LANES / 4] = {{0}};
    double rest = 0;
    ptrdiff_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        float floats[LANES];
        const char *some = lanes_of_row(row, bytes, j, floats);
        for (ptrdiff_t k = 0; k < LANES / 4; k++) {
            four numbers;
            read_four(some, bytes == 8 ? 8 : 4, 4 * k, &numbers);
            lanes[k] += numbers * *(const four *)(coef + j + 4 * k);
        }
    }
    for (; j < n; j++)
        rest = MULTIPLY_ADD(number_of(row, bytes, j), coef[j], rest);
    return sum_of_fours(lanes) + rest;
}

static inline double dot(const double *x, const double *y, ptrdiff_t n)
{
    return product((const char *)x, sizeof *x, y, n);
}

static inline double sum_of_squares(const double *x, ptrdiff_t n)
{
    return dot(x, x, n);
}

static inline double sum(const double *x, ptrdiff_t n)
{
    double lanes[LANES] = {0}, rest = 0;
    ptrdiff_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (ptrdiff_t k = 0; k < LANES; k++)
            lanes[k] += x[j + k];
    for (; j < n; j++)
        rest += x[j];
    return sum_of_lanes(lanes) + rest;
}

static inline double sum_of_sizes(const double *x, ptrdiff_t n)
{
    double lanes[LANES] = {0}, rest = 0;
    ptrdiff_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (ptrdiff_t k = 0; k < LANES; k++)
            lanes[k] += fabs(x[j + k]);
    for (; j < n; j++)
        rest += fabs(x[j]);
    return sum_of_lanes(lanes) + rest;
}

#endif
