/* Scores of logits: sums of exponentials of each row less its largest logit.

   Sixteen rows are read at a time and laid side by side, a[class][lane], so that loops over the classes are vector code
   however few there are, and add in the order of the classes: no bit of a score depends on the rows beside it. In what
   follows f is a logit and x = (f - the largest f of the row) / T. Sums of e^x leave out what is the largest, which is
   counted: where it is nearly all, they have the digits that a difference would lose. */

#include <math.h>

#include "numbers.h"

enum { LANES = 16, COLUMNS_AT_ONCE = 64, SAMPLE = 64 };

/* The scores of `softmax_scores`, in the order of scores/exponentials.py, and GEN. */
enum { MSP, ENERGY, KL_UNIFORM, FROM_UNIFORM, GEN };

/* (1 - p)^g for p from 0 to 1/2 is a polynomial of this degree in 4 p - 1, to rounding, for g up to 1. */
enum { DEGREE = 18 };

/* No number may be larger. */
#define LARGEST 1e100

/* A sum of exponentials below this may have lost some of them. */
static const double UNDERFLOWING = 1e-280;

/* Of each row. */
typedef struct {
    double largest[LANES]; /* f */
    double equals[LANES];  /* how many f are the largest */
    double sum[LANES];     /* of x over all f */
    double below[LANES];   /* of e^x over all f below the largest */
    double others[LANES];  /* of e^x over all f but one that is the largest */
    double log_sum[LANES]; /* ln(1 + others) */
} sums;

/* (1 - p)^gamma as a polynomial, squared so many times. */
typedef struct {
    const double *coefficients; /* of (1 - p)^(gamma / 2^squarings), the highest first */
    ptrdiff_t squarings;
} power;

/* The largest size a number of so many bytes may have: LARGEST, or the largest that is finite. */
static double largest_size(ptrdiff_t bytes)
{
    return bytes == 8 ? LARGEST : bytes == 4 ? 0x1.fffffep127 : 65504.0;
}

/* Return how many of n numbers are larger than that, or NaN, which fails the comparison. */
static int64_t count_refused(const double *numbers, ptrdiff_t n, double size)
{
    int64_t refused = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        refused += !(fabs(numbers[i]) <= size);
    return refused;
}

/* How many of the classes from `start` on are read together, and summed before they are added to the others: a sum that
   goes on and on loses digits. */
static ptrdiff_t part_of(ptrdiff_t classes, ptrdiff_t start)
{
    return smaller_of(COLUMNS_AT_ONCE, classes - start);
}

/* Write n numbers of a row into a lane. */
static void read_lane(const char *row, ptrdiff_t bytes, ptrdiff_t n, double *restrict lane)
{
    if (bytes == 8) {
        for (ptrdiff_t j = 0; j < n; j++)
            lane[j * LANES] = ((const double *)row)[j];
    } else if (bytes == 4) {
        for (ptrdiff_t j = 0; j < n; j++)
            lane[j * LANES] = ((const float *)row)[j];
    } else {
        float numbers[COLUMNS_AT_ONCE];
        for (ptrdiff_t j = 0; j < n; j++)
            numbers[j] = half_as_float(((const uint16_t *)row)[j]);
        for (ptrdiff_t j = 0; j < n; j++)
            lane[j * LANES] = numbers[j];
    }
}

/* Lay `count` rows side by side, zeros beside fewer than LANES. */
static void read_lanes(const matrix *m, ptrdiff_t first, ptrdiff_t count, double *restrict f)
{
    ptrdiff_t classes = m->columns;
    if (count < LANES)
        memset(f, 0, (size_t)(classes * LANES) * sizeof *f);
    for (ptrdiff_t start = 0; start < classes; start += COLUMNS_AT_ONCE) {
        ptrdiff_t columns = part_of(classes, start);
        const char *corner = bytes_of_row(m, first) + start * m->bytes;
        for (ptrdiff_t lane = 0; lane < count; lane++)
            read_lane(corner + lane * m->stride, m->bytes, columns, f + start * LANES + lane);
    }
}

