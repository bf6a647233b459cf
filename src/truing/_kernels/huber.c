/* The Huber regression of huber_regression/: Newton's steps on a few rows, and passes over all of them.

   Matrices of doubles here have their rows in one piece and one after the other. To BLAS, whose matrices have their
   columns in one piece, such a matrix (m, k) is its own transpose (k, m). */

#include <float.h>

#include "blas.h"
#include "rows.h"

/* As in continuation.py and hessian.py, which say what they are. */
#define GRADIENT_TOLERANCE 1e-13
#define SLOPE_TOLERANCE 0.5
#define UNBOUNDED_RATIO 1e3
#define MAX_TRIALS 200
#define RIDGE 1e-13

/* The Gram matrix of the inliers is brought up to date where fewer than this share of them changed, */
#define FEW_CHANGED 0.5
/* unless its trace has fallen to this share: what rounding left of the rows that went would then be felt. */
#define MUCH_LESS 0.25

/* Rows that are read at a time: with one alone, each addition would wait for the one before. */
#define TOGETHER 4

static double clipped(double value, double width)
{
    return value < -width ? -width : value > width ? width : value;
}

/* Signs fall as they may, and a branch on them would be guessed wrong half of the time. */
static void signs_of(const double values[TOGETHER], double signs[TOGETHER])
{
#pragma omp simd
    for (int r = 0; r < TOGETHER; r++) {
        double above = values[r] > 0 ? 1.0 : 0.0, below = values[r] < 0 ? 1.0 : 0.0;
        signs[r] = above - below;
    }
}

static void clip_all(const double values[TOGETHER], double width, double clipped_values[TOGETHER])
{
#pragma omp simd
    for (int r = 0; r < TOGETHER; r++)
        clipped_values[r] = clipped(values[r], width);
}

/* The products of some rows with a vector. Each row is summed in the same order, whichever rows are beside it. */
static void dots(const double *const rows[TOGETHER], const double *x, ptrdiff_t n, double products[TOGETHER])
{
    const double *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    four ax = {0}, bx = {0}, cx = {0}, dx = {0};
    ptrdiff_t j = 0;
    for (; j + 4 <= n; j += 4) {
        four here = *(const four *)(x + j);
        ax += *(const four *)(a + j) * here;
        bx += *(const four *)(b + j) * here;
        cx += *(const four *)(c + j) * here;
        dx += *(const four *)(d + j) * here;
    }
    products[0] = sum_of_four(&ax);
    products[1] = sum_of_four(&bx);
    products[2] = sum_of_four(&cx);
    products[3] = sum_of_four(&dx);
    for (; j < n; j++) {
        products[0] += a[j] * x[j];
        products[1] += b[j] * x[j];
        products[2] += c[j] * x[j];
        products[3] += d[j] * x[j];
    }
}

static void add_rows(double *restrict sums, const double weights[TOGETHER], const double *const rows[TOGETHER],
                     ptrdiff_t n)
{
    const double *restrict a = rows[0], *restrict b = rows[1], *restrict c = rows[2], *restrict d = rows[3];
#pragma omp simd
    for (ptrdiff_t j = 0; j < n; j++)
        sums[j] += (weights[0] * a[j] + weights[1] * b[j]) + (weights[2] * c[j] + weights[3] * d[j]);
}

static double sum_of_clipped(const double *values, double width, ptrdiff_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (ptrdiff_t i = 0; i < n; i++)
        sum += fabs(values[i]) < width ? fabs(values[i]) : width;
    return sum;
}

static double largest_size(const double *values, ptrdiff_t n)
{
    double largest = 0;
#pragma omp simd reduction(max : largest)
    for (ptrdiff_t i = 0; i < n; i++)
        largest = fabs(values[i]) > largest ? fabs(values[i]) : largest;
    return largest;
}

/* The sum of huber(r - t f) over the width, r being the residual and f what a step of length t = 1 fits. */
static double loss_after(const double *residual, const double *fitted, double t, double width, ptrdiff_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (ptrdiff_t i = 0; i < n; i++) {
        double size = fabs(residual[i] - t * fitted[i]);
        double within = size < width ? size : width;
        sum += within / width * (size - within / 2);
    }
    return sum;
}

/* The slope down along a step, at length t of it. */
static double slope_at(double t, const double *residual, const double *fitted, double width, ptrdiff_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (ptrdiff_t i = 0; i < n; i++)
        sum += clipped(residual[i] - t * fitted[i], width) * fitted[i];
    return sum;
}

