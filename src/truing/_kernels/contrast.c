/* The marginal likelihoods that a contrast searches, which are sums over few numbers for each of many trials. */

#include <math.h>

#include "numbers.h"

/* A number, but no less than the least; NaN, of which this is not known, stays. */
static inline double no_less(double number, double least)
{
    return number < least ? least : number;
}

/* Columns [1, prior score, y] and their products, of which a symmetric matrix has six that differ. */
enum { ONE_ONE, ONE_PRIOR, ONE_Y, PRIOR_PRIOR, PRIOR_Y, Y_Y, PRODUCTS };

/* The log likelihood of the prior score alone, given all rows' products once class effects are taken out, and the log
   determinant that class effects add. */
static double log_likelihood(const double *left, double log_determinant, double rows, double smallest)
{
    double degrees = rows - 2, most = left[ONE_ONE] * left[PRIOR_PRIOR];
    double determinant = no_less(most - left[ONE_PRIOR] * left[ONE_PRIOR], smallest * most);
    double explained = (left[PRIOR_PRIOR] * left[ONE_Y] * left[ONE_Y] -
                        2 * left[ONE_PRIOR] * left[ONE_Y] * left[PRIOR_Y] +
                        left[ONE_ONE] * left[PRIOR_Y] * left[PRIOR_Y]) /
                       determinant;
    double residual = no_less(left[Y_Y] - explained, smallest * rows);
    return -0.5 * (degrees * log(residual / degrees) + log_determinant + log(determinant));
}

/* Of each of m ratios of class effects, given as logarithms, the log likelihood of the prior score alone: `class_ratio`
   of regression.py. `sums` (c, 3) are those of [1, prior score, y] of each class. */
void class_likelihoods(const double *products, const matrix *sums, const double *counts, double rows, double smallest,
                       const double *logarithms, ptrdiff_t m, double *values)
{
    for (ptrdiff_t trial = 0; trial < m; trial++) {
        double ratio = exp(logarithms[trial]), log_determinant = 0.0, left[PRODUCTS];
        memcpy(left, products, sizeof left);
        for (ptrdiff_t k = 0; k < sums->rows; k++) {
            const double *s = row_of(sums, k);
            double grown = ratio * counts[k], taken = ratio / (1 + grown);
            left[ONE_ONE] -= taken * s[0] * s[0];
            left[ONE_PRIOR] -= taken * s[0] * s[1];
            left[ONE_Y] -= taken * s[0] * s[2];
            left[PRIOR_PRIOR] -= taken * s[1] * s[1];
            left[PRIOR_Y] -= taken * s[1] * s[2];
            left[Y_Y] -= taken * s[2] * s[2];
            log_determinant += log1p(grown);
        }
        values[trial] = log_likelihood(left, log_determinant, rows, smallest);
    }
}

/* A logarithm takes as long as many products. Of a product no larger than this the next factor, which is no larger than
   the number of rows, is in range. */
static const double LARGEST_PRODUCT = 1e200;

/* What weights explain of y's square, whose prior variances (k,) are `factor` times these, and the sum of the logarithms
   of 1 + each prior variance times that of its direction. */
static void explain(const double *spread, const double *variances, const double *squares, ptrdiff_t k, double factor,
                    double *explained, double *log_determinant)
{
    double product = 1.0;
    *explained = *log_determinant = 0.0;
    for (ptrdiff_t i = 0; i < k; i++) {
        double own = factor * spread[i], grown = 1 + own * variances[i];
        *explained += own / grown * squares[i];
        product *= grown;
        if (product > LARGEST_PRODUCT) {
            *log_determinant += log(product);
            product = 1.0;
        }
    }
    *log_determinant += log(product);
}

/* The log Bayes factor for a departure against none: `most_likely_spread` of regression.py. Each row of `spreads` (n, k)
   are the prior variances of the weights in each direction, and each of `factors` (n, m) what these are multiplied by.
   `squares` (k,) are those of the columns' products with y. */
void departure_gains(const matrix *spreads, const double *variances, const double *squares, double total,
                     double degrees, double smallest, const matrix *factors, const matrix *gains)
{
    for (ptrdiff_t i = 0; i < factors->rows; i++)
        for (ptrdiff_t j = 0; j < factors->columns; j++) {
            double explained, log_determinant;
            explain(row_of(spreads, i), variances, squares, spreads->columns, row_of(factors, i)[j], &explained,
                    &log_determinant);
            double residual = no_less(1 - explained / total, smallest);
            row_of(gains, i)[j] = -0.5 * (degrees * log(residual) + log_determinant);
        }
}
