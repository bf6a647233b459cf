/* Where scores stand among known ones. */

#include <stddef.h>

/* Searches that go side by side: each of them waits for memory at every step. */
#define AT_ONCE 8

/* Whether a known number counts: it is below the score, or equal to it if ties count. None is NaN, and a score that is
   NaN is above all. */
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

/* Go on from score i and number j: every step takes the next number or the next score. A branch between the two would be
   guessed wrong as often as not. */
static inline __attribute__((always_inline)) void merge(const double *ordered, ptrdiff_t j, ptrdiff_t to,
                                                        const double *scores, ptrdiff_t i, ptrdiff_t n, int with_ties,
                                                        ptrdiff_t *out)
{
    while (i < n && j < to) {
        int is_counted = counts(ordered[j], scores[i], with_ties);
        out[i] = j;
        j += is_counted;
        i += !is_counted;
    }
    for (; i < n; i++)
        out[i] = j;
}

/* How many of ascending numbers are below each of n ascending scores, and how many are up to it. Numbers before `from`
   are known to be, those after `to` not to be. A step waits for the one before, so that both counts go side by side. */
void known_beside_ascending(const double *ordered, ptrdiff_t from, ptrdiff_t to, const double *scores, ptrdiff_t n,
                            ptrdiff_t *restrict below, ptrdiff_t *restrict up_to)
{
    ptrdiff_t i = 0, j = from, k = 0, l = from;
    while (i < n && j < to && k < n && l < to) {
        int is_below = counts(ordered[j], scores[i], 0), is_up_to = counts(ordered[l], scores[k], 1);
        below[i] = j;
        up_to[k] = l;
        j += is_below;
        i += !is_below;
        l += is_up_to;
        k += !is_up_to;
    }
    merge(ordered, j, to, scores, i, n, 0, below);
    merge(ordered, l, to, scores, k, n, 1, up_to);
}
