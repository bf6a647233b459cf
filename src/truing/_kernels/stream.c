/* A batch of a stream: its rows added to the moments, and the coefficients that follow from these.

   Matrices here are of doubles. A co-moment is symmetric, so that its rows are as good as its columns. */

#include "products.h"
#include "rows.h"

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

/* Columns of a block in panels, as those of products.h, which are filled up with zeros to make whole tiles. */
static void pack(const matrix *block, double *restrict packed, ptrdiff_t from_panel_to_panel)
{
    ptrdiff_t p = block->columns, whole = PANEL_COLUMNS * TILE;
    for (ptrdiff_t j = 0; j < (p + whole - 1) / whole * whole; j += PANEL_COLUMNS) {
        double *restrict to = packed + j / PANEL_COLUMNS * from_panel_to_panel;
        ptrdiff_t n = smaller_of(PANEL_COLUMNS, p - j);
        for (ptrdiff_t i = 0; i < block->rows; i++, to += PANEL_COLUMNS)
            for (ptrdiff_t c = 0; c < PANEL_COLUMNS; c++)
                to[c] = c < n ? row_of(block, i)[j + c] : 0.0;
    }
}

/* The rows and columns of a block of products: as many rows of tiles as make it square. */
enum { SQUARE = PANEL_COLUMNS * TILE };

/* Put products (SQUARE, SQUARE) where they belong in a matrix (p, p), from row i and column j on. */
static void put(const double *restrict products, ptrdiff_t i, ptrdiff_t j, const matrix *to)
{
    ptrdiff_t m = smaller_of(SQUARE, to->columns - i), n = smaller_of(SQUARE, to->columns - j);
    for (ptrdiff_t a = 0; a < m; a++)
        if (n == SQUARE)
            memcpy(row_of(to, i + a) + j, products + a * SQUARE, SQUARE * sizeof *products);
        else
            memcpy(row_of(to, i + a) + j, products + a * SQUARE, (size_t)n * sizeof *products);
}

static void transpose(const double *restrict products, double *restrict mirrored)
{
    for (int a = 0; a < SQUARE; a++)
        for (int c = 0; c < SQUARE; c++)
            mirrored[c * SQUARE + a] = products[a * SQUARE + c];
}

/* The products of a block's columns (p, p). Those of two columns are added up in the same order on either side of the
   diagonal: they are symmetric to the bit. */
static void find_products(const double *packed, ptrdiff_t from_panel_to_panel, ptrdiff_t rows, const matrix *to)
{
    numbers products[SQUARE][TILE], mirrored[SQUARE][TILE];
    ptrdiff_t next = from_panel_to_panel / PANEL_COLUMNS;
    for (ptrdiff_t i = 0; i < to->columns; i += SQUARE)
        for (ptrdiff_t j = 0; j <= i; j += SQUARE) {
            const numbers *right = (const numbers *)packed + j / PANEL_COLUMNS * next;
            for (ptrdiff_t t = 0; t < TILE; t++) {
                const numbers *left = (const numbers *)packed + (i / PANEL_COLUMNS + t) * next;
                multiply_panels((const double *)left, right, next, rows, products + t * PANEL_COLUMNS);
            }
            put((const double *)products, i, j, to);
            if (i != j) {
                transpose((const double *)products, (double *)mirrored);
                put((const double *)mirrored, j, i, to);
            }
        }
}

