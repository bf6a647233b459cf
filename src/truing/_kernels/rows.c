/* Passes over rows of features: their products with coefficients, and sums of products of their columns. */

#include "products.h"
#include "rows.h"

/* The product of every row with coef, and a constant. */
void row_products(const matrix *rows, const double *coef, double constant, double *restrict products)
{
    for (ptrdiff_t i = 0; i < rows->rows; i++) {
        const char *row = bytes_of_row(rows, i);
        if (rows->bytes == 8)
            products[i] = product(row, 8, coef, rows->columns) + constant;
        else if (rows->bytes == 4)
            products[i] = product(row, 4, coef, rows->columns) + constant;
        else
            products[i] = product(row, 2, coef, rows->columns) + constant;
    }
}

/* Sums of products of the columns [features, score, 1], the first two less a shift; so many rows are in panels at once. */
void sum_products(const matrix *features, const double *scores, const double *shift, ptrdiff_t at_once, double *scratch,
                  const matrix *out)
{
    ptrdiff_t d = features->columns;
    products all = no_products(scratch, d + 2, at_once);
    for (ptrdiff_t first = 0; first < features->rows; first += at_once) {
        ptrdiff_t count = smaller_of(at_once, features->rows - first);
        for (ptrdiff_t i = 0; i < count; i++) {
            read_row(features, first + i, all.row);
            for (ptrdiff_t j = 0; j < d; j++)
                all.row[j] -= shift[j];
            all.row[d] = scores[first + i] - shift[d];
            all.row[d + 1] = 1.0;
            lay_row(&all, i);
        }
        add_products(&all, count);
    }
    write_products(&all, out);
}
