/* Row kernels: sums over logits, products of rows with coefficients, and products of columns.

   Each function has a NumPy equivalent of the same name in plain.py. A function checks its arguments, releases the
   interpreter lock and then does arithmetic only. The order of additions depends only on the row, so that equal rows
   give bitwise equal results. The file uses the limited API and standard C: one binary serves all Python versions,
   and any C compiler can build it. */

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Compile a function twice. The loader chooses the version for AVX2 and FMA if the processor has them. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define VECTORISED __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif

/* A helper is compiled for AVX2 only if it is inlined into a VECTORISED function. */
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#if defined(_MSC_VER)
#define restrict __restrict
#endif

/* Alignment of scratch memory, in bytes. */
#define ALIGNMENT 64

/* Number of rows of logits that are read side by side, and of partial sums in a product of two vectors. */
#define LANES 16

/* Degree of the polynomial for (1 - p)^gamma, as in scores/exponentials.py. */
#define DEGREE 18

/* Largest number of columns. With more columns, the size of scratch memory could overflow. */
#define MOST_COLUMNS ((Py_ssize_t)1 << (sizeof(size_t) == 8 ? 28 : 13))

/* Number of columns in a panel, of columns in half a panel, and of rows that are multiplied at a time. */
#define PANEL 8
#define HALF 4
#define CHUNK 64

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *first;
    Py_ssize_t rows;
    Py_ssize_t columns;
    Py_ssize_t item; /* Bytes per number: 2, 4 or 8. */
} matrix;

INLINE const void *row_of(const matrix *m, Py_ssize_t i)
{
    return m->first + i * m->columns * m->item;
}

