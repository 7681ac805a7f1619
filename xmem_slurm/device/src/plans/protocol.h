/* What the stand-in libcudnn and its helper agree on (libraries/cudnn_plans.c, plans/answer.c). */
#ifndef XMEM_PLANS_PROTOCOL_H
#define XMEM_PLANS_PROTOCOL_H

#define HELPER "cudnn-plans" /* the program, in the folder of the stand-ins */
#define END "end\n"          /* the last line of every question and answer */
#ifndef ANSWER_SECONDS
#define ANSWER_SECONDS 20 /* for one answer; the first one loads cuDNN, 300 MiB of files, perhaps over a network */
#endif
#define PATIENCE_SECONDS (10 * ANSWER_SECONDS) /* the same on the wall, where others have the CPUs */
#ifndef IDLE_SECONDS
#define IDLE_SECONDS 60 /* the helper ends after so long without a question */
#endif

#endif