static void find_largest(const double *f, ptrdiff_t classes, double *restrict largest)
{
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        largest[lane] = f[lane];
    for (ptrdiff_t j = 1; j < classes; j++)
#pragma omp simd
        for (ptrdiff_t lane = 0; lane < LANES; lane++)
            largest[lane] = f[j * LANES + lane] > largest[lane] ? f[j * LANES + lane] : largest[lane];
}

/* Lay rows side by side and find their largest; return how many numbers are refused. */
static int64_t read_logits(const matrix *logits, ptrdiff_t first, ptrdiff_t count, double *f, sums *s)
{
    read_lanes(logits, first, count, f);
    find_largest(f, logits->columns, s->largest);
    return count_refused(f, logits->columns * LANES, largest_size(logits->bytes));
}

/* What e^x is taken of: x, or minus infinity for the largest. */
static inline double below_largest(double difference, double scale)
{
    return difference < 0 ? difference * scale : -HUGE_VAL;
}

static void add_to(double *restrict total, const double *restrict more)
{
#pragma omp simd
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        total[lane] += more[lane];
}

/* Write e^x, in the place of f if that is given, and add it up. */
static void sum_part(const double *f, ptrdiff_t classes, double scale, double *exponentials, sums *restrict s)
{
    double equals[LANES] = {0}, sum[LANES] = {0}, below[LANES] = {0};
    for (ptrdiff_t j = 0; j < classes; j++)
#pragma omp simd
        for (ptrdiff_t lane = 0; lane < LANES; lane++) {
            double difference = f[j * LANES + lane] - s->largest[lane];
            double e = exponential(below_largest(difference, scale));
            equals[lane] += difference < 0 ? 0.0 : 1.0;
            sum[lane] += difference * scale;
            below[lane] += e;
            exponentials[j * LANES + lane] = e;
        }
    add_to(s->equals, equals);
    add_to(s->sum, sum);
    add_to(s->below, below);
}

static void sum_exponentials(const double *f, ptrdiff_t classes, double scale, double *exponentials, sums *restrict s)
{
    memset(s->equals, 0, sizeof s->equals);
    memset(s->sum, 0, sizeof s->sum);
    memset(s->below, 0, sizeof s->below);
    for (ptrdiff_t start = 0; start < classes; start += COLUMNS_AT_ONCE)
        sum_part(f + start * LANES, part_of(classes, start), scale, exponentials + start * LANES, s);
}

static void add_others(sums *s)
{
#pragma omp simd
    for (ptrdiff_t lane = 0; lane < LANES; lane++) {
        s->others[lane] = s->below[lane] + (s->equals[lane] - 1.0);
        s->log_sum[lane] = logarithm_of_1_plus(s->others[lane]);
    }
}

/* The sum of |p - 1 / classes| of each row: twice that of what exceeds 1 / classes, since probabilities add up to 1. */
static void differ_from_uniform(const double *exponentials, ptrdiff_t classes, const sums *s, double *restrict out)
{
    double share = 1.0 / (double)classes, p[LANES], excess[LANES];
    for (ptrdiff_t lane = 0; lane < LANES; lane++) {
        p[lane] = 1.0 / (1.0 + s->others[lane]);
        excess[lane] = s->equals[lane] * (p[lane] - share);
    }
    for (ptrdiff_t j = 0; j < classes; j++)
#pragma omp simd
        for (ptrdiff_t lane = 0; lane < LANES; lane++) {
            double more = exponentials[j * LANES + lane] * p[lane] - share;
            excess[lane] += more > 0 ? more : 0.0;
        }
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        out[lane] = 2.0 * excess[lane];
}

