/* What the hardware of a compute capability has, and how many blocks of a kernel fit on one multiprocessor.
 *
 * Sources: CUDA C++ Programming Guide 13.0, appendix "Compute Capabilities", table "Technical Specifications per
 * Compute Capability" (threads, blocks, registers, shared memory), 12.x for 7.0; NVIDIA's architecture white papers
 * (L2, bus). torch asks for them to choose kernels and the sizes of their scratch.
 */
#include "runtime.h"

#define REGISTERS 65536 /* per multiprocessor and per block, of every capability below */
#define SHARED_PER_BLOCK (48 * 1024)
#define RESERVED_PER_BLOCK 1024 /* shared memory that the system takes per block, from 8.0 on */

static const struct capability table[] = {
    /* major, minor, threads, blocks, shared per multiprocessor, opt-in per block, L2, bus */
    {7, 0, 2048, 32, 96 * 1024, 96 * 1024, 6 * 1024 * 1024, 4096},      /* V100 */
    {7, 5, 1024, 16, 64 * 1024, 64 * 1024, 4 * 1024 * 1024, 256},       /* T4 */
    {8, 0, 2048, 32, 164 * 1024, 163 * 1024, 40 * 1024 * 1024, 5120},   /* A100 */
    {8, 6, 1536, 16, 100 * 1024, 99 * 1024, 6 * 1024 * 1024, 384},      /* A10, A40 */
    {8, 9, 1536, 24, 100 * 1024, 99 * 1024, 96 * 1024 * 1024, 384},     /* L40S, L4 */
    {9, 0, 2048, 32, 228 * 1024, 227 * 1024, 60 * 1024 * 1024, 6144},   /* H200 */
    {10, 0, 2048, 32, 228 * 1024, 227 * 1024, 126 * 1024 * 1024, 8192}, /* B200 */
    {12, 0, 1536, 24, 100 * 1024, 99 * 1024, 128 * 1024 * 1024, 512},   /* RTX PRO 6000 Blackwell */
};

/* The row of the pretended GPU; a capability that the table lacks gets the nearest older one. */
const struct capability *xmem_capability(void) {
    const struct xmem_device *device = xmem_device();
    const struct capability *best = &table[0];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].major * 100 + table[i].minor <= device->major * 100 + device->minor)
            best = &table[i];
    return best;
}

/* Resident blocks per multiprocessor, from threads and shared memory; registers are not known without the kernel's
 * code, so they do not limit. */
int xmem_active_blocks(int threads_per_block, size_t dynamic_shared_bytes) {
    const struct capability *has = xmem_capability();
    int warps = (threads_per_block + 31) / 32;
    int blocks = warps > 0 ? has->threads_per_multiprocessor / (32 * warps) : has->blocks_per_multiprocessor;
    if (blocks > has->blocks_per_multiprocessor)
        blocks = has->blocks_per_multiprocessor;
    if (dynamic_shared_bytes) {
        size_t per_block = dynamic_shared_bytes + (has->major >= 8 ? RESERVED_PER_BLOCK : 0);
        size_t fit = (size_t)has->shared_per_multiprocessor / per_block;
        if (fit < (size_t)blocks)
            blocks = (int)fit;
    }
    return blocks > 0 ? blocks : 1;
}

/* Everything that torch, torchvision and triton read; the rest is 0. */
static int fill_properties(struct cudaDeviceProp *properties, int ordinal) {
    if (ordinal < 0 || ordinal >= xmem_visible_devices())
        return ERROR_INVALID_DEVICE;
    const struct xmem_device *device = xmem_device();
    const struct capability *has = xmem_capability();
    struct cudaDeviceProp all = {
        .uuid = {(char)(ordinal + 1)},
        .totalGlobalMem = device->total_bytes,
        .sharedMemPerBlock = SHARED_PER_BLOCK,
        .regsPerBlock = REGISTERS,
        .warpSize = 32,
        .memPitch = 2147483647,
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .totalConstMem = 65536,
        .major = device->major,
        .minor = device->minor,
        .textureAlignment = 512,
        .texturePitchAlignment = 32,
        .multiProcessorCount = device->multiprocessors,
        .canMapHostMemory = 1,
        .surfaceAlignment = 512,
        .concurrentKernels = 1,
        .ECCEnabled = 1,
        .pciBusID = ordinal + 1,
        .asyncEngineCount = 3,
        .unifiedAddressing = 1,
        .memoryBusWidth = has->memory_bus_bits,
        .l2CacheSize = has->l2_bytes,
        .persistingL2CacheMaxSize = has->major >= 8 ? has->l2_bytes / 8 * 5 : 0,
        .maxThreadsPerMultiProcessor = has->threads_per_multiprocessor,
        .streamPrioritiesSupported = 1,
        .globalL1CacheSupported = 1,
        .localL1CacheSupported = 1,
        .sharedMemPerMultiprocessor = (size_t)has->shared_per_multiprocessor,
        .regsPerMultiprocessor = REGISTERS,
        .managedMemory = 1,
        .concurrentManagedAccess = 1,
        .computePreemptionSupported = 1,
        .cooperativeLaunch = 1,
        .sharedMemPerBlockOptin = (size_t)has->shared_per_block_optin,
        .maxBlocksPerMultiProcessor = has->blocks_per_multiprocessor,
        .reservedSharedMemPerBlock = has->major >= 8 ? RESERVED_PER_BLOCK : 0,
        .hostRegisterSupported = 1,
        .memoryPoolsSupported = 1,
        .ipcEventSupported = 1,
        .clusterLaunch = has->major >= 9,
    };
    memcpy(all.name, device->name, sizeof all.name);
    *properties = all;
    return SUCCESS;
}

