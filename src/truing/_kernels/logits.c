/* Scores of logits: sums of exponentials of each row less its largest logit.

   Sixteen rows are read at a time and laid side by side, a[class][lane], so that loops over the classes are vector code
   however few there are, and add in the order of the classes: no bit of a score depends on the rows beside it. Where
   there are many classes, or only some of them count, a row is read alone, and its own numbers fill the lanes. In what
   follows f is a logit and x = (f - the largest f of the row) / T. Sums of e^x leave out what is the largest, which is
   counted: where it is nearly all, they have the digits that a difference would lose. */

#include <math.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "tiles.h"

enum { COLUMNS_AT_ONCE = 64, SAMPLE = 64 };

/* From so many classes on rows side by side gain nothing, and would not stay in the caches. */
enum { MANY_CLASSES = 256 };

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

/* Have every lane hold the sum of all. */
static void gather(double *lanes)
{
    double total = sum_of_lanes(lanes);
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        lanes[lane] = total;
}

/* How many numbers of a row each lane has where the row fills them all. */
static ptrdiff_t numbers_along(ptrdiff_t classes)
{
    return (classes + LANES - 1) / LANES;
}

/* Read row i alone into f, write e^x of its numbers, in the place of f if that is given, add up, and return how many
   logits are refused. Both have room for whole lanes. */
static int64_t sum_alone(const matrix *logits, ptrdiff_t i, double scale, double *f, double *exponentials, sums *s)
{
    ptrdiff_t classes = logits->columns, along = numbers_along(classes);
    read_row(logits, i, f);
    int64_t refused = count_refused(f, classes, largest_size(logits->bytes));
    double largest = largest_of(f, classes);
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        s->largest[lane] = largest;
    for (ptrdiff_t j = classes; j < along * LANES; j++)
        f[j] = largest; /* What fills the lanes is counted, and adds nothing to the sums. */
    sum_exponentials(f, along, scale, exponentials, s);
    gather(s->equals);
    gather(s->sum);
    gather(s->below);
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        s->equals[lane] -= (double)(along * LANES - classes);
    return refused;
}

/* Exponentials of LANES rows side by side, or of one alone. */
typedef struct {
    const double *exponentials;
    ptrdiff_t along; /* Numbers of each lane. */
    ptrdiff_t classes;
    int is_alone;
} softmaxes;

/* The sum of |p - 1 / classes| of each row: twice that of what exceeds 1 / classes, since probabilities add up to 1. */
static void distance_from_uniform(const softmaxes *of_rows, const sums *s, double *restrict out)
{
    double share = 1.0 / (double)of_rows->classes, p[LANES], excess[LANES] = {0};
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        p[lane] = 1.0 / (1.0 + s->others[lane]);
    for (ptrdiff_t j = 0; j < of_rows->along; j++)
#pragma omp simd
        for (ptrdiff_t lane = 0; lane < LANES; lane++) {
            double more = of_rows->exponentials[j * LANES + lane] * p[lane] - share;
            excess[lane] += more > 0 ? more : 0.0;
        }
    if (of_rows->is_alone)
        gather(excess);
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        out[lane] = 2.0 * (s->equals[lane] * (p[lane] - share) + excess[lane]);
}

/* One of the scores of the rows. */
static void softmax_score(int64_t name, const softmaxes *of_rows, double temperature, const sums *s,
                          double *restrict out)
{
    double classes = (double)of_rows->classes, log_classes = logarithm_of_1_plus(classes - 1.0);
    if (name == FROM_UNIFORM)
        distance_from_uniform(of_rows, s, out);
    else
        for (ptrdiff_t lane = 0; lane < LANES; lane++)
            out[lane] = name == MSP      ? 1.0 / (1.0 + s->others[lane])
                        : name == ENERGY ? s->largest[lane] + temperature * s->log_sum[lane]
                                         : s->log_sum[lane] - s->sum[lane] / classes - log_classes;
}

/* Write the scores that are named, a column of each, and how many logits are refused. `lanes` has room for LANES rows
   of doubles, or for one in whole lanes where there are many classes. */
