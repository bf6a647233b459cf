/* A batch of a stream: its rows added to the moments, and the coefficients that follow from these.

   Matrices here are of doubles. A co-moment is symmetric, so that its rows are as good as its columns. */

#include <math.h>

#include "blas.h"
#include "numbers.h"

/* Square tiles of a co-moment that are made at once: two of them stay in the processor's first cache. */
enum { TILE = 32 };

static inline double *row(const matrix *m, ptrdiff_t i)
{
    return (double *)(m->first + i * m->stride);
}

static double dot(const double *restrict a, const double *restrict b, ptrdiff_t n)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (ptrdiff_t j = 0; j < n; j++)
        sum += a[j] * b[j];
    return sum;
}

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
    double weight = sqrt(before * (double)b / (before + (double)b)), *step = row(block, b);
    memset(middle, 0, (size_t)(d + 1) * sizeof *middle);
    for (ptrdiff_t i = 0; i < b; i++) {
        double *restrict x = row(block, i);
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
        double *restrict x = row(block, i);
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
        const double *restrict high = row(old, i), *restrict low = row(old_low, i);
        double *restrict total = row(new, i), *restrict rest = row(new_low, i);
        for (ptrdiff_t j = 0; j < old->columns; j++)
            total[j] = compensated(high[j], low[j], x[i] * x[j], &rest[j]);
    }
}

/* Add some columns' products (m, n) to the co-moment from row i and column j on. */
static void add_tile(const double *products, ptrdiff_t i, ptrdiff_t j, ptrdiff_t m, ptrdiff_t n, const matrix *old,
                     const matrix *old_low, const matrix *new, const matrix *new_low)
{
    for (ptrdiff_t a = 0; a < m; a++) {
        const double *restrict high = row(old, i + a) + j, *restrict low = row(old_low, i + a) + j;
        const double *restrict more = products + a * TILE;
        double *restrict total = row(new, i + a) + j, *restrict rest = row(new_low, i + a) + j;
        for (ptrdiff_t c = 0; c < n; c++)
            total[c] = compensated(high[c], low[c], more[c], &rest[c]);
    }
}

/* The co-moment grows by the products of the block's columns, a tile of them at a time, so that no matrix of products
   goes to memory and comes back. Each tile serves on both sides of the diagonal: what is symmetric remains so. */
static void add_products(const matrix *block, const matrix *old, const matrix *old_low, const matrix *new,
                         const matrix *new_low)
{
    double products[TILE * TILE], mirrored[TILE * TILE], one = 1.0, zero = 0.0;
    int rows = (int)block->rows, stride = (int)(block->stride / 8), tile = TILE;
    for (ptrdiff_t i = 0; i < old->rows; i += TILE) {
        int m = (int)(old->rows - i < TILE ? old->rows - i : TILE);
        for (ptrdiff_t j = 0; j <= i; j += TILE) {
            int n = (int)(old->rows - j < TILE ? old->rows - j : TILE);
            dgemm("N", "T", &n, &m, &rows, &one, row(block, 0) + j, &stride, row(block, 0) + i, &stride, &zero,
                  products, &tile);
            for (ptrdiff_t a = 0; a < m; a++)
                for (ptrdiff_t c = 0; c < n; c++) {
                    if (i == j && c > a)
                        products[a * TILE + c] = products[c * TILE + a];
                    mirrored[c * TILE + a] = products[a * TILE + c];
                }
            add_tile(products, i, j, m, n, old, old_low, new, new_low);
            if (i != j)
                add_tile(mirrored, j, i, n, m, old, old_low, new, new_low);
        }
    }
}

/* Moments of `before` rows with a batch of rows added, the block whose squares were, and which columns then vary by
   more than `constant` times their mean. */
void add_batch(const matrix *features, const double *scores, double before, const double *mean, const double *mean_low,
               const matrix *comoment, const matrix *comoment_low, const double *rounding, double *new_mean,
               double *new_mean_low, const matrix *new_comoment, const matrix *new_low, const matrix *block,
               double constant, double underflowing, unsigned char *varies)
{
    ptrdiff_t b = features->rows, d = features->columns;
    double after = before + (double)b;
    centre(features, scores, before, mean, mean_low, new_mean, block);
    move_mean(mean, mean_low, (double)b / after, d + 1, new_mean, new_mean_low);
    if (b == 1)
        add_square(row(block, b), comoment, comoment_low, new_comoment, new_low);
    else
        add_products(block, comoment, comoment_low, new_comoment, new_low);
    for (ptrdiff_t j = 0; j < d; j++) {
        double least = constant * new_mean[j];
        double enough = fmax(fmax(after * (least * least), rounding[j]), underflowing);
        varies[j] = row(new_comoment, j)[j] > enough;
    }
}

/* Least-squares coefficients (d,) of the columns that vary, 0 for the others, from a co-moment that has a factor.

   With C and c the co-moment of k such columns and theirs with the score, the last row of the Cholesky factor L of both
   is that of C times c, inverted, and the coefficients follow by its transpose. `found` is what LAPACK says, what the
   fit is above the mean score at the mean, and the sum of squared errors about that. */
void solve_by_factor(const matrix *comoment, const double *mean, const unsigned char *varies, const matrix *factor,
                     double *coef, double *error_weights, double *found)
{
    ptrdiff_t d = comoment->rows - 1, k = 0;
    for (ptrdiff_t i = 0; i <= d; i++) {
        if (i < d && !varies[i])
            continue;
        const double *restrict from = row(comoment, i);
        double *restrict to = row(factor, k++);
        if (k == i + 1) {
            memcpy(to, from, (size_t)(i + 1) * sizeof *to);
        } else {
            for (ptrdiff_t j = 0, filled = 0; j <= i; j++)
                if (j == d || varies[j])
                    to[filled++] = from[j];
        }
    }
    double *last = row(factor, k - 1);
    last[k - 1] = 1.0 + 2.0 * last[k - 1]; /* So that there is a factor where the scores are fitted exactly, too. */
    int size = (int)k, info, live = size - 1, one = 1;
    dpotrf("U", &size, row(factor, 0), &size, &info);
    found[0] = info;
    if (info != 0)
        return;
    dtrsv("U", "N", "N", &live, row(factor, 0), &size, last, &one);
    for (ptrdiff_t j = 0, taken = 0; j < d; j++)
        error_weights[j] = coef[j] = varies[j] ? last[taken++] : 0.0;
    error_weights[d] = -1.0;
    found[1] = dot(mean, error_weights, d + 1);
    found[2] = 0.0;
    for (ptrdiff_t i = 0; i <= d; i++)
        found[2] += error_weights[i] * dot(row(comoment, i), error_weights, d + 1);
}
