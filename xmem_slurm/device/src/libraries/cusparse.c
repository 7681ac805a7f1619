/* libcusparse: matrix sizes (cusparse.h, CUDA 12.9 and 13.0). Buffer sizes come from outputs.txt. */
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

const char *cusparseGetErrorString(int status) { return status ? "cuSPARSE error" : "success"; }

int cusparseCreateCsr(void **matrix, int64_t rows, int64_t columns, int64_t nonzeros) {
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