/* `line_search` of continuation.py. */
static double length_of_step(const double *residual, const double *fitted, double width, double linear,
                             double quadratic, ptrdiff_t n)
{
    double start = linear + slope_at(0, residual, fitted, width, n);
    double size = largest_size(residual, n) + width, moves = largest_size(fitted, n);
    if (!(start > 0))
        return 0;
    double low = 0, high = INFINITY, slope_low = start, slope_high = -INFINITY;
    double trial = moves > 0 ? fmin(1.0, 10 * size / moves) : 1.0;
    for (int i = 0; i < MAX_TRIALS; i++) {
        if (low * moves >= UNBOUNDED_RATIO * size || (moves == 0 && quadratic == 0))
            return INFINITY;
        double slope = linear - trial * quadratic + slope_at(trial, residual, fitted, width, n);
        if (fabs(slope) <= SLOPE_TOLERANCE * start || high - low < DBL_EPSILON * high)
            return trial;
        if (slope > 0) {
            low = trial;
            slope_low = slope;
            slope_high /= 2;
        } else {
            high = trial;
            slope_high = slope;
            slope_low /= 2;
        }
        trial = high == INFINITY ? 4 * low : low + (high - low) * slope_low / (slope_low - slope_high);
    }
    return low;
}

void huber_line_search(const double *residual, const double *fitted, ptrdiff_t n, double width, double linear,
                       double quadratic, double *length)
{
    *length = length_of_step(residual, fitted, width, linear, quadratic, n);
}

/* A problem of continuation.py, and what Newton's steps on it need room for. */
typedef struct {
    int rows, unknowns;
    double *design;          /* (rows, unknowns) */
    double *residual;        /* (rows) */
    double *quadratic;       /* (unknowns, unknowns) */
    double *linear;          /* (unknowns) */
    double *fitted, *weight; /* (rows) */
    double *is_in;           /* (rows): 1 for rows in the Gram matrix, else 0 */
    double *chosen;          /* (rows, unknowns) */
    double *gram, *hessian;  /* (unknowns, unknowns), of which BLAS has the lower triangle */
    double *gradient, *step; /* (unknowns) */
    double trace;            /* The largest that the Gram matrix had since it was made anew. */
} problem;

static int one = 1;

static void fit_step(problem *p)
{
    double plain = 1, zero = 0;
    dgemv("T", &p->unknowns, &p->rows, &plain, p->design, &p->unknowns, p->step, &one, &zero, p->fitted, &one);
}

/* The direction of steepest descent: linear + the rows times their weights. */
static void find_gradient(problem *p)
{
    double plain = 1;
    memcpy(p->gradient, p->linear, (size_t)p->unknowns * sizeof(double));
    dgemv("N", &p->unknowns, &p->rows, &plain, p->design, &p->unknowns, p->weight, &one, &plain, p->gradient, &one);
}

/* The slope of the quadratic term at the step, along which it rises by half of it: step' Q step. */
static double quadratic_along(const problem *p, const double *step)
{
    double sum = 0;
    for (int a = 0; a < p->unknowns; a++)
        sum += step[a] * dot(p->quadratic + (ptrdiff_t)a * p->unknowns, step, p->unknowns);
    return sum;
}

/* Add to the Gram matrix, times `factor`, the rows whose flag is to change to `wanted`. */
static void change_gram(problem *p, double width, double wanted, double factor, double keep)
{
    int count = 0, k = p->unknowns;
    for (int i = 0; i < p->rows; i++) {
        double now = fabs(p->residual[i]) < width;
        if (now == wanted && p->is_in[i] != wanted) {
            memcpy(p->chosen + (ptrdiff_t)count++ * k, p->design + (ptrdiff_t)i * k, (size_t)k * sizeof(double));
            p->is_in[i] = wanted;
        }
    }
    if (count > 0 || keep == 0)
        dsyrk("L", "N", &k, &count, &factor, p->chosen, &k, &keep, p->gram, &k);
}

static double trace_of(const double *square, int k)
{
    double sum = 0;
    for (int a = 0; a < k; a++)
        sum += square[(ptrdiff_t)a * (k + 1)];
    return sum;
}

static void make_gram(problem *p, double width)
{
    memset(p->is_in, 0, (size_t)p->rows * sizeof(double));
    change_gram(p, width, 1, 1, 0);
    p->trace = trace_of(p->gram, p->unknowns);
}

