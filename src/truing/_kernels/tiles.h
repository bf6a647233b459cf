/* Tiles of rows, which are multiplied by a matrix in products of one shape, and what is summed or selected of a row.

   A tile is a matrix of doubles that Python has made room for. Sums are kept in LANES partial sums, which a compiler
   turns into vector code: their order, and so every bit, is that of the columns and nothing else. Where a compiler may
   choose the order, which may then depend on where a row lies in memory, no rounding does: counts, and extremes. */

#ifndef TRUING_TILES_H
#define TRUING_TILES_H

#include <math.h>

#include "blas.h"
#include "numbers.h"

#define LANES 8

static inline ptrdiff_t smaller_of(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

/* Row i of a matrix of doubles that may be written to. */
static inline double *row_of(const matrix *tile, ptrdiff_t i)
{
    return (double *)(tile->first + i * tile->stride);
}

/* Read rows from `first` on into a tile, which is filled up with zeros, and return how many there were. */
static inline ptrdiff_t read_tile(const matrix *rows, ptrdiff_t first, const matrix *tile)
{
    ptrdiff_t count = smaller_of(tile->rows, rows->rows - first);
    for (ptrdiff_t i = 0; i < count; i++)
        read_row(rows, first + i, row_of(tile, i));
    for (ptrdiff_t i = count; i < tile->rows; i++)
        memset(row_of(tile, i), 0, (size_t)tile->columns * sizeof(double));
    return count;
}

/* Write the products of every row of a tile with the first `count` rows of `others` into a row of `products`. All three
   are whole arrays, no slices of one row, whose stride may be anything: BLAS wants it to be no less than their width. */
static inline void multiply(const matrix *tile, const matrix *others, ptrdiff_t count, const matrix *products)
{
    int m = (int)count, n = (int)tile->rows, k = (int)others->columns;
    int between_others = (int)(others->stride / 8), between_rows = (int)(tile->stride / 8);
    int between_products = (int)(products->stride / 8);
    double one = 1.0, zero = 0.0;
    dgemm("T", "N", &m, &n, &k, &one, row_of(others, 0), &between_others, row_of(tile, 0), &between_rows, &zero,
          row_of(products, 0), &between_products);
}

static inline double sum_of_lanes(const double *lanes)
{
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

static inline double sum(const double *x, ptrdiff_t n)
{
    double lanes[LANES] = {0};
    ptrdiff_t whole = n - n % LANES;
    for (ptrdiff_t j = 0; j < whole; j += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += x[j + l];
    for (ptrdiff_t j = whole; j < n; j++)
        lanes[j - whole] += x[j];
    return sum_of_lanes(lanes);
}

static inline double sum_of_sizes(const double *x, ptrdiff_t n)
{
    double lanes[LANES] = {0};
    ptrdiff_t whole = n - n % LANES;
    for (ptrdiff_t j = 0; j < whole; j += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += fabs(x[j + l]);
    for (ptrdiff_t j = whole; j < n; j++)
        lanes[j - whole] += fabs(x[j]);
    return sum_of_lanes(lanes);
}

static inline double sum_of_products(const double *x, const double *y, ptrdiff_t n)
{
    double lanes[LANES] = {0};
    ptrdiff_t whole = n - n % LANES;
    for (ptrdiff_t j = 0; j < whole; j += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += x[j + l] * y[j + l];
    for (ptrdiff_t j = whole; j < n; j++)
        lanes[j - whole] += x[j] * y[j];
    return sum_of_lanes(lanes);
}

static inline double sum_of_squares(const double *x, ptrdiff_t n)
{
    return sum_of_products(x, x, n);
}

/* The largest of n numbers, of which NaN is none. */
static inline double largest_of(const double *x, ptrdiff_t n)
{
    double largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (ptrdiff_t j = 0; j < n; j++)
        largest = x[j] > largest ? x[j] : largest;
    return largest;
}

/* The first place of a number among n, or 0. */
static inline ptrdiff_t place_of(double number, const double *x, ptrdiff_t n)
{
    for (ptrdiff_t j = 0; j < n; j++)
        if (x[j] == number)
            return j;
    return 0;
}

/* The k-th smallest of n numbers, k from 1, by bisection of their range; with NaN among them it may be any.

   Each round counts the numbers below the middle, and takes the nearest number on either side for a new end of the
   range, so that it ends with equal numbers too. No branch depends on a number, as they do in quickselect. */
static inline double kth_smallest(const double *x, ptrdiff_t n, ptrdiff_t k)
{
    double low = INFINITY, high = -INFINITY;
#pragma omp simd reduction(min : low) reduction(max : high)
    for (ptrdiff_t j = 0; j < n; j++) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
    }
    while (low < high) {
        double middle = 0.5 * low + 0.5 * high;
        if (!(middle > low)) /* By rounding, or because the lowest is infinite. */
            middle = high;
        double count = 0.0, largest_below = -INFINITY, smallest_above = INFINITY;
#pragma omp simd reduction(+ : count) reduction(max : largest_below) reduction(min : smallest_above)
        for (ptrdiff_t j = 0; j < n; j++) {
            double below = x[j] < middle ? x[j] : -INFINITY, above = x[j] < middle ? INFINITY : x[j];
            count += x[j] < middle ? 1.0 : 0.0;
            largest_below = below > largest_below ? below : largest_below;
            smallest_above = above < smallest_above ? above : smallest_above;
        }
        if (count == (double)k)
            return largest_below;
        if (count == (double)(k - 1))
            return smallest_above;
        if (count > (double)k)
            high = largest_below;
        else
            low = smallest_above;
    }
    return low;
}

#endif
