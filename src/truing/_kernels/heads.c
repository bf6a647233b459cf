/* Scores of features z and the linear head that makes logits f = W z + b of them. */

#include "tiles.h"

/* log(sum of e^f) of n numbers, with all its digits where that is near 0. They are written over, and so is what stands
   behind them up to a multiple of 4, for the sake of whole vectors. */
static double log_sum_exp(double *f, ptrdiff_t n)
{
    double largest = largest_of(f, n), number_largest = 0.0;
    ptrdiff_t filled_up = (n + 3) / 4 * 4;
    for (ptrdiff_t j = n; j < filled_up; j++)
        f[j] = -INFINITY;
#pragma omp simd reduction(+ : number_largest)
    for (ptrdiff_t j = 0; j < filled_up; j++) {
        double term = exponential(f[j] - largest);
        number_largest += f[j] == largest ? 1.0 : 0.0;
        f[j] = f[j] == largest ? 0.0 : term;
    }
    return largest + log1p(sum(f, n) + (number_largest - 1.0));
}

/* The sum of what n numbers are above another. */
static double sum_above(double other, const double *x, ptrdiff_t n)
{
    double lanes[LANES] = {0}, rest = 0;
    ptrdiff_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (ptrdiff_t k = 0; k < LANES; k++)
            lanes[k] += x[j + k] > other ? x[j + k] - other : 0.0;
    for (; j < n; j++)
        rest += x[j] > other ? x[j] - other : 0.0;
    return sum_of_lanes(lanes) + rest;
}

static void set_to_zero_below(double least, double *x, ptrdiff_t n)
{
    for (ptrdiff_t j = 0; j < n; j++)
        x[j] = x[j] >= least ? x[j] : 0.0;
}

/* exp(sum of a row's activations / sum of its largest), NaN where that has no meaning; where it is to be pruned, those
   that are not among the largest are set to 0. */
static double shape(double *row, ptrdiff_t n, ptrdiff_t kept, ptrdiff_t is_pruned)
{
    double least = kth_smallest(row, n, n - kept + 1), of_all = sum(row, n), of_largest;
    if (is_pruned) {
        set_to_zero_below(least, row, n);
        of_largest = sum(row, n);
    } else {
        of_largest = sum_above(least, row, n) + (double)kept * least;
    }
    if (of_all == 0.0 && sum_of_sizes(row, n) == 0.0)
        return 1.0; /* A row of zeros stays one, whatever it is scaled by. */
    return of_largest > 0.0 ? exp(of_all / of_largest) : NAN;
}

/* The energy T log(sum of e^(f / T)) of the head's logits on shaped features, as SCALE and ASH-S have it. There is room
   for a tile of features, one of logits, and a number for each of their rows. */
void shaped_energies(const matrix *features, const matrix *weight, const double *bias, double temperature,
                     ptrdiff_t kept, ptrdiff_t is_pruned, const matrix *tile, const matrix *logits, double *factors,
                     double *scores)
{
    ptrdiff_t d = features->columns, classes = weight->rows;
    double per_temperature = 1.0 / temperature;
    for (ptrdiff_t first = 0; first < features->rows; first += tile->rows) {
        ptrdiff_t count = read_tile(features, first, tile);
        for (ptrdiff_t i = 0; i < count; i++)
            factors[i] = shape(row_of(tile, i), d, kept, is_pruned);
        multiply(tile, weight, classes, logits);
        for (ptrdiff_t i = 0; i < count; i++) {
            double *f = row_of(logits, i);
            for (ptrdiff_t j = 0; j < classes; j++)
                f[j] = (factors[i] * f[j] + bias[j]) * per_temperature;
            scores[first + i] = temperature * log_sum_exp(f, classes);
        }
    }
}

/* How long the part of every row about the origin is that lies along some orthonormal directions (r, d). */
void lengths_along(const matrix *features, const double *origin, const matrix *directions, const matrix *tile,
                   const matrix *products, double *lengths)
{
    for (ptrdiff_t first = 0; first < features->rows; first += tile->rows) {
        ptrdiff_t count = read_tile(features, first, tile);
        for (ptrdiff_t i = 0; i < count; i++) {
            double *z = row_of(tile, i);
            for (ptrdiff_t j = 0; j < features->columns; j++)
                z[j] -= origin[j];
        }
        multiply(tile, directions, directions->rows, products);
        for (ptrdiff_t i = 0; i < count; i++)
            lengths[first + i] = sqrt(sum_of_squares(row_of(products, i), directions->rows));
    }
}

/* The mean distance to the boundaries between the class predicted and all others, over the distance of the features to
   their mean (fDBD). For a class 1 / the distances of its weights to those of all others stand in the row of `inverses`
   that `places` says, with 1 for its own. There are d + classes numbers to spare. */
void boundary_distances(const matrix *features, const matrix *logits, const double *mean, const matrix *inverses,
                        const ptrdiff_t *places, double *spare, double *scores)
{
    ptrdiff_t d = features->columns, classes = logits->columns;
    double *z = spare, *f = spare + d;
    for (ptrdiff_t i = 0; i < features->rows; i++) {
        read_row(logits, i, f);
        double largest = largest_of(f, classes);
        const double *inverse = row_of(inverses, places[place_of(largest, f, classes)]);
        for (ptrdiff_t j = 0; j < classes; j++)
            f[j] = (largest - f[j]) * inverse[j];
        read_row(features, i, z);
        for (ptrdiff_t j = 0; j < d; j++)
            z[j] -= mean[j];
        scores[i] = sum(f, classes) / (double)(classes - 1) / sqrt(sum_of_squares(z, d));
    }
}

/* How far the centred features point along the weights of the class predicted, and alpha of their L1 norm (NCI). There
   are d + classes numbers to spare. */
void collapse_scores(const matrix *features, const matrix *logits, const matrix *weight, const double *mean,
                     double alpha, double *spare, double *scores)
{
    ptrdiff_t d = features->columns, classes = logits->columns;
    double *z = spare, *f = spare + d;
    for (ptrdiff_t i = 0; i < features->rows; i++) {
        read_row(logits, i, f);
        const double *w = row_of(weight, place_of(largest_of(f, classes), f, classes));
        read_row(features, i, z);
        double size = sum_of_sizes(z, d);
        for (ptrdiff_t j = 0; j < d; j++)
            z[j] -= mean[j];
        scores[i] = dot(w, z, d) / sqrt(sum_of_squares(z, d)) + alpha * size;
    }
}

/* Write the sum of the sizes of each row's numbers. `row` has room for a row of doubles. */
void sums_of_sizes(const matrix *m, double *sums, double *row)
{
    for (ptrdiff_t i = 0; i < m->rows; i++) {
        read_row(m, i, row);
        sums[i] = sum_of_sizes(row, m->columns);
    }
}
