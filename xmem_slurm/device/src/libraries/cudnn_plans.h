/* What cudnn_plans.c (questions, and answers that are kept) and cudnn_helper.c (who answers) have of each other. */
#ifndef XMEM_CUDNN_PLANS_H
#define XMEM_CUDNN_PLANS_H

#include "../plans/protocol.h"
#include "cudnn_backend.h"

#define MAX_ANSWER_BYTES (1 << 18) /* a configuration takes some 30 bytes, and there are below 100 */

/* Keep why there is no answer; NULL. */
char *cudnn_no(const char *why);

/* "NVIDIA_TF32_OVERRIDE=0", or nothing. */
const char *cudnn_tf32(void);

/* The path of a file in the folder of this library; 0 if it is too long. */
int cudnn_path_beside(char *path, size_t size, const char *name);

/* Whether an answer is whole: it ends with its last line. */
int cudnn_is_whole(const char *answer, size_t bytes);

/* A whole answer, to be freed, or NULL. One thread at a time. */
char *cudnn_ask_helper(const char *library, const char *question);

#endif
