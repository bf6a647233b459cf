/* Whether numbers are such as truing computes with. */

#include <math.h>

#include "numbers.h"

/* Return whether some of n numbers are larger than `size`, or NaN, which fails the comparison. */
static int64_t some_exceed(const char *numbers, ptrdiff_t n, ptrdiff_t bytes, double size)
{
    int64_t exceed = 0;
    if (bytes == 8) {
        for (ptrdiff_t i = 0; i < n; i++)
            exceed |= !(fabs(((const double *)numbers)[i]) <= size);
    } else if (bytes == 4) {
        int32_t some = 0;
        for (ptrdiff_t i = 0; i < n; i++)
            some |= !(fabsf(((const float *)numbers)[i]) <= 0x1.fffffep127f);
        exceed = some;
    } else {
        uint16_t some = 0; /* Halves from the bits of infinity on. */
        for (ptrdiff_t i = 0; i < n; i++)
            some |= (((const uint16_t *)numbers)[i] & 0x7fff) >= 0x7c00;
        exceed = some;
    }
    return exceed;
}

/* Write whether all numbers are finite, and doubles no larger than `size`. */
void are_finite(const matrix *m, double size, int64_t *are)
{
    ptrdiff_t rows = m->rows, columns = m->columns;
    if (m->stride == columns * m->bytes) { /* All in one piece. */
        columns *= rows;
        rows = 1;
    }
    int64_t exceed = 0;
    for (ptrdiff_t i = 0; i < rows; i++)
        exceed |= some_exceed(bytes_of_row(m, i), columns, m->bytes, size);
    *are = !exceed;
}