#if XMEM_CUDA_MAJOR == 12
/* CUDA 12's header renames cudaGetDeviceProperties to the _v2 name; the plain one keeps CUDA 11's shorter struct. */
int cudaGetDeviceProperties_v2(struct cudaDeviceProp *properties, int ordinal) {
    return fail(fill_properties(properties, ordinal));
}

int cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal) {
    struct cudaDeviceProp all;
    int error = fill_properties(&all, ordinal);
    if (!error)
        memcpy(properties, &all, offsetof(struct cudaDeviceProp, hostRegisterSupported));
    return fail(error);
}
#else
int cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal) {
    return fail(fill_properties(properties, ordinal));
}
#endif

/* enum cudaDeviceAttr and CUdevice_attribute share their numbers (driver_types.h, cuda.h). Unknown ones are 0: "no";
 * among them fabric handles (128) and multicast (132): torch then takes the plain way. */
int xmem_attribute(int *value, int attribute, int ordinal) {
    struct cudaDeviceProp all;
    int error = fill_properties(&all, ordinal);
    if (error)
        return error;
    const int known[] = {
        [1] = all.maxThreadsPerBlock,
        [2] = all.maxThreadsDim[0],
        [3] = all.maxThreadsDim[1],
        [4] = all.maxThreadsDim[2],
        [5] = all.maxGridSize[0],
        [6] = all.maxGridSize[1],
        [7] = all.maxGridSize[2],
        [8] = (int)all.sharedMemPerBlock,
        [9] = (int)all.totalConstMem,
        [10] = all.warpSize,
        [11] = (int)all.memPitch,
        [12] = REGISTERS, /* MaxRegistersPerBlock */
        [13] = 1980000,   /* ClockRate, kHz, of an H200: cuDNN's heuristics alone look at clocks, and on 9.0 alone */
        [14] = (int)all.textureAlignment,
        [15] = 1, /* GpuOverlap */
        [16] = all.multiProcessorCount,
        [19] = all.canMapHostMemory,
        [31] = all.concurrentKernels,
        [32] = all.ECCEnabled,
        [33] = all.pciBusID,
        [36] = 3201000, /* MemoryClockRate, kHz: as ClockRate */
        [37] = all.memoryBusWidth,
        [38] = all.l2CacheSize,
        [39] = all.maxThreadsPerMultiProcessor,
        [40] = all.asyncEngineCount,
        [41] = all.unifiedAddressing,
        [51] = (int)all.texturePitchAlignment,
        [75] = all.major,
        [76] = all.minor,
        [78] = all.streamPrioritiesSupported,
        [79] = all.globalL1CacheSupported,
        [80] = all.localL1CacheSupported,
        [81] = (int)all.sharedMemPerMultiprocessor,
        [82] = all.regsPerMultiprocessor,
        [83] = all.managedMemory,
        [89] = all.concurrentManagedAccess,
        [90] = all.computePreemptionSupported,
        [95] = all.cooperativeLaunch,
        [97] = (int)all.sharedMemPerBlockOptin,
        [99] = all.hostRegisterSupported,
        [102] = 1, /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
        [103] = 1, /* CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
        [106] = all.maxBlocksPerMultiProcessor,
        [108] = all.persistingL2CacheMaxSize,
        [111] = (int)all.reservedSharedMemPerBlock,
        [115] = all.memoryPoolsSupported,
        [120] = all.clusterLaunch,
        [125] = all.ipcEventSupported,
    };
    size_t count = sizeof known / sizeof *known;
    *value = attribute >= 0 && (size_t)attribute < count ? known[attribute] : 0;
    return SUCCESS;
}

int cudaDeviceGetAttribute(int *value, int attribute, int ordinal) {
    return fail(xmem_attribute(value, attribute, ordinal));
}

/* Between two GPUs of a node: yes. */
int cudaDeviceCanAccessPeer(int *can, int ordinal, int peer) {
    *can = ordinal != peer;
    return SUCCESS;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function UNUSED, int threads,
                                                  size_t dynamic_shared_bytes) {
    *blocks = xmem_active_blocks(threads, dynamic_shared_bytes);
    return SUCCESS;
}