/* Convert a 16-bit float (a half) to a float. A subnormal half is a multiple of 2^-24. */
INLINE float half_as_float(uint16_t half)
{
    uint32_t bits = half & 0x7fff, sign = (uint32_t)(half & 0x8000) << 16, subnormal_bits;
    uint32_t normal_bits = ((bits << 13) + (112u << 23)) | (bits >= 0x7c00 ? 0x7f800000 : 0);
    float number = (float)(int32_t)bits * 0x1p-24f;
    memcpy(&subnormal_bits, &number, sizeof bits);
    bits = (bits < 0x400 ? subnormal_bits : normal_bits) | sign;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Write row i as doubles, `step` numbers apart. */
INLINE void read_row(const matrix *m, Py_ssize_t i, double *restrict out, Py_ssize_t step)
{
    Py_ssize_t n = m->columns;
    if (m->item == 8) {
        const double *numbers = row_of(m, i);
        for (Py_ssize_t j = 0; j < n; j++)
            out[j * step] = numbers[j];
    } else if (m->item == 4) {
        const float *numbers = row_of(m, i);
        for (Py_ssize_t j = 0; j < n; j++)
            out[j * step] = numbers[j];
    } else {
        const uint16_t *halves = row_of(m, i);
        for (Py_ssize_t j = 0; j < n; j++)
            out[j * step] = half_as_float(halves[j]);
    }
}

INLINE Py_ssize_t padded(Py_ssize_t n, Py_ssize_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Return uninitialised memory for `n` doubles at a multiple of ALIGNMENT bytes, or NULL. The caller frees `*block`. */
static double *aligned_doubles(Py_ssize_t n, void **block)
{
    *block = malloc((size_t)n * sizeof(double) + ALIGNMENT);
    uintptr_t start = (uintptr_t)*block;
    return *block ? (double *)((start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) : NULL;
}

/* ---- Sums over logits -------------------------------------------------------------------------------------------- */

/* Return e^x for x <= 709, to 1.4 units in the last place, and 0 for x < -708.7.

   x = k ln 2 + r with |r| <= ln 2 / 2 (Cody & Waite 1980), and e^r = 1 + r + r^2 q(r). The polynomial q of degree 9 is
   interpolated at Chebyshev points to an error of 2^-55. The factor 2^k is built from exponent bits, which are zero at
   k = -1023. */
INLINE double exponential(double x)
{
    const double to_integer = 0x1.8p52; /* Adding this rounds to an integer and moves it into the lowest bits. */
    const double log2e = 0x1.71547652b82fep0, ln2_high = 0x1.62e42fefa0000p-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
    const double least = -1023 * 0x1.62e42fefa39efp-1;
    double clipped = least > x ? least : x;
    double shifted = clipped * log2e + to_integer;
    double k = shifted - to_integer;
    double r = (clipped - k * ln2_high) - k * ln2_low;
    double r2 = r * r, r4 = r2 * r2;
    double q = (0x1.0000000000001p-1 + r * 0x1.5555555555556p-3) +
               r2 * (0x1.5555555553d63p-5 + r * 0x1.11111111109b3p-7) +
               r4 * ((0x1.6c16c1788bd90p-10 + r * 0x1.a01a01a7c41d5p-13) +
                     r2 * (0x1.a019b90d2ae7ap-16 + r * 0x1.71de0dae63bb3p-19) +
                     r4 * (0x1.289185613a3d6p-22 + r * 0x1.af38a9b0ec855p-26));
    double p = (1.0 + r) + r2 * q;
    uint64_t bits;
    double power;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

INLINE double tenth_power(double x)
{
    double square = x * x, fourth = square * square;
    return fourth * fourth * square;
}

/* LANES rows of logits side by side: number j of row `lane` is f[j * LANES + lane]. All loops run over whole lanes. */
typedef struct {
    Py_ssize_t classes;
    double *f;
    double *exponentials;
    double *powers;
    double largest[LANES];
    double smallest[LANES];
    double others[LANES]; /* Sum of e^x over all classes but one with the largest logit. */
    double equal[LANES];  /* Number of classes with the largest logit. */
} lanes;

#define FOR_LANES for (int lane = 0; lane < LANES; lane++)

/* Allocate the arrays of lanes. Return the memory, which the caller frees, or NULL. */
static void *new_lanes(lanes *l, Py_ssize_t classes)
{
    void *memory;
    l->classes = classes;
    l->f = aligned_doubles(3 * LANES * classes, &memory);
    if (l->f == NULL)
        return NULL;
    l->exponentials = l->f + LANES * classes;
    l->powers = l->exponentials + LANES * classes;
    return memory;
}

/* Read up to LANES rows from `first` on, and find their extremes. Lanes without a row repeat the last row. */
INLINE void read_lanes(const matrix *logits, Py_ssize_t first, lanes *l)
{
    double *f = l->f, largest[LANES], smallest[LANES];
    FOR_LANES {
        Py_ssize_t i = first + lane < logits->rows ? first + lane : logits->rows - 1;
        read_row(logits, i, f + lane, LANES);
    }
    FOR_LANES largest[lane] = smallest[lane] = f[lane];
    for (Py_ssize_t j = 1; j < l->classes; j++)
#pragma omp simd
        FOR_LANES {
            double number = f[j * LANES + lane];
            largest[lane] = number > largest[lane] ? number : largest[lane];
            smallest[lane] = number < smallest[lane] ? number : smallest[lane];
        }
    memcpy(l->largest, largest, sizeof largest);
    memcpy(l->smallest, smallest, sizeof smallest);
}

/* Return whether the logits are finite and at most `limit` in size. Comparisons miss NaN, but a sum does not. */
INLINE int are_valid(const lanes *l, double limit)
{
    int valid = 1;
    FOR_LANES valid &= l->largest[lane] <= limit && l->smallest[lane] >= -limit && l->others[lane] == l->others[lane];
    return valid;
}

/* Write e^x for x = (f - largest) * scale, where scale is 1 / T, and the sums `others` of e^x. */
INLINE void sum_exponentials(lanes *l, double scale)
{
    const double *restrict f = l->f;
    double *restrict exponentials = l->exponentials;
    double largest[LANES], below[LANES] = {0}, equal[LANES] = {0};
    memcpy(largest, l->largest, sizeof largest);
    for (Py_ssize_t j = 0; j < l->classes; j++)
#pragma omp simd
        FOR_LANES {
            double x = (f[j * LANES + lane] - largest[lane]) * scale, e = exponential(x);
            exponentials[j * LANES + lane] = e;
            double is_largest = x == 0.0; /* A branch would not be vectorised. */
            below[lane] += (1.0 - is_largest) * e;
            equal[lane] += is_largest;
        }
    FOR_LANES l->others[lane] = below[lane] + (equal[lane] - 1.0);
}

/* Write the mean of x = (f - largest) * scale over all classes. */
INLINE void mean_below_largest(const lanes *l, double scale, double *mean)
{
    double sum[LANES] = {0};
    for (Py_ssize_t j = 0; j < l->classes; j++)
#pragma omp simd
        FOR_LANES sum[lane] += (l->f[j * LANES + lane] - l->largest[lane]) * scale;
    FOR_LANES mean[lane] = sum[lane] / (double)l->classes;
}

/* Write the L1 distance of the softmax from the uniform distribution. */
INLINE void distance_from_uniform(const lanes *l, double *distance)
{
    double sum[LANES] = {0}, total[LANES], share = 1.0 / (double)l->classes;
    FOR_LANES total[lane] = 1.0 / (1.0 + l->others[lane]);
    for (Py_ssize_t j = 0; j < l->classes; j++)
#pragma omp simd
        FOR_LANES sum[lane] += fabs(l->exponentials[j * LANES + lane] * total[lane] - share);
    memcpy(distance, sum, sizeof sum);
}

INLINE void write_lanes(double *out, const matrix *logits, Py_ssize_t first, const double *values)
{
    Py_ssize_t count = logits->rows - first < LANES ? logits->rows - first : LANES;
    memcpy(out + first, values, (size_t)count * sizeof(double));
}

/* Write the results of softmax_sums. If `mean` or `distance` is NULL, it is not computed. Return whether all logits are
   valid. */
VECTORISED static int sum_logits(const matrix *logits, double scale, double limit, lanes *l, double *largest,
                                 double *others, double *mean, double *distance)
{
    int valid = 1;
    double values[LANES];
    for (Py_ssize_t first = 0; first < logits->rows; first += LANES) {
        read_lanes(logits, first, l);
        sum_exponentials(l, scale);
        valid &= are_valid(l, limit);
        write_lanes(largest, logits, first, l->largest);
        write_lanes(others, logits, first, l->others);
        if (mean) {
            mean_below_largest(l, scale, values);
            write_lanes(mean, logits, first, values);
        }
        if (distance) {
            distance_from_uniform(l, values);
            write_lanes(distance, logits, first, values);
        }
    }
    return valid;
}

/* Write the largest logit of each row, and the first column that contains it, as doubles. Return whether all logits are
   valid. */
VECTORISED static int find_largest(const matrix *logits, double limit, lanes *l, double *largest, double *columns)
{
    int valid = 1;
    for (Py_ssize_t first = 0; first < logits->rows; first += LANES) {
        double place[LANES] = {0}, sum[LANES] = {0}, top[LANES];
        read_lanes(logits, first, l);
        memcpy(top, l->largest, sizeof top);
        for (Py_ssize_t j = l->classes - 1; j >= 0; j--)
#pragma omp simd
            FOR_LANES {
                double number = l->f[j * LANES + lane];
                place[lane] = number == top[lane] ? (double)j : place[lane];
                sum[lane] += number;
            }
        memcpy(l->others, sum, sizeof sum);
        valid &= are_valid(l, limit);
        write_lanes(largest, logits, first, l->largest);
        write_lanes(columns, logits, first, place);
    }
    return valid;
}

/* The exponent gamma, and a polynomial in t = 4 p - 1 for (1 - p)^(gamma / 2^squarings), highest power first. */
typedef struct {
    double gamma;
    const double *coefficients;
    Py_ssize_t squarings;
} exponent;

/* Write e^x and e^(gamma x) for the classes below the largest logit, and 0 for the classes with the largest logit. Also
   write `equal` and the sums `others` of e^x. If gamma is one tenth, the default of GEN, e^x is computed as the tenth
   power of e^(gamma x). `is_tenth` is a compile-time constant, so that no loop branches. */
INLINE void take_both_powers(lanes *l, double scale, double gamma, int is_tenth)
{
    const double *restrict f = l->f;
    double *restrict exponentials = l->exponentials, *restrict powers = l->powers;
    double largest[LANES], below[LANES] = {0}, equal[LANES] = {0};
    memcpy(largest, l->largest, sizeof largest);
    for (Py_ssize_t j = 0; j < l->classes; j++)
#pragma omp simd
        FOR_LANES {
            double x = (f[j * LANES + lane] - largest[lane]) * scale;
            double power = exponential(gamma * x);
            double e = is_tenth ? tenth_power(power) : exponential(x);
            double is_largest = x == 0.0;
            e *= 1.0 - is_largest;
            powers[j * LANES + lane] = power * (1.0 - is_largest);
            exponentials[j * LANES + lane] = e;
            below[lane] += e;
            equal[lane] += is_largest;
        }
    FOR_LANES {
        l->equal[lane] = equal[lane];
        l->others[lane] = below[lane] + (equal[lane] - 1.0);
    }
}

/* Write the sum of e^(gamma x) (1 - p)^gamma over the classes below the largest logit, where p is at most 1/2. */
INLINE void sum_powers(const lanes *l, const exponent *power, double *out)
{
    const double *restrict exponentials = l->exponentials, *restrict powers = l->powers;
    double sum[LANES] = {0}, scale[LANES], c[DEGREE + 1];
    memcpy(c, power->coefficients, sizeof c);
    FOR_LANES scale[lane] = 4.0 / (1.0 + l->others[lane]);
    for (Py_ssize_t j = 0; j < l->classes; j++) {
        double rest[LANES];
#pragma omp simd
        FOR_LANES {
            double t = exponentials[j * LANES + lane] * scale[lane] - 1.0, t2 = t * t, even = c[0], odd = c[1];
            for (int k = 2; k < DEGREE; k += 2) {
                even = even * t2 + c[k];
                odd = odd * t2 + c[k + 1];
            }
            double value = (even * t2 + c[DEGREE]) + odd * t;
            rest[lane] = value < 1.0 ? value : 1.0; /* A rounding error above 1 would grow with every squaring. */
        }
        for (Py_ssize_t squaring = 0; squaring < power->squarings; squaring++)
            FOR_LANES rest[lane] *= rest[lane];
#pragma omp simd
        FOR_LANES sum[lane] += powers[j * LANES + lane] * rest[lane];
    }
    memcpy(out, sum, sizeof sum);
}

/* Write the sums from which GEN is computed, and return whether all logits are valid. If `are_given`, `logits` contains
   only the largest logits of each row, and `others` is an input: the sums over all classes. */
VECTORISED static int sum_entropies(const matrix *logits, double scale, double limit, const exponent *power, lanes *l,
                                    int are_given, double *others, double *equal, double *powers)
{
    int valid = 1;
    double values[LANES];
    for (Py_ssize_t first = 0; first < logits->rows; first += LANES) {
        read_lanes(logits, first, l);
        if (power->gamma == 0.1)
            take_both_powers(l, scale, 0.1, 1);
        else
            take_both_powers(l, scale, power->gamma, 0);
        valid &= are_valid(l, limit);
        if (are_given)
            FOR_LANES l->others[lane] = others[first + lane < logits->rows ? first + lane : logits->rows - 1];
        sum_powers(l, power, values);
        write_lanes(others, logits, first, l->others);
        write_lanes(equal, logits, first, l->equal);
        write_lanes(powers, logits, first, values);
    }
    return valid;
}

/* ---- Products of rows -------------------------------------------------------------------------------------------- */

INLINE double sum_of_lanes(const double *numbers)
{
    double sums[LANES / 2];
    for (int k = 0; k < LANES / 2; k++)
        sums[k] = numbers[k] + numbers[k + LANES / 2];
    for (int half = LANES / 4; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            sums[k] += sums[k + half];
    return sums[0];
}

/* Return the product of n numbers with n coefficients: LANES partial sums, plus the last n % LANES products. */
INLINE double dot(const double *row, const double *coef, Py_ssize_t n)
{
    double sums[LANES] = {0}, rest = 0;
    Py_ssize_t j = 0;
    for (; j + LANES <= n; j += LANES)
        FOR_LANES sums[lane] += row[j + lane] * coef[j + lane];
    for (; j < n; j++)
        rest += row[j] * coef[j];
    return sum_of_lanes(sums) + rest;
}

/* Numbers of all types are converted to double first, so that equal numbers give bitwise equal products. */
VECTORISED static void multiply_rows(const matrix *rows, const double *coef, double constant, double *numbers,
                                     double *out)
{
    for (Py_ssize_t i = 0; i < rows->rows; i++) {
        read_row(rows, i, numbers, 1);
        out[i] = dot(numbers, coef, rows->columns) + constant;
    }
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/* Write how many of m ascending numbers are below each of n scores. A score of NaN is above all numbers. LANES searches
   run side by side, so that their memory accesses overlap and no branch is mispredicted. */
VECTORISED static void count_below(const double *ordered, Py_ssize_t m, const double *scores, Py_ssize_t n,
                                   double *below)
{
    for (Py_ssize_t first = 0; first < n; first += LANES) {
        double x[LANES];
        Py_ssize_t place[LANES] = {0};
        FOR_LANES x[lane] = scores[first + lane < n ? first + lane : n - 1];
        Py_ssize_t half, left = m;
        for (; left > 1; left -= half) {
            half = left / 2;
            FOR_LANES place[lane] += half * !(ordered[place[lane] + half - 1] >= x[lane]);
        }
        for (int lane = 0; lane < LANES && first + lane < n; lane++)
            below[first + lane] = (double)(place[lane] + (m > 0 && !(ordered[place[lane]] >= x[lane])));
    }
}

/* ---- Products of columns ----------------------------------------------------------------------------------------- */

/* Add the products of HALF columns with PANEL columns over `rows` rows to `sums`, a matrix with `width` columns. */
INLINE void add_tile(const double *left, const double *right, Py_ssize_t rows, double *sums, Py_ssize_t width)
{
    double tile[HALF][PANEL] = {{0}};
    for (Py_ssize_t k = 0; k < rows; k++)
        for (int i = 0; i < HALF; i++)
#pragma omp simd
            for (int j = 0; j < PANEL; j++)
                tile[i][j] += left[k * PANEL + i] * right[k * PANEL + j];
    for (int i = 0; i < HALF; i++)
        for (int j = 0; j < PANEL; j++)
            sums[i * width + j] += tile[i][j];
}

/* Write row i of [features, score] minus the shift, followed by 1, as row k of the panels. */
INLINE void pack_row(const matrix *features, const double *scores, const double *shift, Py_ssize_t i, Py_ssize_t k,
                     double *row, double *panels, Py_ssize_t width)
{
    Py_ssize_t d = features->columns;
    read_row(features, i, row, 1);
    row[d] = scores[i];
    for (Py_ssize_t j = 0; j <= d; j++)
        row[j] -= shift[j];
    row[d + 1] = 1.0;
    for (Py_ssize_t panel = 0; panel < width / PANEL; panel++)
        memcpy(panels + (panel * CHUNK + k) * PANEL, row + panel * PANEL, PANEL * sizeof(double));
}

/* Write the lower triangle of the products of all pairs of columns to `sums`. Rows are added in order. */
VECTORISED static void multiply_columns(const matrix *features, const double *scores, const double *shift, double *row,
                                        double *panels, double *sums, Py_ssize_t width)
{
    for (Py_ssize_t start = 0; start < features->rows; start += CHUNK) {
        Py_ssize_t rows = features->rows - start < CHUNK ? features->rows - start : CHUNK;
        for (Py_ssize_t k = 0; k < rows; k++)
            pack_row(features, scores, shift, start + k, k, row, panels, width);
        for (Py_ssize_t right = 0; right < width; right += PANEL)
            for (Py_ssize_t left = right; left < width; left += HALF)
                add_tile(panels + left / PANEL * CHUNK * PANEL + left % PANEL, panels + right * CHUNK, rows,
                         sums + left * width + right, width);
    }
}

/* ---- The interface to Python ------------------------------------------------------------------------------------- */

/* Get a C-contiguous buffer of native floating-point numbers with `axes` axes, or set an error. */
static int get_buffer(PyObject *object, const char *name, int axes, int is_output, Py_buffer *view)
{
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (is_output ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    const char *format = view->format ? view->format : "B";
    int is_double = strcmp(format, "d") == 0;
    int is_narrow = strcmp(format, "f") == 0 || strcmp(format, "e") == 0;
    const char *wanted = NULL;
    if (view->ndim != axes)
        wanted = axes == 1 ? "1-D" : "2-D";
    else if (!is_double && (axes == 1 || is_output || !is_narrow))
        wanted = axes == 1 || is_output ? "float64" : "float16, float32 or float64";
    else if ((uintptr_t)view->buf % (size_t)view->itemsize)
        wanted = "aligned";
    if (wanted == NULL)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must be %s, got %d-D with format %s", name, wanted, view->ndim, format);
    PyBuffer_Release(view);
    return -1;
}

#define MOST_BUFFERS 6

/* The buffers of one call, to be released together. */
typedef struct {
    Py_buffer views[MOST_BUFFERS];
    int count;
} buffers;

static void release(buffers *all)
{
    while (all->count > 0)
        PyBuffer_Release(&all->views[--all->count]);
}

static Py_buffer *get(buffers *all, PyObject *object, const char *name, int axes, int is_output)
{
    Py_buffer *view = &all->views[all->count];
    if (get_buffer(object, name, axes, is_output, view) < 0)
        return NULL;
    all->count++;
    return view;
}

static int get_matrix(buffers *all, PyObject *object, const char *name, matrix *m)
{
    Py_buffer *view = get(all, object, name, 2, 0);
    if (view == NULL)
        return -1;
    *m = (matrix){view->buf, view->shape[0], view->shape[1], view->itemsize};
    if (m->columns >= 1 && m->columns <= MOST_COLUMNS)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must have 1 to %zd columns, got %zd", name, MOST_COLUMNS, m->columns);
    return -1;
}

/* Get a vector of `length` numbers. */
static int get_vector(buffers *all, PyObject *object, const char *name, Py_ssize_t length, int is_output,
                      double **vector)
{
    Py_buffer *view = get(all, object, name, 1, is_output);
    if (view == NULL)
        return -1;
    *vector = view->buf;
    if (view->shape[0] == length)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s must have %zd numbers, got %zd", name, length, view->shape[0]);
    return -1;
}

/* Get an output of `length` numbers, or NULL for None. */
static int get_optional(buffers *all, PyObject *object, const char *name, Py_ssize_t length, double **vector)
{
    *vector = NULL;
    return object == Py_None ? 0 : get_vector(all, object, name, length, 1, vector);
}

/* softmax_sums(logits, temperature, limit, largest, others, mean, distance) -> bool */
static PyObject *softmax_sums(PyObject *module, PyObject *arguments)
{
    PyObject *logits_in, *largest_in, *others_in, *mean_in, *distance_in, *result = NULL;
    double temperature, limit, *largest, *others, *mean, *distance;
    buffers all = {.count = 0};
    matrix logits;
    lanes l;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OddOOOO", &logits_in, &temperature, &limit, &largest_in, &others_in, &mean_in,
                          &distance_in))
        return NULL;
    if (get_matrix(&all, logits_in, "logits", &logits) == 0 &&
        get_vector(&all, largest_in, "largest", logits.rows, 1, &largest) == 0 &&
        get_vector(&all, others_in, "others", logits.rows, 1, &others) == 0 &&
        get_optional(&all, mean_in, "mean", logits.rows, &mean) == 0 &&
        get_optional(&all, distance_in, "distance", logits.rows, &distance) == 0) {
        void *memory = new_lanes(&l, logits.columns);
        int valid = 0;
        if (memory) {
            Py_BEGIN_ALLOW_THREADS
            valid = sum_logits(&logits, 1.0 / temperature, limit, &l, largest, others, mean, distance);
            Py_END_ALLOW_THREADS
        }
        result = memory ? PyBool_FromLong(valid) : PyErr_NoMemory();
        free(memory);
    }
    release(&all);
    return result;
}

/* largest_columns(logits, limit, largest, columns) -> bool */
static PyObject *largest_columns(PyObject *module, PyObject *arguments)
{
    PyObject *logits_in, *largest_in, *columns_in, *result = NULL;
    double limit, *largest, *columns;
    buffers all = {.count = 0};
    matrix logits;
    lanes l;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OdOO", &logits_in, &limit, &largest_in, &columns_in))
        return NULL;
    if (get_matrix(&all, logits_in, "logits", &logits) == 0 &&
        get_vector(&all, largest_in, "largest", logits.rows, 1, &largest) == 0 &&
        get_vector(&all, columns_in, "columns", logits.rows, 1, &columns) == 0) {
        void *memory = new_lanes(&l, logits.columns);
        int valid = 0;
        if (memory) {
            Py_BEGIN_ALLOW_THREADS
            valid = find_largest(&logits, limit, &l, largest, columns);
            Py_END_ALLOW_THREADS
        }
        result = memory ? PyBool_FromLong(valid) : PyErr_NoMemory();
        free(memory);
    }
    release(&all);
    return result;
}

/* entropy_sums(logits, temperature, limit, gamma, coefficients, squarings, are_given, others, equal, powers) -> bool */
static PyObject *entropy_sums(PyObject *module, PyObject *arguments)
{
    PyObject *logits_in, *coefficients_in, *others_in, *equal_in, *powers_in, *result = NULL;
    double temperature, limit, *coefficients, *others, *equal, *powers;
    int are_given;
    exponent power;
    buffers all = {.count = 0};
    matrix logits;
    lanes l;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OdddOnpOOO", &logits_in, &temperature, &limit, &power.gamma, &coefficients_in,
                          &power.squarings, &are_given, &others_in, &equal_in, &powers_in))
        return NULL;
    if (get_matrix(&all, logits_in, "logits", &logits) == 0 &&
        get_vector(&all, coefficients_in, "coefficients", DEGREE + 1, 0, &coefficients) == 0 &&
        get_vector(&all, others_in, "others", logits.rows, 1, &others) == 0 &&
        get_vector(&all, equal_in, "equal", logits.rows, 1, &equal) == 0 &&
        get_vector(&all, powers_in, "powers", logits.rows, 1, &powers) == 0) {
        void *memory = new_lanes(&l, logits.columns);
        int valid = 0;
        power.coefficients = coefficients;
        if (memory) {
            Py_BEGIN_ALLOW_THREADS
            valid = sum_entropies(&logits, 1.0 / temperature, limit, &power, &l, are_given, others, equal, powers);
            Py_END_ALLOW_THREADS
        }
        result = memory ? PyBool_FromLong(valid) : PyErr_NoMemory();
        free(memory);
    }
    release(&all);
    return result;
}

/* row_products(rows, coef, constant, out) -> None */
static PyObject *row_products(PyObject *module, PyObject *arguments)
{
    PyObject *rows_in, *coef_in, *out_in, *result = NULL;
    double constant, *coef, *out;
    buffers all = {.count = 0};
    matrix rows;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOdO", &rows_in, &coef_in, &constant, &out_in))
        return NULL;
    if (get_matrix(&all, rows_in, "rows", &rows) == 0 &&
        get_vector(&all, coef_in, "coef", rows.columns, 0, &coef) == 0 &&
        get_vector(&all, out_in, "out", rows.rows, 1, &out) == 0) {
        void *memory;
        double *numbers = aligned_doubles(rows.columns, &memory);
        if (numbers) {
            Py_BEGIN_ALLOW_THREADS
            multiply_rows(&rows, coef, constant, numbers, out);
            Py_END_ALLOW_THREADS
        }
        result = numbers ? Py_NewRef(Py_None) : PyErr_NoMemory();
        free(memory);
    }
    release(&all);
    return result;
}

/* counts_below(ordered, scores, below) -> None */
static PyObject *counts_below(PyObject *module, PyObject *arguments)
{
    PyObject *ordered_in, *scores_in, *below_in, *result = NULL;
    double *below;
    buffers all = {.count = 0};
    Py_buffer *ordered, *scores;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO", &ordered_in, &scores_in, &below_in))
        return NULL;
    if ((ordered = get(&all, ordered_in, "ordered", 1, 0)) != NULL &&
        (scores = get(&all, scores_in, "scores", 1, 0)) != NULL &&
        get_vector(&all, below_in, "below", scores->shape[0], 1, &below) == 0) {
        Py_BEGIN_ALLOW_THREADS
        count_below(ordered->buf, ordered->shape[0], scores->buf, scores->shape[0], below);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    release(&all);
    return result;
}

/* Write the lower triangle `sums` to both triangles of `out` (p, p). */
static void write_symmetric(const double *sums, Py_ssize_t width, double *out, Py_ssize_t p)
{
    for (Py_ssize_t i = 0; i < p; i++)
        for (Py_ssize_t j = 0; j <= i; j++)
            out[i * p + j] = out[j * p + i] = sums[i * width + j];
}

/* column_products(features, scores, shift, out) -> None */
static PyObject *column_products(PyObject *module, PyObject *arguments)
{
    PyObject *features_in, *scores_in, *shift_in, *out_in, *result = NULL;
    double *scores, *shift;
    buffers all = {.count = 0};
    matrix features;
    Py_buffer *out;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO", &features_in, &scores_in, &shift_in, &out_in))
        return NULL;
    if (get_matrix(&all, features_in, "features", &features) == 0 &&
        get_vector(&all, scores_in, "scores", features.rows, 0, &scores) == 0 &&
        get_vector(&all, shift_in, "shift", features.columns + 1, 0, &shift) == 0 &&
        (out = get(&all, out_in, "out", 2, 1)) != NULL) {
        Py_ssize_t p = features.columns + 2, width = padded(p, PANEL), numbers = width * (1 + CHUNK + width);
        void *memory = NULL;
        if (out->shape[0] != p || out->shape[1] != p) {
            PyErr_Format(PyExc_ValueError, "out must have shape (%zd, %zd), got (%zd, %zd)", p, p, out->shape[0],
                         out->shape[1]);
        } else {
            double *row = aligned_doubles(numbers, &memory);
            if (row) {
                double *panels = row + width, *sums = panels + width * CHUNK;
                Py_BEGIN_ALLOW_THREADS
                memset(row, 0, (size_t)numbers * sizeof(double));
                multiply_columns(&features, scores, shift, row, panels, sums, width);
                write_symmetric(sums, width, out->buf, p);
                Py_END_ALLOW_THREADS
            }
            result = row ? Py_NewRef(Py_None) : PyErr_NoMemory();
        }
        free(memory);
    }
    release(&all);
    return result;
}

static PyMethodDef functions[] = {
    {"softmax_sums", softmax_sums, METH_VARARGS, "See plain.softmax_sums."},
    {"entropy_sums", entropy_sums, METH_VARARGS, "See plain.entropy_sums."},
    {"largest_columns", largest_columns, METH_VARARGS, "See plain.largest_columns."},
    {"counts_below", counts_below, METH_VARARGS, "See plain.counts_below."},
    {"row_products", row_products, METH_VARARGS, "See plain.row_products."},
    {"column_products", column_products, METH_VARARGS, "See plain.column_products."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "compiled",
    .m_doc = "Row kernels in C.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit_compiled(void)
{
    return PyModuleDef_Init(&definition);
}
