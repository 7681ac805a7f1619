/* Which architectures each kernel was compiled for: read off the fat binaries that nvcc embeds.
 *
 * CUDA picks, for a device of compute capability M.m, the machine code of the same M and the largest minor up to m, or
 * else compiles the newest PTX that is not newer; without either it answers cudaErrorNoKernelImageForDevice (CUDA C++
 * Programming Guide 12.9, "Binary Compatibility", "PTX Compatibility"). CUB asks cudaFuncGetAttributes which one was
 * taken and refuses architectures that its library was not compiled for, so the answer must be a true one.
 *
 * The layout of a fat binary is not documented; fields as in the public readers of it (magic numbers in
 * fatbinary_section.h, CUDA 12.9). What does not look like one counts as compiled for every device.
 */
#include <pthread.h>
#include <stdlib.h>

#include "runtime.h"

#define WRAPPER_MAGIC 0x466243b1u
#define BINARY_MAGIC 0xba55ed50u

struct wrapper { /* __fatBinC_Wrapper_t of fatbinary_section.h */
    uint32_t magic, version;
    const unsigned char *data;
    void *file;
};

struct binary { /* then `size` bytes of entries */
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};

enum entry_kind { PTX = 1, MACHINE_CODE = 2 };
struct entry { /* then, at `header_size`, `size` bytes of code */
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed_size, unknown;
    uint16_t minor, major;
    uint32_t architecture; /* 86 for sm_86 and compute_86 */
};

/* A registered fat binary; its image is looked for when it is first asked for, since that reads it. */
struct module {
    const struct wrapper *wrapper;
    int known;
    struct xmem_image image;
};

/* Kernels by the address of their host stub, in order of registration until first looked up. */
struct kernel {
    const void *function;
    struct module *module;
    const char *attention;
};
static struct kernel *kernels;
static size_t count, room, sorted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void **__cudaRegisterFatBinary(void *wrapper) {
    struct module *module = calloc(1, sizeof *module);
    if (module)
        module->wrapper = wrapper;
    return (void **)module;
}

void __cudaRegisterFunction(void **handle, const char *function, char *device_function UNUSED, const char *name,
                            int thread_limit UNUSED, void *thread UNUSED, void *block UNUSED, void *block_size UNUSED,
                            void *grid_size UNUSED, int *warp_size UNUSED) {
    pthread_mutex_lock(&lock);
    if (count == room) {
        size_t more = room ? 2 * room : 65536;
        struct kernel *grown = realloc(kernels, more * sizeof *grown);
        if (!grown) {
            pthread_mutex_unlock(&lock);
            return; /* unknown functions count as compiled for every device */
        }
        kernels = grown;
        room = more;
    }
    kernels[count++] = (struct kernel){function, (struct module *)handle, xmem_is_attention(name) ? name : NULL};
    pthread_mutex_unlock(&lock);
}

/* The image that CUDA would take on a device of this capability (86 for 8.6). */
static struct xmem_image choose(const struct wrapper *wrapper, uint32_t capability) {
    struct xmem_image best = {.binary = 0, .ptx = 0};
    if (!wrapper || wrapper->magic != WRAPPER_MAGIC || ((const struct binary *)wrapper->data)->magic != BINARY_MAGIC)
        return (struct xmem_image){.binary = (int)capability, .ptx = (int)capability};
    const struct binary *binary = (const struct binary *)wrapper->data;
    const unsigned char *at = wrapper->data + binary->header_size;
    const unsigned char *end = at + binary->size;
    uint32_t newest_ptx = 0;
    while (at + sizeof(struct entry) <= end) {
        const struct entry *entry = (const struct entry *)at;
        uint32_t architecture = entry->architecture;
        if (entry->kind == MACHINE_CODE && architecture / 10 == capability / 10 && architecture <= capability &&
            (int)architecture > best.binary)
            best = (struct xmem_image){.binary = (int)architecture, .ptx = (int)architecture};
        if (entry->kind == PTX && architecture <= capability && architecture > newest_ptx)
            newest_ptx = architecture;
        if (entry->header_size + entry->size == 0)
            break;
        at += entry->header_size + entry->size;
    }
    if (!best.binary && newest_ptx)
        best = (struct xmem_image){.binary = (int)capability, .ptx = (int)newest_ptx};
    return best;
}

static int by_function(const void *left, const void *right) {
    const struct kernel *a = left, *b = right;
    return (a->function > b->function) - (a->function < b->function);
}

int xmem_image_of(const void *function, struct xmem_image *image) {
    const struct xmem_device *device = xmem_device();
    int capability = device->major * 10 + device->minor;
    *image = (struct xmem_image){.binary = capability, .ptx = capability};
    pthread_mutex_lock(&lock);
    if (sorted != count) {
        qsort(kernels, count, sizeof *kernels, by_function);
        sorted = count;
    }
    struct kernel key = {.function = function};
    struct kernel *found = count ? bsearch(&key, kernels, count, sizeof *kernels, by_function) : NULL;
    if (found && found->module) {
        if (!found->module->known) {
            found->module->image = choose(found->module->wrapper, (uint32_t)capability);
            found->module->known = 1;
        }
        *image = found->module->image;
        image->attention = found->attention;
    }
    pthread_mutex_unlock(&lock);
    return image->binary ? SUCCESS : fail(ERROR_NO_KERNEL_IMAGE);
}
