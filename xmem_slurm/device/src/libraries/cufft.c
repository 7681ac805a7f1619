/* libcufft: plan numbers (cufft.h, CUDA 12.9 and 13.0). Work sizes come from outputs.txt. */
#include "../xmem.h"

int cufftCreate(int *plan) {
    static int last;
    *plan = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    return 0;
}
