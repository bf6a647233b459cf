/* A batch of a stream: its rows added to the moments, and the coefficients that follow from these.

   Matrices here are of doubles. A co-moment is symmetric, so that its rows are as good as its columns. */

#include "rows.h"

/* Columns whose products are found at once, in registers. The panels of products.h are narrower, and made for many rows
   whose sums are kept from block to block; here a Cholesky factor is in panels too, and both need the same products. */
enum { PANEL = 8 };

/* total + error = a + b (Knuth 1969). */
static inline double two_sum(double a, double b, double *error)
{
    double total = a + b, part = total - a;
    *error = (a - (total - part)) + (b - part);
    return total;
}

/* high + low + more, as a new high and low (Kahan 1965). */
static inline double compensated(double high, double low, double more, double *new_low)
{
    double rest = more + low;
    double total = high + rest;
    *new_low = rest - (total - high);
    return total;
}

/* The rows [features, score] about their mean, and the step from the mean before to it, weighed, as one more row: the
   block (b + 1, d + 1) whose squares the co-moment grows by. */
static void centre(const matrix *features, const double *scores, double before, const double *mean,
                   const double *mean_low, double *middle, const matrix *block)
{
    ptrdiff_t b = features->rows, d = features->columns;
    double weight = sqrt(before * (double)b / (before + (double)b)), *step = row_of(block, b);
    memset(middle, 0, (size_t)(d + 1) * sizeof *middle);
    for (ptrdiff_t i = 0; i < b; i++) {
        double *restrict x = row_of(block, i);
        read_row(features, i, x);
        x[d] = scores[i];
        for (ptrdiff_t j = 0; j <= d; j++) {
            x[j] -= mean[j];
            middle[j] += x[j];
        }
    }
    for (ptrdiff_t j = 0; j <= d; j++)
        middle[j] /= (double)b;
    for (ptrdiff_t i = 0; i < b; i++) {
        double *restrict x = row_of(block, i);
        for (ptrdiff_t j = 0; j <= d; j++)
            x[j] -= middle[j];
    }
    for (ptrdiff_t j = 0; j <= d; j++) {
        middle[j] -= mean_low[j];
        step[j] = middle[j] * weight;
    }
}

/* The mean moves by a share of the step to that of the batch, which stands in its place. */
static void move_mean(const double *mean, const double *mean_low, double share, ptrdiff_t n, double *new_mean,
                      double *new_mean_low)
{
    for (ptrdiff_t j = 0; j < n; j++)
        new_mean[j] *= share;
    for (ptrdiff_t j = 0; j < n; j++) {
        double error;
        new_mean[j] = two_sum(mean[j], new_mean[j], &error);
        new_mean_low[j] = mean_low[j] + error;
    }
}

/* One row about its own mean is nothing: the co-moment grows by the square of the step x. */
static void add_square(const double *restrict x, const matrix *old, const matrix *old_low, const matrix *new,
                       const matrix *new_low)
{
    for (ptrdiff_t i = 0; i < old->rows; i++) {
        const double *restrict high = row_of(old, i), *restrict low = row_of(old_low, i);
        double *restrict total = row_of(new, i), *restrict rest = row_of(new_low, i);
        for (ptrdiff_t j = 0; j < old->columns; j++)
            total[j] = compensated(high[j], low[j], x[i] * x[j], &rest[j]);
    }
}

/* Columns of a block, PANEL of them in one piece at a time, the last ones followed by zeros. */
static void pack(const matrix *block, double *restrict packed)
{
    for (ptrdiff_t j = 0; j < block->columns; j += PANEL) {
        ptrdiff_t n = smaller_of(PANEL, block->columns - j);
        for (ptrdiff_t i = 0; i < block->rows; i++, packed += PANEL)
            for (ptrdiff_t c = 0; c < PANEL; c++)
                packed[c] = c < n ? row_of(block, i)[j + c] : 0.0;
    }
}

/* The products of each column of one panel with each of another, over all rows, each added up in the same order: they
   are symmetric to the bit. Half a panel at a time, so that all sums stay in registers. */
static void panel_products(const double *restrict one, const double *restrict other, ptrdiff_t rows,
                           double *restrict products)
{
    for (int half = 0; half < PANEL; half += PANEL / 2) {
        double sums[PANEL / 2][PANEL] = {{0.0}};
        for (ptrdiff_t i = 0; i < rows; i++)
            for (int a = 0; a < PANEL / 2; a++)
#pragma omp simd
                for (int c = 0; c < PANEL; c++)
                    sums[a][c] += one[i * PANEL + half + a] * other[i * PANEL + c];
        for (int a = 0; a < PANEL / 2; a++)
            memcpy(products + (half + a) * PANEL, sums[a], sizeof sums[a]);
    }
}