void softmax_scores(const matrix *logits, double temperature, const int64_t *names, const matrix *scores, double *lanes,
                    int64_t *refused)
{
    ptrdiff_t classes = logits->columns;
    int is_alone = classes >= MANY_CLASSES;
    ptrdiff_t at_once = is_alone ? 1 : LANES;
    softmaxes of_rows = {lanes, is_alone ? numbers_along(classes) : classes, classes, is_alone};
    double scale = 1.0 / temperature;
    *refused = 0;
    for (ptrdiff_t first = 0; first < logits->rows; first += at_once) {
        ptrdiff_t count = smaller_of(at_once, logits->rows - first);
        double out[LANES];
        sums s;
        if (is_alone) {
            *refused += sum_alone(logits, first, scale, lanes, lanes, &s);
        } else {
            *refused += read_logits(logits, first, count, lanes, &s);
            sum_exponentials(lanes, classes, scale, lanes, &s);
        }
        add_others(&s);
        for (ptrdiff_t column = 0; column < scores->columns; column++) {
            softmax_score(names[column], &of_rows, temperature, &s, out);
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

#ifdef __AVX2__
/* Of four numbers some are kept, those whose bits are set: which halves of numbers to take so that they come first. */
static const uint8_t KEPT_FIRST[16][8] = {
    {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}, {2, 3, 0, 1, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7},
    {4, 5, 0, 1, 2, 3, 6, 7}, {0, 1, 4, 5, 2, 3, 6, 7}, {2, 3, 4, 5, 0, 1, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7},
    {6, 7, 0, 1, 2, 3, 4, 5}, {0, 1, 6, 7, 2, 3, 4, 5}, {2, 3, 6, 7, 0, 1, 4, 5}, {0, 1, 2, 3, 6, 7, 4, 5},
    {4, 5, 6, 7, 0, 1, 2, 3}, {0, 1, 4, 5, 6, 7, 2, 3}, {2, 3, 4, 5, 6, 7, 0, 1}, {0, 1, 2, 3, 4, 5, 6, 7},
};

/* Write four numbers, those above a bound first, and return how many they are. */
static inline int keep_above_of_four(const double *numbers, __m256d bound, double *kept)
{
    __m256d four = _mm256_loadu_pd(numbers);
    int above = _mm256_movemask_pd(_mm256_cmp_pd(four, bound, _CMP_GT_OQ));
    __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)KEPT_FIRST[above]));
    _mm256_storeu_ps((float *)kept, _mm256_permutevar8x32_ps(_mm256_castpd_ps(four), order));
    return __builtin_popcount((unsigned)above);
}
#endif

/* Write those of n numbers that are above a bound, in their order, in the place of the numbers if that is given, and
   return how many they are. */
static ptrdiff_t keep_above(const double *numbers, ptrdiff_t n, double bound, double *kept)
{
    ptrdiff_t count = 0, i = 0;
#ifdef __AVX2__ /* No compiler makes this of the loop below, which takes three times as long. */
    for (; i + 4 <= n; i += 4)
        count += keep_above_of_four(numbers + i, _mm256_set1_pd(bound), kept + count);
#endif
    for (; i < n; i++) {
        double number = numbers[i];
        kept[count] = number;
        count += number > bound;
    }
    return count;
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
            count = keep_above(numbers, n, kth_smallest(sample, SAMPLE, SAMPLE - rank), selected);
        if (count > r) {
            numbers = selected;
            n = count;
        }
    }
    double bound = kth_smallest(numbers, n, n - r + 1); /* Others may be equal to it. */
    for (ptrdiff_t count = keep_above(numbers, n, bound, selected); count < r; count++)
        selected[count] = bound;
}

/* Sum the exponentials of each row, write its `top` largest f and, where that is asked for, the first place of its
   largest; return how many f are refused. `row` and `scratch` have room for whole lanes. */
static int64_t sum_and_select(const matrix *logits, ptrdiff_t first, ptrdiff_t count, double scale, ptrdiff_t top,
                              double *row, double *scratch, double *selected, double *places, sums *s)
{
    ptrdiff_t classes = logits->columns;
    int64_t refused = 0;
    memset(s, 0, sizeof *s);
    memset(selected, 0, (size_t)(top * LANES) * sizeof *selected);
    for (ptrdiff_t lane = 0; lane < count; lane++) {
        sums alone;
        refused += sum_alone(logits, first + lane, scale, row, scratch, &alone);
        s->largest[lane] = alone.largest[lane];
        s->equals[lane] = alone.equals[lane];
        s->below[lane] = alone.below[lane];
        if (places)
            places[lane] = (double)place_of(s->largest[lane], row, classes);
        select_largest(row, classes, top, scratch);
        for (ptrdiff_t j = 0; j < top; j++)
            selected[j * LANES + lane] = scratch[j];
    }
    return refused;
}

