/* Where scores stand among known ones. */

#include <stddef.h>

/* Searches that go side by side: each of them waits for memory at every step. */
#define AT_ONCE 8

/* Whether a known number counts: it is below the score, or equal to it if ties count. NaN is above all numbers. */
static inline int counts(double known, double score, int with_ties)
{
    return with_ties ? !(score < known) : !(score <= known);
}

/* How many of m ascending numbers, one at least, count for each of some scores, by halving. */
static inline __attribute__((always_inline)) void count(const double *ordered, ptrdiff_t m, const double *scores,
                                                        ptrdiff_t searches, int with_ties, ptrdiff_t *out)
{
    ptrdiff_t from[AT_ONCE] = {0};
    for (ptrdiff_t left = m; left > 1; left -= left / 2)
        for (ptrdiff_t k = 0; k < searches; k++)
            from[k] += counts(ordered[from[k] + left / 2 - 1], scores[k], with_ties) ? left / 2 : 0;
    for (ptrdiff_t k = 0; k < searches; k++)
        out[k] = from[k] + counts(ordered[from[k]], scores[k], with_ties);
}

static inline __attribute__((always_inline)) void count_all(const double *ordered, ptrdiff_t m, const double *scores,
                                                            ptrdiff_t n, int with_ties, ptrdiff_t *out)
{
    ptrdiff_t i = 0;
    for (; i + AT_ONCE <= n; i += AT_ONCE)
        count(ordered, m, scores + i, AT_ONCE, with_ties, out + i);
    for (; i < n; i++)
        count(ordered, m, scores + i, 1, with_ties, out + i);
}

/* How many of m ascending numbers are up to each score, ties with it among them. */
void known_up_to(const double *ordered, ptrdiff_t m, const double *scores, ptrdiff_t n, ptrdiff_t *restrict out)
{
    count_all(ordered, m, scores, n, 1, out);
}

/* How many of m ascending numbers are below each score. */
void known_below(const double *ordered, ptrdiff_t m, const double *scores, ptrdiff_t n, ptrdiff_t *restrict out)
{
    count_all(ordered, m, scores, n, 0, out);
}
