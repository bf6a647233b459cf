/* Sums of products of columns over rows, ZᵀZ.

   Some rows at a time are laid out in panels of four columns, and a tile of the sums stays in registers while the rows
   of its panels go by (Goto & van de Geijn 2008). BLAS takes a quarter longer for a hundred columns. */

#ifndef TRUING_PRODUCTS_H
#define TRUING_PRODUCTS_H

#include "numbers.h"

/* Columns of a panel, and the panels that a tile is wide: as many sums as there are registers for. */
#define PANEL_COLUMNS 4
#if defined(__AVX2__) || defined(__aarch64__)
#define TILE 3
#else
#define TILE 1
#endif

/* Numbers between two panels. A power of two from one to the next would leave them few places in the cache. */
#define APART 8

/* A row of a panel, which is also read and written as single doubles. */
typedef double numbers __attribute__((vector_size(8 * PANEL_COLUMNS), may_alias));

/* Where the sums of p columns are made: a row, the sums themselves, `width` numbers each, and panels of `rows` rows.
   What is there beside the p columns is 0, to make whole tiles. */
typedef struct {
    ptrdiff_t panels;
    ptrdiff_t width;
    ptrdiff_t from_panel_to_panel;
    double *row;
    double *sums;
    double *first_panel;
} products;

/* The first place in scratch where a row of a panel may begin; up to three numbers before it are left. */
static inline double *first_aligned(double *scratch)
{
    uintptr_t unit = sizeof(numbers);
    return (double *)(((uintptr_t)scratch + unit - 1) / unit * unit);
}

/* Divide up scratch of w (w + rows + 3) + 4 numbers, where w is p + 11; sums are 0 at first. */
static inline products no_products(double *scratch, ptrdiff_t p, ptrdiff_t rows)
{
    products all;
    all.panels = (p + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    all.width = (p + PANEL_COLUMNS * TILE - 1) / (PANEL_COLUMNS * TILE) * PANEL_COLUMNS * TILE;
    all.from_panel_to_panel = rows * PANEL_COLUMNS + APART;
    all.row = first_aligned(scratch);
    all.sums = all.row + all.width;
    all.first_panel = all.sums + all.width * all.width;
    memset(all.row, 0, (size_t)(all.first_panel - all.row) * sizeof(double));
    double *end = all.first_panel + all.panels * all.from_panel_to_panel;
    memset(end, 0, (size_t)((all.width / PANEL_COLUMNS - all.panels) * all.from_panel_to_panel) * sizeof(double));
    return all;
}

/* Put the row into the panels, as row i. */
static inline void lay_row(const products *all, ptrdiff_t i)
{
    for (ptrdiff_t q = 0; q < all->panels; q++)
        *(numbers *)(all->first_panel + q * all->from_panel_to_panel + i * PANEL_COLUMNS) = ((numbers *)all->row)[q];
}

/* Products of each column of one panel with each of those of a tile, TILE panels that are `next` rows apart, over so many
   rows: they are added up in the order of the rows. */
static inline void multiply_panels(const double *left, const numbers *right, ptrdiff_t next, ptrdiff_t rows,
                                   numbers products[PANEL_COLUMNS][TILE])
{
    numbers tile[PANEL_COLUMNS][TILE] = {{{0}}};
    for (ptrdiff_t k = 0; k < rows; k++)
        for (ptrdiff_t i = 0; i < PANEL_COLUMNS; i++)
            for (ptrdiff_t j = 0; j < TILE; j++)
                tile[i][j] += left[k * PANEL_COLUMNS + i] * right[k + j * next];
    memcpy(products, tile, sizeof tile);
}

/* Add panel q times the panels of a tile from r on, over so many rows. */
static inline void add_tile(const products *all, ptrdiff_t rows, ptrdiff_t q, ptrdiff_t r)
{
    const double *left = all->first_panel + q * all->from_panel_to_panel;
    const numbers *right = (const numbers *)(all->first_panel + r * all->from_panel_to_panel);
    numbers tile[PANEL_COLUMNS][TILE];
    multiply_panels(left, right, all->from_panel_to_panel / PANEL_COLUMNS, rows, tile);
    for (ptrdiff_t i = 0; i < PANEL_COLUMNS; i++) {
        numbers *sums = (numbers *)(all->sums + (q * PANEL_COLUMNS + i) * all->width) + r;
        for (ptrdiff_t j = 0; j < TILE; j++)
            sums[j] += tile[i][j];
    }
}

/* Add the products of the first rows in the panels, on and below the diagonal. */
static inline void add_products(const products *all, ptrdiff_t rows)
{
    for (ptrdiff_t r = 0; r < all->panels; r += TILE)
        for (ptrdiff_t q = r; q < all->panels; q++)
            add_tile(all, rows, q, r);
}

/* Write the sums (p, p), the same on both sides of the diagonal. */
static inline void write_products(const products *all, const matrix *out)
{
    ptrdiff_t p = out->columns;
    for (ptrdiff_t i = 0; i < p; i++) {
        double *row = row_of(out, i);
        memcpy(row, all->sums + i * all->width, (size_t)(i + 1) * sizeof(double));
        for (ptrdiff_t j = i + 1; j < p; j++)
            row[j] = all->sums[j * all->width + i];
    }
}

#endif
