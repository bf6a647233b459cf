#include "blas.h"

void (*dgemm)(char *, char *, int *, int *, int *, double *, double *, int *, double *, int *, double *, double *,
              int *);
void (*dsyrk)(char *, char *, int *, int *, double *, double *, int *, double *, double *, int *);
void (*dgemv)(char *, int *, int *, double *, double *, int *, double *, int *, double *, double *, int *);
void (*dtrsv)(char *, char *, char *, int *, double *, int *, double *, int *);
void (*dpotrf)(char *, int *, double *, int *, int *);