/* One of the scores of LANES rows, whose exponentials are given. */
static void softmax_score(int64_t name, const double *exponentials, ptrdiff_t classes, double temperature,
                          const sums *s, double *restrict out)
{
    double log_classes = logarithm_of_1_plus((double)(classes - 1));
    if (name == FROM_UNIFORM)
        differ_from_uniform(exponentials, classes, s, out);
    else
        for (ptrdiff_t lane = 0; lane < LANES; lane++)
            out[lane] = name == MSP      ? 1.0 / (1.0 + s->others[lane])
                        : name == ENERGY ? s->largest[lane] + temperature * s->log_sum[lane]
                                         : s->log_sum[lane] - s->sum[lane] / (double)classes - log_classes;
}

/* Write the scores that are named, a column of each, and how many logits are refused. `lanes` has room for LANES rows
   of doubles. */
void softmax_scores(const matrix *logits, double temperature, const int64_t *names, const matrix *scores, double *lanes,
                    int64_t *refused)
{
    ptrdiff_t classes = logits->columns;
    *refused = 0;
    for (ptrdiff_t first = 0; first < logits->rows; first += LANES) {
        ptrdiff_t count = smaller_of(LANES, logits->rows - first);
        double out[LANES];
        sums s;
        *refused += read_logits(logits, first, count, lanes, &s);
        sum_exponentials(lanes, classes, 1.0 / temperature, lanes, &s);
        add_others(&s);
        for (ptrdiff_t column = 0; column < scores->columns; column++) {
            softmax_score(names[column], lanes, classes, temperature, &s, out);
            for (ptrdiff_t lane = 0; lane < count; lane++)
                row_of(scores, first + lane)[column] = out[lane];
        }
    }
}

static inline double tenth_power(double u)
{
    double u2 = u * u, u4 = u2 * u2;
    return u4 * u4 * u2;
}

/* Write e^(gamma x) and e^x, the latter in the place of f if that is given, and add up. With the authors' gamma the
   latter is a power of the former, and one exponential serves for both. */
static void take_both_of_part(const double *f, ptrdiff_t classes, double scale, double gamma,
                              double *restrict powers, double *exponentials, sums *restrict s)
{
    double equals[LANES] = {0}, below[LANES] = {0};
    for (ptrdiff_t j = 0; j < classes; j++)
#pragma omp simd
        for (ptrdiff_t lane = 0; lane < LANES; lane++) {
            double difference = f[j * LANES + lane] - s->largest[lane];
            equals[lane] += difference < 0 ? 0.0 : 1.0;
            exponentials[j * LANES + lane] = below_largest(difference, scale);
        }
#pragma omp simd
    for (ptrdiff_t i = 0; i < classes * LANES; i++)
        powers[i] = exponential(gamma * exponentials[i]);
    if (gamma == 0.1) {
        for (ptrdiff_t j = 0; j < classes; j++)
#pragma omp simd
            for (ptrdiff_t lane = 0; lane < LANES; lane++) {
                double e = tenth_power(powers[j * LANES + lane]);
                exponentials[j * LANES + lane] = e;
                below[lane] += e;
            }
    } else {
        for (ptrdiff_t j = 0; j < classes; j++)
#pragma omp simd
            for (ptrdiff_t lane = 0; lane < LANES; lane++) {
                double e = exponential(exponentials[j * LANES + lane]);
                exponentials[j * LANES + lane] = e;
                below[lane] += e;
            }
    }
    add_to(s->equals, equals);
    add_to(s->below, below);
}

static void take_both_exponentials(const double *f, ptrdiff_t classes, double scale, double gamma, double *powers,
                                   double *exponentials, sums *restrict s)
{
    memset(s->equals, 0, sizeof s->equals);
    memset(s->below, 0, sizeof s->below);
    for (ptrdiff_t start = 0; start < classes; start += COLUMNS_AT_ONCE)
        take_both_of_part(f + start * LANES, part_of(classes, start), scale, gamma, powers + start * LANES,
                          exponentials + start * LANES, s);
}

/* Write those of n numbers that are above a bound, in their order, in the place of the numbers if that is given, and
   return how many they are. */
