/* Tiles of rows, which are multiplied by a matrix in products of one shape, and what is selected of a row.

   A tile is a matrix of doubles that Python has made room for. A compiler may choose the order only where no rounding
   depends on it: of counts, and extremes. */

#ifndef TRUING_TILES_H
#define TRUING_TILES_H

#include "blas.h"
#include "rows.h"

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
   are whole arrays: BLAS wants a stride no less than the width, and that of a slice of one row may be anything. */
static inline void multiply(const matrix *tile, const matrix *others, ptrdiff_t count, const matrix *products)
{
    int m = (int)count, n = (int)tile->rows, k = (int)others->columns;
    int between_others = (int)(others->stride / 8), between_rows = (int)(tile->stride / 8);
    int between_products = (int)(products->stride / 8);
    double one = 1.0, zero = 0.0;
    dgemm("T", "N", &m, &n, &k, &one, row_of(others, 0), &between_others, row_of(tile, 0), &between_rows, &zero,
          row_of(products, 0), &between_products);
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

static inline ptrdiff_t count_below(const double *x, ptrdiff_t n, double bound)
{
    int64_t count = 0;
    for (ptrdiff_t j = 0; j < n; j++)
        count += x[j] < bound;
    return count;
}

static inline double largest_below(const double *x, ptrdiff_t n, double bound)
{
    double largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (ptrdiff_t j = 0; j < n; j++) {
        double below = x[j] < bound ? x[j] : -INFINITY;
        largest = below > largest ? below : largest;
    }
    return largest;
}

static inline double smallest_from(const double *x, ptrdiff_t n, double bound)
{
    double smallest = INFINITY;
#pragma omp simd reduction(min : smallest)
    for (ptrdiff_t j = 0; j < n; j++) {
        double above = x[j] < bound ? INFINITY : x[j];
        smallest = above < smallest ? above : smallest;
    }
    return smallest;
}

/* The k-th smallest of n numbers, k from 1, by bisection of their range; with NaN among them it may be any.

   Each round counts the numbers below the middle, which is then an end of the range. After some rounds numbers are equal
   or very unlike, and the nearest number on that side is the end, so that there are fewer of them at each round. No
   branch depends on a number, as they do in quickselect. */
static inline double kth_smallest(const double *x, ptrdiff_t n, ptrdiff_t k)
{
    const int quick_rounds = 16;
    double low = smallest_from(x, n, -INFINITY), high = largest_of(x, n);
    for (int round = 0; low < high; round++) {
        double middle = 0.5 * low + 0.5 * high;
        if (!(middle > low)) /* By rounding, or because the lowest is infinite. */
            middle = high;
        ptrdiff_t count = count_below(x, n, middle);
        if (count == k)
            return largest_below(x, n, middle);
        if (count == k - 1)
            return smallest_from(x, n, middle);
        if (count > k)
            high = round < quick_rounds ? middle : largest_below(x, n, middle);
        else
            low = round < quick_rounds ? middle : smallest_from(x, n, middle);
    }
    return low;
}

#endif
