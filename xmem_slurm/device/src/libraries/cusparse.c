/* libcusparse: handles and matrix sizes (cusparse.h, CUDA 12.9 and 13.0). Buffer sizes come from outputs.txt. */
#include "../xmem.h"

struct matrix {
    int64_t rows, columns, nonzeros;
};

static int make_matrix(void **matrix, int64_t rows, int64_t columns, int64_t nonzeros) {
    if (make_handle(matrix, sizeof(struct matrix)))
        return 2;
    *(struct matrix *)*matrix = (struct matrix){rows, columns, nonzeros};
    return 0;
}

#define CREATE(name)                                                                                                   \
    int cusparseCreate##name(void **handle) { return make_handle(handle, 64); }
#define DESTROY(name)                                                                                                  \
    int cusparseDestroy##name(void *handle) {                                                                          \
        free(handle);                                                                                                  \
        return 0;                                                                                                      \
    }

/* cusparseCreate and cusparseDestroy themselves: no suffix. clang-format takes the lines for one declaration. */
/* clang-format off */
CREATE() DESTROY()
CREATE(MatDescr) DESTROY(MatDescr)
CREATE(Bsrsv2Info) DESTROY(Bsrsv2Info)
CREATE(Bsrsm2Info) DESTROY(Bsrsm2Info)
DESTROY(SpMat) DESTROY(DnMat) DESTROY(DnVec)
    /* clang-format on */

    int cusparseSpGEMM_createDescr(void **descriptor) {
    return make_handle(descriptor, 64);
}
int cusparseSpSV_createDescr(void **descriptor) { return make_handle(descriptor, 64); }
int cusparseSpSM_createDescr(void **descriptor) { return make_handle(descriptor, 64); }

const char *cusparseGetErrorString(int status) { return status ? "cuSPARSE error" : "success"; }

int cusparseCreateCsr(void **matrix, int64_t rows, int64_t columns, int64_t nonzeros) {
    return make_matrix(matrix, rows, columns, nonzeros);
}

int cusparseCreateCoo(void **matrix, int64_t rows, int64_t columns, int64_t nonzeros) {
    return make_matrix(matrix, rows, columns, nonzeros);
}

int cusparseCreateDnMat(void **matrix, int64_t rows, int64_t columns) {
    return make_matrix(matrix, rows, columns, rows * columns);
}

int cusparseCreateDnVec(void **vector, int64_t size) { return make_matrix(vector, size, 1, size); }

/* The nonzeros of a computed product are only known on a GPU: those of the descriptor are given. */
int cusparseSpMatGetSize(const struct matrix *matrix, int64_t *rows, int64_t *columns, int64_t *nonzeros) {
    doubt("cusparse", "cusparseSpMatGetSize");
    *rows = matrix->rows;
    *columns = matrix->columns;
    *nonzeros = matrix->nonzeros;
    return 0;
}

/* Nonzeros of a sum: at most those of both summands. */
int cusparseXcsrgeam2Nnz(void *handle UNUSED, int rows UNUSED, int columns UNUSED, void *a UNUSED, int nonzeros_a,
                         void *rows_a UNUSED, void *columns_a UNUSED, void *b UNUSED, int nonzeros_b,
                         void *rows_b UNUSED, void *columns_b UNUSED, void *c UNUSED, void *rows_c UNUSED,
                         int *nonzeros) {
    doubt("cusparse", "cusparseXcsrgeam2Nnz");
    *nonzeros = nonzeros_a + nonzeros_b;
    return 0;
}

/* -1: no zero pivot (cusparse.h). */
int cusparseXbsrsv2_zeroPivot(void *handle UNUSED, void *info UNUSED, int *position) {
    *position = -1;
    return 0;
}

int cusparseXbsrsm2_zeroPivot(void *handle UNUSED, void *info UNUSED, int *position) {
    *position = -1;
    return 0;
}