/* The co-moment grows by the products of the block's columns, which wait where what follows its digits will be. */
static void grow_comoment(const double *packed, ptrdiff_t from_panel_to_panel, ptrdiff_t rows, const matrix *old,
                          const matrix *old_low, const matrix *new, const matrix *new_low)
{
    find_products(packed, from_panel_to_panel, rows, new_low);
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

/* Of the columns that vary: the largest sum of squares; how many times such a sum is the square of the column's norm (k,)
   before, at most, infinite without norms; and what rounding may be of these sums, as shares of them, added up. */
static void find_growth(const matrix *comoment, const double *rounding, const unsigned char *varies, const double *norm,
                        int has_norms, double *found)
{
    double largest = 0.0, times = 0.0, share = 0.0;
    for (ptrdiff_t j = 0, k = 0; j < comoment->rows - 1; j++)
        if (varies[j]) {
            double square = row_of(comoment, j)[j];
            largest = fmax(largest, square);
            times = fmax(times, has_norms ? square / norm[k] / norm[k] : INFINITY);
            share += rounding[j] / square;
            k++;
        }
    found[0] = largest;
    found[1] = times;
    found[2] = share;
}

/* Moments of `before` rows with a batch of rows added: the mean and what follows its digits, a row of `sums` each, and so
   the co-moment, d + 1 rows each. The block has the rows whose squares were added, and `room` is for (d + 12) (b + 3) + 4
   numbers, where b is not 1. `found` is the sum of all squares, how many columns vary, and what `find_growth` has, given
   so many norms, if they are of as many columns. */
void add_batch(const matrix *features, const double *scores, double before, const double *mean, const double *mean_low,
               const matrix *comoment, const matrix *comoment_low, const double *rounding, double constant,
               double underflowing, const double *norm, ptrdiff_t norms, const matrix *sums, const matrix *block,
               double *room, unsigned char *varies, double *found)
{
    ptrdiff_t b = features->rows, d = features->columns;
    double after = before + (double)b;
    double *new_mean = row_of(sums, 0), *new_mean_low = row_of(sums, 1);
    matrix high = *sums, low = *sums;
    high.rows = low.rows = d + 1;
    high.first = bytes_of_row(sums, 2);
    low.first = bytes_of_row(sums, d + 3);
    centre(features, scores, before, mean, mean_low, new_mean, block);
    move_mean(mean, mean_low, (double)b / after, d + 1, new_mean, new_mean_low);
    if (b == 1) {
        add_square(row_of(block, b), comoment, comoment_low, &high, &low);
    } else {
        ptrdiff_t from_panel_to_panel = (b + 1) * PANEL_COLUMNS + APART;
        double *packed = first_aligned(room);
        pack(block, packed, from_panel_to_panel);
        grow_comoment(packed, from_panel_to_panel, b + 1, comoment, comoment_low, &high, &low);
    }
    found[0] = 0.0;
    for (ptrdiff_t j = 0; j <= d; j++)
        found[0] += row_of(&high, j)[j];
    ptrdiff_t many = find_varying(&high, new_mean, rounding, after, constant, underflowing, varies);
    found[1] = (double)many;
    find_growth(&high, rounding, varies, norm, many == norms, found + 2);
}

/* A symmetric matrix in panels: PANEL_COLUMNS rows at a time, of each column the numbers in these rows, and only up to
   the diagonal. Behind the last row is the unit matrix's, and then zeros to make a whole tile of every panel. */
typedef struct {
    double *first;
    ptrdiff_t rows;
    ptrdiff_t panels;
    ptrdiff_t from_panel_to_panel;
} lower;

static inline double *panel_of(const lower *square, ptrdiff_t q)
{
    return square->first + q * square->from_panel_to_panel;
}

/* The rows and columns of a co-moment that vary, and the last of each; they are told in `which`. */
static lower gather(const matrix *comoment, const unsigned char *varies, ptrdiff_t *which, double *room)
{
    ptrdiff_t d = comoment->rows - 1, k = 0;
    for (ptrdiff_t i = 0; i < d; i++)
        if (varies[i])
            which[k++] = i;
    which[k++] = d;
    ptrdiff_t panels = (k + PANEL_COLUMNS - 1) / PANEL_COLUMNS, columns = panels * PANEL_COLUMNS;
    lower square = {first_aligned(room), k, panels, columns * PANEL_COLUMNS + APART};
    memset(panel_of(&square, panels), 0, (size_t)((TILE - 1) * square.from_panel_to_panel) * sizeof(double));
    for (ptrdiff_t j = 0; j < columns; j++)
        for (ptrdiff_t q = j / PANEL_COLUMNS; q < panels; q++) {
            const double *row = j < k ? row_of(comoment, which[j]) : NULL;
            ptrdiff_t first = q * PANEL_COLUMNS;
            double *to = panel_of(&square, q) + j * PANEL_COLUMNS;
            if (row && k == d + 1 && first + PANEL_COLUMNS <= k) /* They lie side by side. */
                memcpy(to, row + first, PANEL_COLUMNS * sizeof *to);
            else
                for (ptrdiff_t i = first; i < first + PANEL_COLUMNS; i++)
                    to[i - first] = row && i < k ? row[which[i]] : i == j;
        }
    return square;
}

/* The Cholesky factor of a square of PANEL_COLUMNS numbers, of each column in one piece, of which `products` are taken
   away first; 1 over its diagonal; and whether there is one. */
static int factor_square(double *restrict square, const numbers products[PANEL_COLUMNS][TILE],
                         double *restrict inverse_diagonal)
{
    for (int j = 0; j < PANEL_COLUMNS; j++) {
        for (int i = j; i < PANEL_COLUMNS; i++) {
            double left = square[j * PANEL_COLUMNS + i] - products[j][0][i];
            for (int c = 0; c < j; c++)
                left -= square[c * PANEL_COLUMNS + i] * square[c * PANEL_COLUMNS + j];
            square[j * PANEL_COLUMNS + i] = left;
        }
        if (!(square[j * PANEL_COLUMNS + j] > 0.0)) /* NaN fails this comparison too. */
            return 0;
        double diagonal = sqrt(square[j * PANEL_COLUMNS + j]);
        inverse_diagonal[j] = 1.0 / diagonal;
        for (int i = j; i < PANEL_COLUMNS; i++)
            square[j * PANEL_COLUMNS + i] *= inverse_diagonal[j];
        square[j * PANEL_COLUMNS + j] = diagonal;
    }
    return 1;
}

/* Rows of the factor, those of panel t of a tile, in PANEL_COLUMNS columns, given the factor's square on the diagonal of
   these columns. */
static inline void factor_rows(numbers *restrict rows, const numbers products[PANEL_COLUMNS][TILE], ptrdiff_t t,
                               const double *restrict square, const double *restrict inverse_diagonal)
{
    for (int j = 0; j < PANEL_COLUMNS; j++) {
        numbers left = rows[j] - products[j][t];
        for (int c = 0; c < j; c++)
            left -= rows[c] * square[c * PANEL_COLUMNS + j];
        rows[j] = left * inverse_diagonal[j];
    }
}

/* The Cholesky factor of a matrix in panels, in its place, and whether there is one. Where all is in the processor's
   caches this takes less time than LAPACK's, which copies parts of the matrix into such panels. */
static int cholesky(const lower *square)
{
    numbers products[PANEL_COLUMNS][TILE];
    double inverse_diagonal[PANEL_COLUMNS];
    ptrdiff_t next = square->from_panel_to_panel / PANEL_COLUMNS;
    for (ptrdiff_t q = 0; q < square->panels; q++) {
        ptrdiff_t before = q * PANEL_COLUMNS; /* Columns that are factored. */
        double *own = panel_of(square, q), *diagonal = own + before * PANEL_COLUMNS;
        for (ptrdiff_t r = q; r < square->panels; r += TILE) {
            multiply_panels(own, (const numbers *)panel_of(square, r), next, before, products);
            if (r == q && !factor_square(diagonal, products, inverse_diagonal))
                return 0;
            for (ptrdiff_t t = r == q; t < TILE; t++) {
                numbers *rows = (numbers *)panel_of(square, r + t) + before;
                factor_rows(rows, products, t, diagonal, inverse_diagonal);
            }
        }
    }
    return 1;
}

/* x <- L'^-1 x for a factor in panels, as many numbers as these have rows. */
static void solve_transposed(const lower *factor, double *restrict x)
{
    for (ptrdiff_t q = factor->panels - 1; q >= 0; q--) {
        const double *restrict panel = panel_of(factor, q);
        ptrdiff_t before = q * PANEL_COLUMNS;
        double own[PANEL_COLUMNS];
        for (int i = PANEL_COLUMNS - 1; i >= 0; i--) {
            double left = x[before + i];
            for (int a = i + 1; a < PANEL_COLUMNS; a++)
                left -= panel[(before + i) * PANEL_COLUMNS + a] * own[a];
            x[before + i] = own[i] = left / panel[(before + i) * PANEL_COLUMNS + i];
        }
        for (ptrdiff_t j = 0; j < before; j++)
            for (int a = 0; a < PANEL_COLUMNS; a++)
                x[j] -= panel[j * PANEL_COLUMNS + a] * own[a];
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
   fit's errors as `find_errors` has them; `room` is for (d + 12) (d + 8) + 4 numbers. */
void solve_by_factor(const matrix *comoment, const double *mean, const unsigned char *varies, double *room, double *coef,
                     double *found)
{
    ptrdiff_t d = comoment->rows - 1, whole = (d + PANEL_COLUMNS) / PANEL_COLUMNS * PANEL_COLUMNS;
    double *x = first_aligned(room);
    ptrdiff_t *which = (ptrdiff_t *)(x + whole);
    lower factor = gather(comoment, varies, which, x + 2 * whole);
    ptrdiff_t k = factor.rows - 1;
    double *last = panel_of(&factor, k / PANEL_COLUMNS) + k % PANEL_COLUMNS;
    last[k * PANEL_COLUMNS] = 1.0 + 2.0 * last[k * PANEL_COLUMNS]; /* So that there is a factor where scores are fitted exactly, too. */
    found[0] = cholesky(&factor);
    if (!found[0])
        return;
    memset(x, 0, (size_t)(factor.panels * PANEL_COLUMNS) * sizeof *x);
    for (ptrdiff_t j = 0; j < k; j++)
        x[j] = last[j * PANEL_COLUMNS];
    solve_transposed(&factor, x);
    memset(coef, 0, (size_t)d * sizeof *coef);
    for (ptrdiff_t j = 0; j < k; j++)
        coef[which[j]] = x[j];
    find_errors(comoment, mean, coef, x, found + 1);
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

/* More rows of an interpolation of m rows: its basis, its inverse, its coefficients, the columns that varied.

   As in interpolation.py, a row at a time. `found` is whether the rows are independent of the others, and what they add
   to the trace of the inverses; `room` is for d + 2 (m + b) numbers. */
void add_to_interpolation(const matrix *features, const double *scores, const double *origin, double origin_score,
                          const double *coef, const matrix *basis, const matrix *inverse, double *new_coef,
                          const matrix *new_basis, const matrix *new_inverse, unsigned char *varied, double *room,
                          double *found)
{
    ptrdiff_t d = features->columns, m = basis->rows, all = new_basis->rows;
    double *x = room, *coordinates = room + d, *again = coordinates + all;
    memcpy(new_coef, coef, (size_t)d * sizeof *coef);
    for (ptrdiff_t i = 0; i < m; i++) {
        memcpy(row_of(new_basis, i), row_of(basis, i), (size_t)d * sizeof *x);
        memcpy(row_of(new_inverse, i), row_of(inverse, i), (size_t)m * sizeof *x);
        memset(row_of(new_inverse, i) + m, 0, (size_t)(all - m) * sizeof *x);
    }
    found[1] = 0.0;
    for (ptrdiff_t n = m; n < all; n++) {
        matrix before = *new_basis;
        before.rows = n;
        double *direction = row_of(new_basis, n), *beside = row_of(new_inverse, n);
        read_row(features, n - m, x);
        for (ptrdiff_t j = 0; j < d; j++) {
            x[j] -= origin[j];
            varied[j] |= x[j] != 0.0;
        }
        memcpy(direction, x, (size_t)d * sizeof *x);
        memset(coordinates, 0, (size_t)n * sizeof *coordinates);
        take_projection(&before, coordinates, again, direction);
        take_projection(&before, coordinates, again, direction);
        double length = sqrt(dot(direction, direction, d));
        double residual = scores[n - m] - origin_score - dot(x, new_coef, d);
        found[0] = length > 0.0; /* NaN fails this comparison too. */
        if (!found[0])
            return;
        for (ptrdiff_t j = 0; j < d; j++) {
            direction[j] /= length;
            new_coef[j] += residual / length * direction[j];
        }
        memset(beside, 0, (size_t)all * sizeof *beside);
        for (ptrdiff_t i = 0; i < n; i++)
            add_times(-coordinates[i] / length, row_of(new_inverse, i), i + 1, beside);
        beside[n] = 1.0 / length;
        double row_sum = 0.0;
        for (ptrdiff_t i = 0; i <= n; i++)
            row_sum += beside[i];
        found[1] += dot(beside, beside, n + 1) + row_sum * row_sum;
    }
}
