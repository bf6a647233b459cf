/* The distance to the k-th nearest of known rows, all scaled to unit norm. */

#include "tiles.h"

/* A sum of squares below this may have lost some of them to underflow. */
#define SAFE_SUM_OF_SQUARES 1e-200

static double norm_of(const double *row, ptrdiff_t n)
{
    double square = sum_of_squares(row, n);
    if (!(square < SAFE_SUM_OF_SQUARES))
        return sqrt(square);
    double largest = 0.0, scaled = 0.0;
    for (ptrdiff_t j = 0; j < n; j++)
        largest = fabs(row[j]) > largest ? fabs(row[j]) : largest;
    if (largest == 0.0)
        return 0.0;
    for (ptrdiff_t j = 0; j < n; j++)
        scaled += row[j] / largest * (row[j] / largest);
    return largest * sqrt(scaled);
}

/* Write the Euclidean norm of every row; there is a row to spare. */
void row_norms(const matrix *rows, double *spare, double *norms)
{
    for (ptrdiff_t i = 0; i < rows->rows; i++) {
        read_row(rows, i, spare);
        norms[i] = norm_of(spare, rows->columns);
    }
}

/* Read rows from `first` on into a tile, each divided by its norm or all zero, and return how many there were. */
static ptrdiff_t read_units(const matrix *rows, const double *norms, ptrdiff_t first, const matrix *tile)
{
    ptrdiff_t count = read_tile(rows, first, tile);
    for (ptrdiff_t i = 0; i < count; i++) {
        double *row = row_of(tile, i), norm = norms[first + i] > 0.0 ? norms[first + i] : 1.0;
        for (ptrdiff_t j = 0; j < rows->columns; j++)
            row[j] /= norm;
    }
    return count;
}

/* Write the squared distances of a unit row in the place of its products with known ones, and infinity for its own. */
static void as_squared_distances(double *products, ptrdiff_t n, double norm, const double *norms_in, ptrdiff_t itself)
{
    double square = norm > 0.0 ? 1.0 : 0.0;
    for (ptrdiff_t j = 0; j < n; j++)
        products[j] = square + (norms_in[j] > 0.0 ? 1.0 : 0.0) - 2.0 * products[j];
    if (itself >= 0 && itself < n)
        products[itself] = INFINITY;
}

/* Add those of n numbers that are below `bound` to `count` others, and return how many these are then. */
static ptrdiff_t add_smaller(const double *numbers, ptrdiff_t n, double bound, double *others, ptrdiff_t count)
{
    for (ptrdiff_t j = 0; j < n; j++) { /* Written first and counted then, so that no branch depends on them. */
        others[count] = numbers[j];
        count += numbers[j] < bound;
    }
    return count;
}

/* Leave the k smallest of n numbers where these were, in any order, given the k-th. */
static void keep_smallest(double *numbers, ptrdiff_t n, ptrdiff_t k, double kth)
{
    ptrdiff_t below = add_smaller(numbers, n, kth, numbers, 0);
    for (ptrdiff_t j = below; j < k; j++)
        numbers[j] = kth;
}

/* Write the distance of every row to its k-th nearest known row.

   Row i is known row own + i, and not its own neighbour, unless own is negative. For each row of a tile `nearest` holds
   `counts` squared distances, the k smallest so far among them, none of which is above `bounds`. It has room for 2 k, or
   for all there are, and one more for each row of the tile of known ones. */
void nearest_distances(const matrix *features, const double *norms, const matrix *features_in, const double *norms_in,
                       ptrdiff_t k, ptrdiff_t own, const matrix *tile, const matrix *known, const matrix *products,
                       const matrix *nearest, ptrdiff_t *counts, double *bounds, double *distances)
{
    for (ptrdiff_t first = 0; first < features->rows; first += tile->rows) {
        ptrdiff_t count = read_units(features, norms, first, tile);
        for (ptrdiff_t i = 0; i < count; i++) {
            counts[i] = 0;
            bounds[i] = INFINITY;
        }
        for (ptrdiff_t start = 0; start < features_in->rows; start += known->rows) {
            ptrdiff_t count_in = read_units(features_in, norms_in, start, known);
            multiply(tile, known, count_in, products);
            for (ptrdiff_t i = 0; i < count; i++) {
                double *squared = row_of(products, i), *smallest = row_of(nearest, i);
                ptrdiff_t itself = own < 0 ? -1 : own + first + i - start;
                as_squared_distances(squared, count_in, norms[first + i], norms_in + start, itself);
                counts[i] = add_smaller(squared, count_in, bounds[i], smallest, counts[i]);
                if (counts[i] > 2 * k) {
                    bounds[i] = kth_smallest(smallest, counts[i], k);
                    keep_smallest(smallest, counts[i], k, bounds[i]);
                    counts[i] = k;
                }
            }
        }
        for (ptrdiff_t i = 0; i < count; i++) {
            double squared = counts[i] < k ? NAN : kth_smallest(row_of(nearest, i), counts[i], k);
            distances[first + i] = sqrt(squared < 0.0 ? 0.0 : squared);
        }
    }
}
