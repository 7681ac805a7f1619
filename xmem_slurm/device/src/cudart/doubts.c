/* What the dry run could not see: a table of doubts, counted, and read by the probe through xmem_device_report(). */
#include <pthread.h>
#include <stdio.h>

#include "runtime.h"

#define MAX_DOUBTS 512

static struct entry {
    const char *code, *detail;
    unsigned long long count;
} entries[MAX_DOUBTS];
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void xmem_doubt(const char *code, const char *detail) {
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < used && (strcmp(entries[i].code, code) != 0 || strcmp(entries[i].detail, detail) != 0))
        i++;
    if (i < MAX_DOUBTS) {
        if (i == used)
            entries[used++] = (struct entry){code, detail, 0};
        entries[i].count++;
    }
    pthread_mutex_unlock(&lock);
}

/* A default that returns 0 says nothing about memory, so it is a doubt only for those who ask for a trace. It may stand
 * for a launch. */
void xmem_default(const char *function) {
    xmem_forget_contents();
    if (!xmem_device()->trace)
        return;
    xmem_trace("default %s", function);
    xmem_doubt("default", function);
}

/* Write the doubts as a JSON list of {"code", "detail", "count"} into `out`. Returns the bytes of the whole text
 * without its final zero; where that is not less than `size`, the text was cut and the caller asks again with more
 * room. Codes and details are our own constants: plain ASCII without quotes. */
int xmem_device_report(char *out, size_t size) {
    pthread_mutex_lock(&lock);
    size_t at = 0;
    APPEND("[");
    for (size_t i = 0; i < used; i++)
        APPEND("%s{\"code\": \"%s\", \"detail\": \"%s\", \"count\": %llu}", i ? ", " : "", entries[i].code,
               entries[i].detail, entries[i].count);
    APPEND("]");
    pthread_mutex_unlock(&lock);
    return (int)at;
}
