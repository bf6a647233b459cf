/* The columns of a contrast: a row's direction, its distance and its scores, as src/truing/contrast/columns.py says. */

#include <math.h>

#include "products.h"
#include "rows.h"

/* Larger numbers are not squared. */
#define SQUARABLE 1e150

/* Rows whose lengths are found before anything is done with them: no row waits for the root of the one before. */
#define ROWS 32

static inline double clipped(double number, double most)
{
    return number > most ? most : number < -most ? -most : number; /* NaN stays. */
}

/* Feature j less its origin and times its factor; `bytes` and `clips` are constants. */
INLINE double scaled(const char *row, ptrdiff_t bytes, ptrdiff_t j, const double *origin, const double *factor,
                     int clips)
{
    double number = (number_of(row, bytes, j) - origin[j]) * factor[j];
    return clips ? clipped(number, SQUARABLE) : number;
}

/* The same of four features from j on, which stand as floats or doubles. */
INLINE void scale_four(const char *features, ptrdiff_t bytes, const double *origin, const double *factor, ptrdiff_t j,
                       int clips, four *numbers)
{
    read_four(features, bytes, j, numbers);
    *numbers = (*numbers - *(const four *)(origin + j)) * *(const four *)(factor + j);
    for (int i = 0; clips && i < 4; i++)
        (*numbers)[i] = clipped((*numbers)[i], SQUARABLE);
}

/* The sum of squares of a scaled row, and its product with coef. */
typedef struct {
    double square;
    double product;
} sums;

INLINE sums sums_of_row(const char *row, ptrdiff_t bytes, ptrdiff_t d, const double *origin, const double *factor,
                        int clips, const double *coef)
{
    four squares[LANES / 4] = {{0}}, products[LANES / 4] = {{0}};
    sums rest = {0, 0};
    ptrdiff_t j = 0;
    for (; j + LANES <= d; j += LANES) {
        float floats[LANES];
        const char *some = lanes_of_row(row, bytes, j, floats);
        for (ptrdiff_t k = 0; k < LANES / 4; k++) {
            four numbers;
            scale_four(some, bytes == 8 ? 8 : 4, origin + j, factor + j, 4 * k, clips, &numbers);
            squares[k] += numbers * numbers;
            products[k] += numbers * *(const four *)(coef + j + 4 * k);
        }
    }
    for (; j < d; j++) {
        double number = scaled(row, bytes, j, origin, factor, clips);
        rest.square = MULTIPLY_ADD(number, number, rest.square);
        rest.product = MULTIPLY_ADD(number, coef[j], rest.product);
    }
    rest.square += sum_of_fours(squares);
    rest.product += sum_of_fours(products);
    return rest;
}

/* The same for rows of one type, one after another: numbers are clipped where they could not be squared. */
INLINE void sums_of_rows(const matrix *features, ptrdiff_t first, ptrdiff_t count, ptrdiff_t bytes,
                         const double *origin, const double *factor, const double *coef, sums *restrict out)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        const char *row = bytes_of_row(features, first + i);
        out[i] = sums_of_row(row, bytes, features->columns, origin, factor, 0, coef);
        if (!(out[i].square <= SQUARABLE * SQUARABLE))
            out[i] = sums_of_row(row, bytes, features->columns, origin, factor, 1, coef);
    }
}

static void find_sums(const matrix *features, ptrdiff_t first, ptrdiff_t count, const double *origin,
                      const double *factor, const double *coef, sums *restrict out)
{
    if (features->bytes == 8)
        sums_of_rows(features, first, count, 8, origin, factor, coef, out);
    else if (features->bytes == 4)
        sums_of_rows(features, first, count, 4, origin, factor, coef, out);
    else
        sums_of_rows(features, first, count, 2, origin, factor, coef, out);
}

/* Write a row, scaled, and return the sum of its squares. */
INLINE double write_scaled(const char *row, ptrdiff_t bytes, ptrdiff_t d, const double *origin, const double *factor,
                           double *restrict out)
{
    four squares[LANES / 4] = {{0}};
    double rest = 0;
    ptrdiff_t j = 0;
    for (; j + LANES <= d; j += LANES) {
        float floats[LANES];
        const char *some = lanes_of_row(row, bytes, j, floats);
        for (ptrdiff_t k = 0; k < LANES / 4; k++) {
            four numbers;
            scale_four(some, bytes == 8 ? 8 : 4, origin + j, factor + j, 4 * k, 0, &numbers);
            squares[k] += numbers * numbers;
            *(four *)(out + j + 4 * k) = numbers;
        }
    }
    for (; j < d; j++) {
        out[j] = scaled(row, bytes, j, origin, factor, 0);
        rest = MULTIPLY_ADD(out[j], out[j], rest);
    }
    return rest + sum_of_fours(squares);
}

/* Write row i, scaled, and return its length: numbers are clipped where they could not be squared. */
static double scaled_row(const matrix *features, ptrdiff_t i, const double *origin, const double *factor,
                         double *restrict out)
{
    const char *row = bytes_of_row(features, i);
    ptrdiff_t d = features->columns, bytes = features->bytes;
    double square = bytes == 8   ? write_scaled(row, 8, d, origin, factor, out)
                    : bytes == 4 ? write_scaled(row, 4, d, origin, factor, out)
                                 : write_scaled(row, 2, d, origin, factor, out);
    if (square <= SQUARABLE * SQUARABLE)
        return sqrt(square);
    for (ptrdiff_t j = 0; j < d; j++)
        out[j] = clipped(out[j], SQUARABLE);
    return sqrt(sum_of_squares(out, d));
}

