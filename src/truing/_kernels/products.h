/* Sums of products of columns over rows, ZᵀZ.

   Some rows at a time are laid out in panels of four columns, and a tile of the sums stays in registers while the rows
   of its panels go by (Goto & van de Geijn 2008). BLAS takes a quarter longer for a hundred columns. */

#ifndef TRUING_PRODUCTS_H
#define TRUING_PRODUCTS_H

#include "numbers.h"

/* Columns of a panel, and the panels that a tile is wide: as many sums as there are registers for. */
#define PANEL 4
#if defined(__AVX2__) || defined(__aarch64__)
#define TILE 3
#else
#define TILE 1
#endif

/* Numbers between two panels. A power of two from one to the next would leave them few places in the cache. */
#define APART 8

/* A row of a panel. */
typedef double numbers __attribute__((vector_size(8 * PANEL)));

/* Where the sums of p columns are made: a row, the sums themselves, and panels of `rows` rows. */
typedef struct {
    ptrdiff_t panels;
    ptrdiff_t rows;
    ptrdiff_t from_panel_to_panel;
    double *row;
    double *sums;
    double *first_panel;
} products;

/* Divide up scratch of w (w + rows + 3) + 4 numbers, where w is p + 3; all sums are 0, and so is what follows a row. */
static inline products no_products(double *scratch, ptrdiff_t p, ptrdiff_t rows)
{
    products all;
    uintptr_t unit = sizeof(numbers);
    all.panels = (p + PANEL - 1) / PANEL;
    all.rows = rows;
    all.from_panel_to_panel = rows * PANEL + APART;
    all.row = (double *)(((uintptr_t)scratch + unit - 1) / unit * unit);
    all.sums = all.row + all.panels * PANEL;
    all.first_panel = all.sums + all.panels * PANEL * all.panels * PANEL;
    memset(all.row, 0, (size_t)(all.first_panel - all.row) * sizeof(double));
    return all;
}

/* Put the row into the panels, as row i. */
static inline void lay_row(const products *all, ptrdiff_t i)
{
    for (ptrdiff_t q = 0; q < all->panels; q++)
        *(numbers *)(all->first_panel + q * all->from_panel_to_panel + i * PANEL) = ((numbers *)all->row)[q];
}

/* Add panel q times `across` panels from r on, a constant, over so many rows. */
static inline __attribute__((always_inline)) void add_tile(const products *all, ptrdiff_t rows, ptrdiff_t q, ptrdiff_t r,
                                                           ptrdiff_t across)
{
    const double *left = all->first_panel + q * all->from_panel_to_panel;
    const numbers *right = (const numbers *)(all->first_panel + r * all->from_panel_to_panel);
    ptrdiff_t next = all->from_panel_to_panel / PANEL;
    numbers tile[PANEL][TILE] = {{{0}}};
    for (ptrdiff_t k = 0; k < rows; k++)
        for (ptrdiff_t i = 0; i < PANEL; i++)
            for (ptrdiff_t j = 0; j < across; j++)
                tile[i][j] += left[k * PANEL + i] * right[k + j * next];
    numbers *sums = (numbers *)all->sums + q * PANEL * all->panels + r;
    for (ptrdiff_t i = 0; i < PANEL; i++)
        for (ptrdiff_t j = 0; j < across; j++)
            sums[i * all->panels + j] += tile[i][j];
}

/* Add the products of the first rows in the panels, on and above the diagonal. */
static inline void add_products(const products *all, ptrdiff_t rows)
{
    ptrdiff_t r = 0;
    for (; r + TILE <= all->panels; r += TILE)
        for (ptrdiff_t q = 0; q < r + TILE; q++)
            add_tile(all, rows, q, r, TILE);
    for (; r < all->panels; r++)
        for (ptrdiff_t q = 0; q <= r; q++)
            add_tile(all, rows, q, r, 1);
}

/* Write the sums (p, p), the same on both sides of the diagonal. */
static inline void write_products(const products *all, const matrix *out)
{
    ptrdiff_t p = out->columns, width = all->panels * PANEL;
    for (ptrdiff_t i = 0; i < p; i++) {
        double *row = (double *)(out->first + i * out->stride);
        for (ptrdiff_t j = 0; j < i; j++)
            row[j] = all->sums[j * width + i];
        memcpy(row + i, all->sums + i * width + i, (size_t)(p - i) * sizeof(double));
    }
}

#endif