/* Products of two panels' columns, to where they belong in a matrix (p, p) from row i and column j on. */
static void put(const double *restrict products, ptrdiff_t i, ptrdiff_t j, const matrix *to)
{
    ptrdiff_t m = smaller_of(PANEL, to->columns - i);
    ptrdiff_t n = smaller_of(PANEL, to->columns - j);
    for (ptrdiff_t a = 0; a < m; a++)
        memcpy(row_of(to, i + a) + j, products + a * PANEL, (size_t)n * sizeof *products);
}

static void transpose(const double *restrict products, double *restrict mirrored)
{
    for (int a = 0; a < PANEL; a++)
        for (int c = 0; c < PANEL; c++)
            mirrored[c * PANEL + a] = products[a * PANEL + c];
}

/* The products of a block's columns (p, p). */
static void find_products(const double *packed, ptrdiff_t rows, const matrix *to)
{
    double products[PANEL * PANEL], mirrored[PANEL * PANEL];
    for (ptrdiff_t i = 0; i < to->columns; i += PANEL)
        for (ptrdiff_t j = 0; j <= i; j += PANEL) {
            panel_products(packed + i * rows, packed + j * rows, rows, products);
            put(products, i, j, to);
            if (i != j) {
                transpose(products, mirrored);
                put(mirrored, j, i, to);
            }
        }
}

/* The co-moment grows by the products of the block's columns, which wait where what follows its digits will be. */
static void grow_comoment(const double *packed, ptrdiff_t rows, const matrix *old, const matrix *old_low,
                         const matrix *new, const matrix *new_low)
{
    find_products(packed, rows, new_low);
    for (ptrdiff_t i = 0; i < old->rows; i++) {
        const double *restrict high = row_of(old, i), *restrict low = row_of(old_low, i);
        double *restrict total = row_of(new, i), *restrict rest = row_of(new_low, i);
        for (ptrdiff_t j = 0; j < old->columns; j++)
            total[j] = compensated(high[j], low[j], rest[j], &rest[j]);
    }
}

/* Which columns of moments of `rows` rows vary by more than `constant` times their mean and more than rounding does, and
   by enough to be squared; and how many. */
static ptrdiff_t find_varying(const matrix *comoment, const double *mean, const double *rounding, double rows,
                              double constant, double underflowing, unsigned char *varies)
{
    ptrdiff_t d = comoment->rows - 1, many = 0;
    for (ptrdiff_t j = 0; j < d; j++) {
        double least = constant * mean[j];
        double enough = fmax(fmax(rows * (least * least), rounding[j]), underflowing);
        varies[j] = row_of(comoment, j)[j] > enough;
        many += varies[j];
    }
    return many;
}

/* Moments of `before` rows with a batch of rows added: the mean, and what follows its digits, in two rows, and so the
   co-moment. The block has the rows whose squares were added, and `packed` is room for a copy of it, its columns rounded
   up to panels. `found` is the sum of all squares, and how many columns vary. */
void add_batch(const matrix *features, const double *scores, double before, const double *mean, const double *mean_low,
               const matrix *comoment, const matrix *comoment_low, const double *rounding, double constant,
               double underflowing, const matrix *new_mean, const matrix *new_comoment, const matrix *block,
               double *packed, unsigned char *varies, double *found)
{
    ptrdiff_t b = features->rows, d = features->columns;
    double after = before + (double)b;
    matrix high = *new_comoment, low = *new_comoment;
    low.first += (d + 1) * low.stride;
    centre(features, scores, before, mean, mean_low, row_of(new_mean, 0), block);
    move_mean(mean, mean_low, (double)b / after, d + 1, row_of(new_mean, 0), row_of(new_mean, 1));
    if (b == 1) {
        add_square(row_of(block, b), comoment, comoment_low, &high, &low);
    } else {
        pack(block, packed);
        grow_comoment(packed, b + 1, comoment, comoment_low, &high, &low);
    }
    high.rows = d + 1;
    found[0] = 0.0;
    for (ptrdiff_t j = 0; j <= d; j++)
        found[0] += row_of(&high, j)[j];
    found[1] = (double)find_varying(&high, row_of(new_mean, 0), rounding, after, constant, underflowing, varies);
}

/* Of the columns that vary: the largest sum of squares over the square of the column's norm before, and what rounding
   may be of these sums, as shares of them, added up. */