static ptrdiff_t keep_above(const double *numbers, ptrdiff_t n, double bound, double *kept)
{
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        double number = numbers[i];
        kept[count] = number;
        count += number > bound;
    }
    return count;
}

static ptrdiff_t count_above(const double *numbers, ptrdiff_t n, double bound)
{
    int64_t count = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        count += numbers[i] > bound;
    return count;
}

/* Return a bound that r of n > r numbers are above, by bisection, or, where there are equal ones, that fewer are above
   and some are equal to. */
static double bound_of_largest(const double *numbers, ptrdiff_t n, ptrdiff_t r)
{
    double high = numbers[0], low = numbers[0]; /* The number of rank r is from low to high. */
#pragma omp simd reduction(max : high) reduction(min : low)
    for (ptrdiff_t i = 1; i < n; i++) {
        high = numbers[i] > high ? numbers[i] : high;
        low = numbers[i] < low ? numbers[i] : low;
    }
    for (double middle; middle = low + (high - low) / 2, low < middle && middle < high;) {
        ptrdiff_t count = count_above(numbers, n, middle);
        if (count == r)
            return middle;
        if (count > r)
            low = middle;
        else
            high = middle;
    }
    return count_above(numbers, n, low) < r ? low : high; /* No number lies between the two. */
}

/* Write the r largest of n > r numbers; there is room for n of them. */
static void select_largest(const double *numbers, ptrdiff_t n, ptrdiff_t r, double *selected)
{
    if (n >= 4 * SAMPLE) { /* A few of the numbers tell a bound that somewhat more than r are likely to be above. */
        double sample[SAMPLE];
        for (ptrdiff_t i = 0; i < SAMPLE; i++)
            sample[i] = numbers[i * n / SAMPLE];
        double expected = (double)r * SAMPLE / (double)n;
        ptrdiff_t rank = (ptrdiff_t)(expected + 2.0 * sqrt(expected)) + 1;
        ptrdiff_t count = 0;
        if (rank < SAMPLE)
            count = keep_above(numbers, n, bound_of_largest(sample, SAMPLE, rank), selected);
        if (count > r) {
            numbers = selected;
            n = count;
        }
    }
    double bound = bound_of_largest(numbers, n, r);
    for (ptrdiff_t count = keep_above(numbers, n, bound, selected); count < r; count++)
        selected[count] = bound;
}

/* Write the `top` largest f of each row. `rows` has room for two rows. */
static void select_lanes(const matrix *logits, ptrdiff_t first, ptrdiff_t count, ptrdiff_t top, double *rows,
                         double *selected)
{
    double *of_row = rows + logits->columns;
    memset(selected, 0, (size_t)(top * LANES) * sizeof *selected);
    for (ptrdiff_t lane = 0; lane < count; lane++) {
        read_row(logits, first + lane, rows);
        select_largest(rows, logits->columns, top, of_row);
        for (ptrdiff_t j = 0; j < top; j++)
            selected[j * LANES + lane] = of_row[j];
    }
}

/* ln of the sum of e^x over all f below the largest of one row, where that underflows. */
static double log_of_tiny(const double *f, ptrdiff_t classes, double largest, double scale)
{
    double second = -HUGE_VAL, total = 0;
    for (ptrdiff_t j = 0; j < classes; j++)
        if (second < f[j * LANES] && f[j * LANES] < largest)
            second = f[j * LANES];
    for (ptrdiff_t j = 0; j < classes; j++)
        if (f[j * LANES] < largest)
            total += exp((f[j * LANES] - second) * scale);
    return (second - largest) * scale + log(total);
}