/* The Gram matrix of the rows within the width: from that of the step before, where few rows changed. */
static void update_gram(problem *p, double width)
{
    double inliers = 0, changed = 0;
#pragma omp simd reduction(+ : inliers, changed)
    for (int i = 0; i < p->rows; i++) {
        double now = fabs(p->residual[i]) < width ? 1.0 : 0.0;
        inliers += now;
        changed += now != p->is_in[i] ? 1.0 : 0.0;
    }
    if (p->trace < 0 || changed > FEW_CHANGED * inliers) {
        make_gram(p, width);
        return;
    }
    change_gram(p, width, 1, 1, 1);
    change_gram(p, width, 0, -1, 1);
    double trace = trace_of(p->gram, p->unknowns);
    if (!(trace > MUCH_LESS * p->trace))
        make_gram(p, width);
    else
        p->trace = fmax(p->trace, trace);
}

/* Newton's step, and the gradient itself, which leads down too, if rounding forbids it. */
static void find_step(problem *p)
{
    int k = p->unknowns, failed;
    for (ptrdiff_t a = 0; a < (ptrdiff_t)k * k; a++)
        p->hessian[a] = p->gram[a] + p->quadratic[a];
    double ridge = RIDGE * (trace_of(p->hessian, k) + k);
    for (int a = 0; a < k; a++)
        p->hessian[(ptrdiff_t)a * (k + 1)] += ridge;
    memcpy(p->step, p->gradient, (size_t)k * sizeof(double));
    dpotrf("L", &k, p->hessian, &k, &failed);
    if (failed)
        return;
    dtrsv("L", "N", "N", &k, p->hessian, &k, p->step, &one);
    dtrsv("L", "T", "N", &k, p->hessian, &k, p->step, &one);
}

/* Shift the problem by the step times `length`. */
static void shift(problem *p, double length, double *x)
{
    for (int i = 0; i < p->rows; i++)
        p->residual[i] -= length * p->fitted[i];
    for (int a = 0; a < p->unknowns; a++) {
        x[a] += length * p->step[a];
        p->linear[a] -= length * dot(p->quadratic + (ptrdiff_t)a * p->unknowns, p->step, p->unknowns);
    }
}

/* `_extrapolated` of continuation.py: a step on which the inliers of a wider loss stay inliers, if it leads down. */
static void extrapolate(problem *p, double width, double wider, double *x)
{
    int inliers = 0;
    for (int i = 0; i < p->rows; i++)
        inliers += fabs(p->residual[i]) < wider;
    if (inliers < p->unknowns || inliers >= 2 * p->unknowns)
        return;
    for (int i = 0; i < p->rows; i++)
        p->weight[i] = fabs(p->residual[i]) < wider ? p->residual[i] : clipped(p->residual[i], width);
    find_gradient(p);
    make_gram(p, wider);
    find_step(p);
    fit_step(p);
    double others = quadratic_along(p, p->step) / width / 2 - dot(p->step, p->linear, p->unknowns) / width;
    double here = loss_after(p->residual, p->fitted, 0, width, p->rows);
    if (loss_after(p->residual, p->fitted, 1, width, p->rows) + others < here)
        shift(p, 1, x);
}

/* `_newton` of continuation.py: from x = 0 to the minimiser; residual and linear are moved along.

   `scratch` has room for the vectors and matrices above. `is_bounded` becomes 0 where nothing bounds the problem. */
void huber_newton(const matrix *rows, double *residual, const matrix *quadratic, double *linear, double width,
                  double wider, ptrdiff_t rough, double *x, double *scratch, double *is_bounded)
{
    ptrdiff_t m = rows->rows, k = rows->columns;
    problem p = {.rows = (int)m, .unknowns = (int)k, .residual = residual, .linear = linear, .trace = -1};
    p.design = (double *)rows->first;
    p.quadratic = (double *)quadratic->first;
    p.fitted = scratch;
    p.weight = p.fitted + m;
    p.is_in = p.weight + m;
    p.chosen = p.is_in + m;
    p.gram = p.chosen + m * k;
    p.hessian = p.gram + k * k;
    p.gradient = p.hessian + k * k;
    p.step = p.gradient + k;
    memset(p.gram, 0, (size_t)(k * k) * sizeof(double)); /* What BLAS leaves alone is read too, and not used. */
    double terms = sum_of_sizes(linear, k), length = 0;
    *is_bounded = 1;
    extrapolate(&p, width, wider, x);
    for (ptrdiff_t attempt = 0; attempt < 50 + 4 * k; attempt++) {
        for (ptrdiff_t i = 0; i < m; i++)
            p.weight[i] = clipped(residual[i], width);
        find_gradient(&p);
        double terms_here = terms + sum_of_clipped(residual, width, m);
        if (sum_of_sizes(p.gradient, k) <= GRADIENT_TOLERANCE * terms_here)
            return;
        if (attempt > 0 && (length == 0 || (rough && length == 1)))
            return;
        update_gram(&p, width);
        find_step(&p);
        fit_step(&p);
        length = length_of_step(residual, p.fitted, width, dot(p.step, linear, k), quadratic_along(&p, p.step), m);
        if (length == INFINITY) {
            *is_bounded = 0;
            return;
        }
        shift(&p, length, x);
    }
}

