/* Finding driver functions by name: torch calls the driver only through here.
 *
 * cuda_runtime_api.h, "Driver Entry Point Access" (CUDA 12.9, 13.5): a name without its version suffix gives the newest
 * version of the function that the caller's CUDA knows. The stand-in libcuda.so.1 keeps to _v2 where one exists.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "runtime.h"

static void *driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

/* The stand-in driver lies beside this library; it may be mapped already, or the process may never have needed it. */
static void open_driver(void) {
    char path[4096];
    Dl_info self;
    driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver || !dladdr(&driver, &self))
        return;
    const char *slash = strrchr(self.dli_fname, '/');
    snprintf(path, sizeof path, "%.*slibcuda.so.1", slash ? (int)(slash - self.dli_fname + 1) : 0, self.dli_fname);
    driver = dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
}

void *xmem_driver_function(const char *name) {
    char versioned[256];
    pthread_once(&driver_once, open_driver);
    if (!driver)
        return NULL;
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    void *function = dlsym(driver, versioned);
    return function ? function : dlsym(driver, name);
}

/* *status: 0 found (cudaDriverEntryPointSuccess), 1 not found. */
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version UNUSED,
                                     unsigned long long flags UNUSED, int *status) {
    *function = xmem_driver_function(name);
    if (status)
        *status = *function == NULL;
    return SUCCESS;
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, function, XMEM_CUDA_VERSION, flags, status);
}
