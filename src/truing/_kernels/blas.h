/* SciPy's BLAS and LAPACK, called as Fortran has them: columns in one piece, arguments by address. */

#ifndef TRUING_BLAS_H
#define TRUING_BLAS_H

/* C <- alpha op(A) op(B) + beta C. */
extern void (*dgemm)(char *transa, char *transb, int *m, int *n, int *k, double *alpha, double *a, int *lda, double *b,
                     int *ldb, double *beta, double *c, int *ldc);

/* C <- alpha op(A) op(A)' + beta C, one triangle of it. */
extern void (*dsyrk)(char *uplo, char *trans, int *n, int *k, double *alpha, double *a, int *lda, double *beta,
                     double *c, int *ldc);

/* y <- alpha op(A) x + beta y. */
extern void (*dgemv)(char *trans, int *m, int *n, double *alpha, double *a, int *lda, double *x, int *incx,
                     double *beta, double *y, int *incy);

/* x <- op(A)^-1 x for a triangle A. */
extern void (*dtrsv)(char *uplo, char *trans, char *diag, int *n, double *a, int *lda, double *x, int *incx);

/* The Cholesky factor of A in its place; info says which minor is not positive. */
extern void (*dpotrf)(char *uplo, int *n, double *a, int *lda, int *info);

#endif
