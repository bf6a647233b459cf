/* The columns of a contrast: a row's direction, its distance and its scores, as src/truing/contrast/columns.py says. */

#include <math.h>

#include "products.h"
#include "rows.h"

/* Larger numbers are not squared. */
#define SQUARABLE 1e150

static inline double clipped(double number, double most)
{
    return number > most ? most : number < -most ? -most : number; /* NaN stays. */
}

/* Write features less the origin and times the factor, and return the sum of their squares; `bytes` is a constant. */
INLINE double scaled_squares(const char *row, ptrdiff_t bytes, ptrdiff_t d, const double *origin, const double *factor,
                             double *restrict out)
{
    double squares[LANES] = {0};
    ptrdiff_t j = 0;
    for (; j + LANES <= d; j += LANES)
        for (ptrdiff_t k = 0; k < LANES; k++) {
            double number = (number_of(row, bytes, j + k) - origin[j + k]) * factor[j + k];
            squares[k] = MULTIPLY_ADD(number, number, squares[k]);
            out[j + k] = number;
        }
    double rest = 0;
    for (; j < d; j++) {
        out[j] = (number_of(row, bytes, j) - origin[j]) * factor[j];
        rest = MULTIPLY_ADD(out[j], out[j], rest);
    }
    return sum_of_lanes(squares) + rest;
}

/* Write row i, scaled, and return its length. */
static inline double scaled_row(const matrix *features, ptrdiff_t i, const double *origin, const double *factor,
                                double *restrict out)
{
    const char *row = row_of(features, i);
    ptrdiff_t d = features->columns;
    double square = features->bytes == 8   ? scaled_squares(row, 8, d, origin, factor, out)
                    : features->bytes == 4 ? scaled_squares(row, 4, d, origin, factor, out)
                                           : scaled_squares(row, 2, d, origin, factor, out);
    if (square <= SQUARABLE * SQUARABLE)
        return sqrt(square);
    for (ptrdiff_t j = 0; j < d; j++)
        out[j] = clipped(out[j], SQUARABLE);
    return sqrt(dot((const char *)out, 8, out, d));
}

/* Score k of a row in its own deviations; those beside the first are bounded. */
static inline double standard_score(const double *scores, ptrdiff_t k, const double *origin, const double *scale,
                                    double farthest)
{
    double number = (scores[k] - origin[k]) / scale[k];
    return k > 0 ? clipped(number, farthest) : number;
}

/* Sums of products of the columns and a one behind them, less a shift, and the sums of each class's rows as they are.
   `bounds` are the largest distance and the largest score beside the first; so many rows are in panels at once. */
void sum_columns(const matrix *features, const matrix *scores, const ptrdiff_t *classes, const double *origin,
                 const double *factor, const double *score_origin, const double *score_scale, const double *bounds,
                 const double *shift, ptrdiff_t at_once, double *scratch, const matrix *out, const matrix *by_class)
{
    ptrdiff_t d = features->columns, p = out->columns;
    products all = no_products(scratch, p, at_once);
    double *row = all.row;
    for (ptrdiff_t first = 0; first < features->rows; first += at_once) {
        ptrdiff_t count = at_most(at_once, features->rows - first);
        for (ptrdiff_t i = 0; i < count; i++) {
            const double *own = (const double *)row_of(scores, first + i);
            double *restrict sums = (double *)row_of(by_class, classes[first + i]);
            double distance = scaled_row(features, first + i, origin, factor, row);
            double per_length = 1 / (distance > 0 ? distance : 1.0);
            row[d] = distance > bounds[0] ? bounds[0] : distance;
            for (ptrdiff_t k = 0; k < scores->columns; k++)
                row[d + 1 + k] = standard_score(own, k, score_origin, score_scale, bounds[1]);
            row[p - 1] = 1.0;
            for (ptrdiff_t j = 0; j < d; j++) {
                double direction = row[j] * per_length;
                sums[j] += direction;
                row[j] = direction - shift[j];
            }
            for (ptrdiff_t j = d; j < p; j++) {
                sums[j] += row[j];
                row[j] -= shift[j];
            }
            lay_row(&all, i);
        }
        add_products(&all, count);
    }
    write_products(&all, out);
}

/* The columns' products with coef, and what is added for each class. `row` has room for the features of one. */
void score_columns(const matrix *features, const matrix *scores, const ptrdiff_t *classes, const double *origin,
                   const double *factor, const double *score_origin, const double *score_scale, const double *bounds,
                   const double *coef, const double *of_class, double *restrict row, double *restrict out)
{
    ptrdiff_t d = features->columns;
    for (ptrdiff_t i = 0; i < features->rows; i++) {
        const double *own = (const double *)row_of(scores, i);
        double distance = scaled_row(features, i, origin, factor, row);
        double sum = dot((const char *)row, 8, coef, d) / (distance > 0 ? distance : 1.0);
        sum += coef[d] * (distance > bounds[0] ? bounds[0] : distance);
        for (ptrdiff_t k = 0; k < scores->columns; k++)
            sum += coef[d + 1 + k] * standard_score(own, k, score_origin, score_scale, bounds[1]);
        out[i] = sum + of_class[classes[i]];
    }
}