/* The sum of e^(gamma x) (1 - p)^gamma of each row. */
static void sum_powers(const double *powers, const double *exponentials, ptrdiff_t classes, const power *of_rest,
                       const sums *s, double *restrict total)
{
    double scale[LANES], sum[LANES] = {0}, c[DEGREE + 1];
    memcpy(c, of_rest->coefficients, sizeof c);
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        scale[lane] = 4.0 / (1.0 + s->others[lane]);
    for (ptrdiff_t j = 0; j < classes; j++) {
        double rest[LANES];
#pragma omp simd
        for (ptrdiff_t lane = 0; lane < LANES; lane++) {
            double t = exponentials[j * LANES + lane] * scale[lane] - 1.0, t2 = t * t, even = c[0], odd = c[1];
#pragma GCC unroll 8
            for (int k = 2; k < DEGREE; k += 2) {
                even = even * t2 + c[k];
                odd = odd * t2 + c[k + 1];
            }
            rest[lane] = (even * t2 + c[DEGREE]) + odd * t;
        }
        for (ptrdiff_t squaring = 0; squaring < of_rest->squarings; squaring++)
#pragma omp simd
            for (ptrdiff_t lane = 0; lane < LANES; lane++)
                rest[lane] *= rest[lane];
#pragma omp simd
        for (ptrdiff_t lane = 0; lane < LANES; lane++)
            sum[lane] += powers[j * LANES + lane] * rest[lane];
    }
    memcpy(total, sum, sizeof sum);
}

/* ln(others) of each row. */
static void take_log_of_others(const double *f, ptrdiff_t classes, double scale, const sums *s,
                               double *restrict logarithms)
{
#pragma omp simd
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        logarithms[lane] = logarithm(s->others[lane]);
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        if (s->others[lane] < UNDERFLOWING)
            logarithms[lane] = log_of_tiny(f + lane, classes, s->largest[lane], scale);
}

/* GEN of each row: p^gamma (1 - p)^gamma of those that are the largest, where others / (1 + others) has the digits that
   1 - p loses, and of those below, whose sum of powers is given. */
static void add_largest(const double *below, const double *log_others, double gamma, const sums *s,
                        double *restrict out)
{
#pragma omp simd
    for (ptrdiff_t lane = 0; lane < LANES; lane++) {
        double of_largest = exponential(gamma * (log_others[lane] - 2.0 * s->log_sum[lane]));
        out[lane] = -(s->equals[lane] * of_largest + exponential(-gamma * s->log_sum[lane]) * below[lane]);
    }
}

/* How GEN is taken of logits, and room for LANES rows of doubles, three times. */
typedef struct {
    double temperature;
    double gamma;
    ptrdiff_t top; /* Only so many of the largest logits count. */
    power of_rest;
    double *f;
    double *powers;
    double *exponentials;
} entropy;

static entropy entropy_of(const matrix *logits, double temperature, double gamma, ptrdiff_t top,
                          const double *coefficients, ptrdiff_t squarings, double *scratch)
{
    ptrdiff_t numbers = logits->columns * LANES;
    return (entropy){temperature, gamma, top, {coefficients, squarings}, scratch, scratch + numbers, scratch + 2 * numbers};
}

/* Write GEN of up to LANES rows, and the sums that it is made of; return how many logits are refused. */
static int64_t take_entropies(const entropy *e, const matrix *logits, ptrdiff_t first, ptrdiff_t count, sums *s,
                              double *restrict out)
{
    ptrdiff_t classes = logits->columns;
    double scale = 1.0 / e->temperature, sum[LANES], log_others[LANES];
    int64_t refused = read_logits(logits, first, count, e->f, s);
    if (e->top == classes) {
        take_both_exponentials(e->f, classes, scale, e->gamma, e->powers, e->exponentials, s);
        add_others(s);
    } else {
        sum_exponentials(e->f, classes, scale, e->exponentials, s);
        add_others(s);
        sums of_top = *s;
        select_lanes(logits, first, count, e->top, e->powers, e->exponentials);
        take_both_exponentials(e->exponentials, e->top, scale, e->gamma, e->powers, e->exponentials, &of_top);
        memcpy(s->equals, of_top.equals, sizeof s->equals);
    }
    take_log_of_others(e->f, classes, scale, s, log_others);
    sum_powers(e->powers, e->exponentials, e->top, &e->of_rest, s, sum);
    add_largest(sum, log_others, e->gamma, s, out);
    return refused;
}