/* The residual after a step, and the sum of all rows times it, clipped to the width, or for no width times its signs. */
void huber_move(const matrix *design, const double *residual, const double *step, double width, double *moved,
                double *sums)
{
    ptrdiff_t k = design->columns;
    memset(sums, 0, (size_t)k * sizeof(double));
    for (ptrdiff_t i = 0; i < design->rows; i += TOGETHER) {
        ptrdiff_t count = smaller_of(TOGETHER, design->rows - i);
        const double *rows[TOGETHER];
        double fitted[TOGETHER], here[TOGETHER] = {0}, weights[TOGETHER];
        for (ptrdiff_t r = 0; r < TOGETHER; r++)
            rows[r] = row_of(design, i + smaller_of(r, count - 1));
        dots(rows, step, k, fitted);
        for (ptrdiff_t r = 0; r < count; r++)
            here[r] = residual[i + r] - fitted[r];
        memcpy(moved + i, here, (size_t)count * sizeof(double));
        if (width > 0)
            clip_all(here, width, weights);
        else
            signs_of(here, weights);
        add_rows(sums, weights, rows, k);
    }
}

/* Write number * scale * factor - origin for the numbers of row i. */
static void read_scaled(const matrix *m, ptrdiff_t i, double scale, const double *restrict factors,
                        const double *restrict origin, double *restrict row)
{
    read_row(m, i, row);
#pragma omp simd
    for (ptrdiff_t j = 0; j < m->columns; j++)
        row[j] = row[j] * scale * factors[j] - origin[j];
}

/* Write rows as they are read into another matrix, of doubles, which may have more columns. */
void write_rows(const matrix *features, const double *scale, const double *factors, const double *origin,
                const matrix *out)
{
    for (ptrdiff_t i = 0; i < features->rows; i++)
        read_scaled(features, i, scale[i], factors, origin, row_of(out, i));
}

/* The sum of the squares of each row, of which there is room for one. */
void row_squares(const matrix *features, double *row, double *squares)
{
    for (ptrdiff_t i = 0; i < features->rows; i++) {
        read_row(features, i, row);
        squares[i] = dot(row, row, features->columns);
    }
}

/* Take off the values what the coefficients make of the rows, and sum [row, 1] times the value clipped to the width.

   `room` is for TOGETHER rows. */
void huber_descend(const matrix *features, const double *scale, const double *factors, const double *origin,
                   const double *coef, double width, double *values, double *sums, double *room)
{
    ptrdiff_t d = features->columns;
    memset(sums, 0, (size_t)(d + 1) * sizeof(double));
    for (ptrdiff_t i = 0; i < features->rows; i += TOGETHER) {
        ptrdiff_t count = smaller_of(TOGETHER, features->rows - i);
        const double *rows[TOGETHER];
        double fitted[TOGETHER], here[TOGETHER] = {0}, weights[TOGETHER];
        for (ptrdiff_t r = 0; r < TOGETHER; r++) {
            ptrdiff_t at = i + smaller_of(r, count - 1);
            rows[r] = room + r * d;
            read_scaled(features, at, scale[at], factors, origin, room + r * d);
        }
        dots(rows, coef, d, fitted);
        for (ptrdiff_t r = 0; r < count; r++)
            here[r] = values[i + r] - fitted[r];
        memcpy(values + i, here, (size_t)count * sizeof(double));
        clip_all(here, width, weights);
        add_rows(sums, weights, rows, d);
        sums[d] += (weights[0] + weights[1]) + (weights[2] + weights[3]);
    }
}

/* How many rows are on another side of +-width than before: below, within, above. */
void huber_count_crossed(const double *before, const double *after, ptrdiff_t n, double width, double *count)
{
    ptrdiff_t crossed = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        int side = (before[i] > width) - (before[i] < -width), now = (after[i] > width) - (after[i] < -width);
        crossed += side != now;
    }
    *count = (double)crossed;
}