/* Score k of a row in its own deviations; those beside the first are bounded. */
static inline double standard_score(const double *scores, ptrdiff_t k, const double *origin, const double *scale,
                                    double farthest)
{
    double number = (scores[k] - origin[k]) / scale[k];
    return k > 0 ? clipped(number, farthest) : number;
}

/* The columns of a row behind its directions, and a one; return what its scaled features are to be multiplied by. */
static double write_beside(const double *scores, ptrdiff_t number, const double *score_origin,
                           const double *score_scale, const double *bounds, double distance, double *restrict out)
{
    out[0] = distance > bounds[0] ? bounds[0] : distance;
    for (ptrdiff_t k = 0; k < number; k++)
        out[1 + k] = standard_score(scores, k, score_origin, score_scale, bounds[1]);
    out[1 + number] = 1.0;
    return 1 / (distance > 0 ? distance : 1.0);
}

/* Write the columns of some rows and a one behind them. */
void write_columns(const matrix *features, const matrix *scores, const double *origin, const double *factor,
                   const double *score_origin, const double *score_scale, const double *bounds, const matrix *out)
{
    ptrdiff_t d = features->columns;
    for (ptrdiff_t i = 0; i < features->rows; i++) {
        double *restrict row = row_of(out, i);
        double distance = scaled_row(features, i, origin, factor, row);
        double per_length = write_beside(row_of(scores, i), scores->columns, score_origin, score_scale, bounds,
                                         distance, row + d);
        for (ptrdiff_t j = 0; j < d; j++)
            row[j] *= per_length;
    }
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
        ptrdiff_t count = smaller_of(at_once, features->rows - first);
        for (ptrdiff_t i = 0; i < count; i++) {
            const double *own = row_of(scores, first + i);
            double *restrict sums = row_of(by_class, classes[first + i]);
            double distance = scaled_row(features, first + i, origin, factor, row);
            double per_length =
                write_beside(own, scores->columns, score_origin, score_scale, bounds, distance, row + d);
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

/* The columns' products with coef, and what is added for each class. */
void score_columns(const matrix *features, const matrix *scores, const ptrdiff_t *classes, const double *origin,
                   const double *factor, const double *score_origin, const double *score_scale, const double *bounds,
                   const double *coef, const double *of_class, double *restrict out)
{
    sums found[ROWS];
    const double *beside = coef + features->columns;
    for (ptrdiff_t first = 0; first < features->rows; first += ROWS) {
        ptrdiff_t count = smaller_of(ROWS, features->rows - first);
        find_sums(features, first, count, origin, factor, coef, found);
        for (ptrdiff_t i = 0; i < count; i++) {
            const double *own = row_of(scores, first + i);
            double distance = sqrt(found[i].square);
            double sum = found[i].product / (distance > 0 ? distance : 1.0);
            sum = MULTIPLY_ADD(beside[0], distance > bounds[0] ? bounds[0] : distance, sum);
            for (ptrdiff_t k = 0; k < scores->columns; k++)
                sum = MULTIPLY_ADD(beside[1 + k], standard_score(own, k, score_origin, score_scale, bounds[1]), sum);
            out[first + i] = sum + of_class[classes[first + i]];
        }
    }
}

/* The mean and the standard deviation of each column, as `_mean_and_spread` of columns.py says; rounding may leave
   something of the latter where there is none. `scratch` has room for four rows of doubles. */
void means_and_deviations(const matrix *m, double *scratch, double *restrict mean, double *restrict deviation)
{
    ptrdiff_t d = m->columns;
    double *restrict row = scratch, *restrict first = row + d, *restrict about = first + d, *restrict unit = about + d;
    read_row(m, 0, first);
    for (ptrdiff_t j = 0; j < d; j++)
        about[j] = unit[j] = deviation[j] = 0.0;
    for (ptrdiff_t i = 0; i < m->rows; i++) {
        read_row(m, i, row);
        for (ptrdiff_t j = 0; j < d; j++)
            about[j] += row[j] - first[j];
    }
    for (ptrdiff_t j = 0; j < d; j++) {
        about[j] /= (double)m->rows;
        mean[j] = first[j] + about[j];
    }
    for (ptrdiff_t i = 0; i < m->rows; i++) {
        read_row(m, i, row);
        for (ptrdiff_t j = 0; j < d; j++) {
            double size = fabs(row[j] - first[j] - about[j]);
            unit[j] = size > unit[j] ? size : unit[j];
        }
    }
    for (ptrdiff_t j = 0; j < d; j++)
        unit[j] = unit[j] > 0 ? unit[j] : 1.0;
    for (ptrdiff_t i = 0; i < m->rows; i++) {
        read_row(m, i, row);
        for (ptrdiff_t j = 0; j < d; j++) {
            double number = (row[j] - first[j] - about[j]) / unit[j];
            deviation[j] += number * number;
        }
    }
    for (ptrdiff_t j = 0; j < d; j++)
        deviation[j] = sqrt(deviation[j] / (double)m->rows) * unit[j];
}