/* Write GEN of each row over its `top` largest logits, all of them or fewer, and how many logits are refused.
   `coefficients` are those of (1 - p)^(gamma / 2^squarings), and `scratch` has room for 3 LANES rows of doubles. */
void generalised_entropies(const matrix *logits, double temperature, double gamma, ptrdiff_t top,
                           const double *coefficients, ptrdiff_t squarings, double *scores, double *scratch,
                           int64_t *refused)
{
    entropy e = entropy_of(logits, temperature, gamma, top, coefficients, squarings, scratch);
    *refused = 0;
    for (ptrdiff_t first = 0; first < logits->rows; first += LANES) {
        ptrdiff_t count = smaller_of(LANES, logits->rows - first);
        double out[LANES];
        sums s;
        *refused += take_entropies(&e, logits, first, count, &s, out);
        memcpy(scores + first, out, (size_t)count * sizeof *out);
    }
}

/* The first class of each row that has its largest f. */
static void find_first(const double *f, ptrdiff_t classes, const double *restrict largest, double *restrict place)
{
    double last = (double)(classes - 1);
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        place[lane] = last;
    for (ptrdiff_t j = 0; j < classes; j++) {
        double number = (double)j;
#pragma omp simd
        for (ptrdiff_t lane = 0; lane < LANES; lane++) {
            double here = f[j * LANES + lane] == largest[lane] ? number : last;
            place[lane] = here < place[lane] ? here : place[lane];
        }
    }
}

/* Write those of GEN, ENERGY and MSP that are named, a column of each, at a temperature of 1, and the class of each
   row's largest logit: of one pass over the logits, and of the same exponentials. The rest is as above. */
void gen_energy_msp(const matrix *logits, double gamma, ptrdiff_t top, const double *coefficients, ptrdiff_t squarings,
                    const int64_t *names, const matrix *scores, ptrdiff_t *predicted, double *scratch,
                    int64_t *refused)
{
    ptrdiff_t classes = logits->columns;
    entropy e = entropy_of(logits, 1.0, gamma, top, coefficients, squarings, scratch);
    *refused = 0;
    for (ptrdiff_t first = 0; first < logits->rows; first += LANES) {
        ptrdiff_t count = smaller_of(LANES, logits->rows - first);
        double gen[LANES], out[LANES], place[LANES];
        sums s;
        *refused += take_entropies(&e, logits, first, count, &s, gen);
        find_first(e.f, classes, s.largest, place);
        for (ptrdiff_t lane = 0; lane < count; lane++)
            predicted[first + lane] = (int64_t)place[lane];
        for (ptrdiff_t column = 0; column < scores->columns; column++) {
            if (names[column] == GEN)
                memcpy(out, gen, sizeof out);
            else
                softmax_score(names[column], e.exponentials, classes, 1.0, &s, out);
            for (ptrdiff_t lane = 0; lane < count; lane++)
                row_of(scores, first + lane)[column] = out[lane];
        }
    }
}

/* Write the largest number of each row and its column, the first of equal ones, and how many numbers are refused.
   `lanes` has room for LANES rows. */
void largest_of_rows(const matrix *m, double *values, ptrdiff_t *columns, double *lanes, int64_t *refused)
{
    *refused = 0;
    for (ptrdiff_t first = 0; first < m->rows; first += LANES) {
        ptrdiff_t count = smaller_of(LANES, m->rows - first);
        double largest[LANES], place[LANES];
        read_lanes(m, first, count, lanes);
        find_largest(lanes, m->columns, largest);
        *refused += count_refused(lanes, m->columns * LANES, largest_size(m->bytes));
        find_first(lanes, m->columns, largest, place);
        for (ptrdiff_t lane = 0; lane < count; lane++) {
            values[first + lane] = largest[lane];
            columns[first + lane] = (int64_t)place[lane];
        }
    }
}