/* ln of the sum of e^x over all f of a row below the largest, where that underflows. */
static double log_of_tiny(const double *f, ptrdiff_t classes, double largest, double scale)
{
    double second = -HUGE_VAL, total = 0;
    for (ptrdiff_t j = 0; j < classes; j++)
        if (second < f[j] && f[j] < largest)
            second = f[j];
    for (ptrdiff_t j = 0; j < classes; j++)
        if (f[j] < largest)
            total += exp((f[j] - second) * scale);
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

/* ln(others) of each row. `row` has room for one. */
static void take_log_of_others(const matrix *logits, ptrdiff_t first, ptrdiff_t count, double scale, const sums *s,
                               double *row, double *restrict logarithms)
{
#pragma omp simd
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        logarithms[lane] = logarithm(s->others[lane]);
    for (ptrdiff_t lane = 0; lane < count; lane++)
        if (s->others[lane] < UNDERFLOWING) {
            read_row(logits, first + lane, row);
            logarithms[lane] = log_of_tiny(row, logits->columns, s->largest[lane], scale);
        }
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

/* How GEN is taken of logits, and three times room for LANES rows of the numbers that count, or one of all. */
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
    ptrdiff_t classes = logits->columns, along = numbers_along(classes);
    ptrdiff_t numbers = LANES * (top == classes ? classes : top > along ? top : along);
    power of_rest = {coefficients, squarings};
    return (entropy){temperature, gamma, top, of_rest, scratch, scratch + numbers, scratch + 2 * numbers};
}

/* Write GEN of up to LANES rows, the sums that it is made of and, where that is asked for, the first places of the
   largest logits; return how many logits are refused. */
static int64_t take_entropies(const entropy *e, const matrix *logits, ptrdiff_t first, ptrdiff_t count, sums *s,
                              double *places, double *restrict out)
{
    ptrdiff_t classes = logits->columns;
    double scale = 1.0 / e->temperature, sum[LANES], log_others[LANES];
    int64_t refused;
    if (e->top == classes) {
        refused = read_logits(logits, first, count, e->f, s);
        if (places)
            find_first(e->f, classes, s->largest, places);
        take_both_exponentials(e->f, classes, scale, e->gamma, e->powers, e->exponentials, s);
        add_others(s);
    } else {
        double *selected = e->exponentials;
        refused = sum_and_select(logits, first, count, scale, e->top, e->f, e->powers, selected, places, s);
        add_others(s);
        take_both_exponentials(selected, e->top, scale, e->gamma, e->powers, e->exponentials, s);
    }
    take_log_of_others(logits, first, count, scale, s, e->f, log_others);
    sum_powers(e->powers, e->exponentials, e->top, &e->of_rest, s, sum);
    add_largest(sum, log_others, e->gamma, s, out);
    return refused;
}

/* Write GEN of each row over its `top` largest logits, all of them or fewer, and how many logits are refused.
   `coefficients` are those of (1 - p)^(gamma / 2^squarings), and `scratch` has the room that `entropy_of` says. */
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
        *refused += take_entropies(&e, logits, first, count, &s, NULL, out);
        memcpy(scores + first, out, (size_t)count * sizeof *out);
    }
}

/* Write those of GEN, ENERGY and MSP that are named, a column of each, at a temperature of 1, and the class of each
   row's largest logit: of one pass over the logits, and of the same exponentials. The rest is as above. */
void gen_energy_msp(const matrix *logits, double gamma, ptrdiff_t top, const double *coefficients, ptrdiff_t squarings,
                    const int64_t *names, const matrix *scores, ptrdiff_t *predicted, double *scratch,
                    int64_t *refused)
{
    entropy e = entropy_of(logits, 1.0, gamma, top, coefficients, squarings, scratch);
    softmaxes of_rows = {NULL, 0, logits->columns, 0}; /* Energy and MSP are made of the sums alone. */
    *refused = 0;
    for (ptrdiff_t first = 0; first < logits->rows; first += LANES) {
        ptrdiff_t count = smaller_of(LANES, logits->rows - first);
        double gen[LANES], out[LANES], places[LANES];
        sums s;
        *refused += take_entropies(&e, logits, first, count, &s, places, gen);
        for (ptrdiff_t lane = 0; lane < count; lane++)
            predicted[first + lane] = (ptrdiff_t)places[lane];
        for (ptrdiff_t column = 0; column < scores->columns; column++) {
            if (names[column] == GEN)
                memcpy(out, gen, sizeof out);
            else
                softmax_score(names[column], &of_rows, 1.0, &s, out);
            for (ptrdiff_t lane = 0; lane < count; lane++)
                row_of(scores, first + lane)[column] = out[lane];
        }
    }
}

/* The largest number of each of `count` rows, and the first column that has it. Return how many numbers are refused. */
static int64_t find_largest_and_first(const matrix *m, ptrdiff_t first, ptrdiff_t count, double *lanes, double *values,
                                      double *places)
{
    double size = largest_size(m->bytes);
    if (m->columns < MANY_CLASSES) {
        read_lanes(m, first, count, lanes);
        find_largest(lanes, m->columns, values);
        find_first(lanes, m->columns, values, places);
        return count_refused(lanes, m->columns * LANES, size);
    }
    int64_t refused = 0;
    for (ptrdiff_t lane = 0; lane < count; lane++) {
        read_row(m, first + lane, lanes);
        values[lane] = largest_of(lanes, m->columns);
        places[lane] = (double)place_of(values[lane], lanes, m->columns);
        refused += count_refused(lanes, m->columns, size);
    }
    return refused;
}

/* Write the largest number of each row and its column, the first of equal ones, and how many numbers are refused.
   `lanes` has the room that it has for `softmax_scores`. */
void largest_of_rows(const matrix *m, double *values, ptrdiff_t *columns, double *lanes, int64_t *refused)
{
    *refused = 0;
    for (ptrdiff_t first = 0; first < m->rows; first += LANES) {
        ptrdiff_t count = smaller_of(LANES, m->rows - first);
        double largest[LANES], places[LANES];
        *refused += find_largest_and_first(m, first, count, lanes, largest, places);
        for (ptrdiff_t lane = 0; lane < count; lane++) {
            values[first + lane] = largest[lane];
            columns[first + lane] = (ptrdiff_t)places[lane];
        }
    }
}