void find_growth(const matrix *comoment, const double *rounding, const unsigned char *varies, const double *norm,
                 double *found)
{
    found[0] = found[1] = 0.0;
    for (ptrdiff_t j = 0, k = 0; j < comoment->rows - 1; j++)
        if (varies[j]) {
            double square = row_of(comoment, j)[j];
            found[0] = fmax(found[0], square / norm[k] / norm[k]);
            found[1] += rounding[j] / square;
            k++;
        }
}

/* The rows and columns of a co-moment that vary, and the last of each, in panels: PANEL rows at a time, of each column
   the numbers in these rows, and only up to the diagonal. What is behind the last row is the unit matrix's. */
static ptrdiff_t gather(const matrix *comoment, const unsigned char *varies, ptrdiff_t *which, double *packed)
{
    ptrdiff_t d = comoment->rows - 1, k = 0;
    for (ptrdiff_t i = 0; i < d; i++)
        if (varies[i])
            which[k++] = i;
    which[k++] = d;
    ptrdiff_t columns = (k + PANEL - 1) / PANEL * PANEL;
    for (ptrdiff_t i = 0; i < columns; i++) {
        double *to = packed + i / PANEL * PANEL * columns + i % PANEL;
        for (ptrdiff_t j = 0; j <= i; j++)
            to[j * PANEL] = i < k ? row_of(comoment, which[i])[which[j]] : i == j;
    }
    return k;
}

/* The Cholesky factor of a square of PANEL numbers, of each column in one piece, of which `products` are taken away
   first; 1 over its diagonal; and whether there is one. */
static int factor_square(double *restrict square, const double *products, double *restrict inverse_diagonal)
{
    for (int j = 0; j < PANEL; j++) {
        for (int i = j; i < PANEL; i++) {
            double left = square[j * PANEL + i] - products[j * PANEL + i];
            for (int c = 0; c < j; c++)
                left -= square[c * PANEL + i] * square[c * PANEL + j];
            square[j * PANEL + i] = left;
        }
        if (!(square[j * PANEL + j] > 0.0)) /* NaN fails this comparison too. */
            return 0;
        double diagonal = sqrt(square[j * PANEL + j]);
        inverse_diagonal[j] = 1.0 / diagonal;
        for (int i = j; i < PANEL; i++)
            square[j * PANEL + i] *= inverse_diagonal[j];
        square[j * PANEL + j] = diagonal;
    }
    return 1;
}

/* PANEL rows of the factor in as many columns, given the factor's square on the diagonal of these columns. */
static void factor_rows(double *restrict rows, const double *products, const double *square,
                        const double *inverse_diagonal)
{
    for (int j = 0; j < PANEL; j++) {
        double left[PANEL];
        for (int i = 0; i < PANEL; i++)
            left[i] = rows[j * PANEL + i] - products[j * PANEL + i];
        for (int c = 0; c < j; c++)
            for (int i = 0; i < PANEL; i++)
                left[i] -= rows[c * PANEL + i] * square[c * PANEL + j];
        for (int i = 0; i < PANEL; i++)
            rows[j * PANEL + i] = left[i] * inverse_diagonal[j];
    }
}

/* The Cholesky factor of a matrix in panels, in its place, and whether there is one. Where all is in the processor's
   caches this takes less time than LAPACK's, which copies parts of the matrix into such panels. */
static int cholesky(double *packed, ptrdiff_t columns)
{
    double products[PANEL * PANEL], inverse_diagonal[PANEL];
    for (ptrdiff_t j = 0; j < columns; j += PANEL) {
        double *own = packed + j * columns;
        panel_products(own, own, j, products);
        if (!factor_square(own + j * PANEL, products, inverse_diagonal))
            return 0;
        for (ptrdiff_t i = j + PANEL; i < columns; i += PANEL) {
            double *other = packed + i * columns;
            panel_products(own, other, j, products);
            factor_rows(other + j * PANEL, products, own + j * PANEL, inverse_diagonal);
        }
    }
    return 1;
}

/* x (k,) <- L'^-1 x for a factor in panels. */
static void solve_transposed(const double *packed, ptrdiff_t columns, ptrdiff_t k, double *restrict x)
{
    for (ptrdiff_t i = k - 1; i >= 0; i--) {
        const double *restrict l = packed + i / PANEL * PANEL * columns + i % PANEL;
        x[i] /= l[i * PANEL];
        for (ptrdiff_t j = 0; j < i; j++)
            x[j] -= l[j * PANEL] * x[i];
    }
}

/* What a fit with these coefficients is above the mean score at the mean, and the sum of squared errors about that. */
void find_errors(const matrix *comoment, const double *mean, const double *coef, double *error_weights, double *found)
{
    ptrdiff_t d = comoment->rows - 1;
    memcpy(error_weights, coef, (size_t)d * sizeof *coef);
    error_weights[d] = -1.0;
    found[0] = dot(mean, error_weights, d + 1);
    found[1] = 0.0;
    for (ptrdiff_t i = 0; i <= d; i++)
        found[1] += error_weights[i] * dot(row_of(comoment, i), error_weights, d + 1);
}

/* Least-squares coefficients (d,) of the columns that vary, 0 for the others, from a co-moment that has a factor.

   With C and c the co-moment of k such columns and theirs with the score, the last row of the Cholesky factor of both is
   L^-1 c, L that of C, and the coefficients are L'^-1 of that. `found` is whether there is a factor, and the
   fit's errors as `find_errors` has them. */
void solve_by_factor(const matrix *comoment, const double *mean, const unsigned char *varies, ptrdiff_t *which,
                     double *packed, double *coef, double *error_weights, double *found)
{
    ptrdiff_t d = comoment->rows - 1, k = gather(comoment, varies, which, packed) - 1;
    ptrdiff_t columns = (k + PANEL) / PANEL * PANEL;
    double *last = packed + k / PANEL * PANEL * columns + k % PANEL;
    last[k * PANEL] = 1.0 + 2.0 * last[k * PANEL]; /* So that there is a factor where scores are fitted exactly, too. */
    found[0] = cholesky(packed, columns);
    if (!found[0])
        return;
    for (ptrdiff_t j = 0; j < k; j++)
        error_weights[j] = last[j * PANEL];
    solve_transposed(packed, columns, k, error_weights);
    memset(coef, 0, (size_t)d * sizeof *coef);
    for (ptrdiff_t j = 0; j < k; j++)
        coef[which[j]] = error_weights[j];
    find_errors(comoment, mean, coef, error_weights, found + 1);
}

static void add_times(double factor, const double *restrict x, ptrdiff_t n, double *restrict y)
{
    for (ptrdiff_t j = 0; j < n; j++)
        y[j] += factor * x[j];
}

/* Take from a row what it has of the directions of a basis (m, d), and add what that is to its coordinates (m,). */
static void take_projection(const matrix *basis, double *restrict coordinates, double *again, double *restrict rest)
{
    for (ptrdiff_t i = 0; i < basis->rows; i++) {
        again[i] = dot(row_of(basis, i), rest, basis->columns);
        coordinates[i] += again[i];
    }
    for (ptrdiff_t i = 0; i < basis->rows; i++)
        add_times(-again[i], row_of(basis, i), basis->columns, rest);
}

/* One more row of an interpolation of m rows: its basis, its inverse, its coefficients, the columns that varied.

   As in interpolation.py, for one row. `found` is whether the row is independent of the others, and what it adds to the
   trace of the inverses; `room` is for d + 2 m numbers. */
void add_to_interpolation(const matrix *features, double score, const double *origin, double origin_score,
                          const double *coef, const matrix *basis, const matrix *inverse, double *new_coef,
                          const matrix *new_basis, const matrix *new_inverse, unsigned char *varied, double *room,
                          double *found)
{
    ptrdiff_t d = features->columns, m = basis->rows;
    double *x = room, *coordinates = room + d, *again = coordinates + m;
    double *direction = row_of(new_basis, m), *beside = row_of(new_inverse, m);
    read_row(features, 0, x);
    for (ptrdiff_t j = 0; j < d; j++) {
        x[j] -= origin[j];
        varied[j] |= x[j] != 0.0;
    }
    memcpy(direction, x, (size_t)d * sizeof *x);
    memset(coordinates, 0, (size_t)m * sizeof *coordinates);
    take_projection(basis, coordinates, again, direction);
    take_projection(basis, coordinates, again, direction);
    double length = sqrt(dot(direction, direction, d)), residual = score - origin_score - dot(x, coef, d);
    found[0] = length > 0.0; /* NaN fails this comparison too. */
    if (!found[0])
        return;
    for (ptrdiff_t j = 0; j < d; j++) {
        direction[j] /= length;
        new_coef[j] = coef[j] + residual / length * direction[j];
    }
    memset(beside, 0, (size_t)m * sizeof *beside);
    for (ptrdiff_t i = 0; i < m; i++) {
        memcpy(row_of(new_basis, i), row_of(basis, i), (size_t)d * sizeof *x);
        memcpy(row_of(new_inverse, i), row_of(inverse, i), (size_t)m * sizeof *x);
        row_of(new_inverse, i)[m] = 0.0;
        add_times(-coordinates[i] / length, row_of(inverse, i), i + 1, beside);
    }
    beside[m] = 1.0 / length;
    double sum = 0.0;
    for (ptrdiff_t i = 0; i <= m; i++)
        sum += beside[i];
    found[1] = dot(beside, beside, m + 1) + sum * sum;
}
