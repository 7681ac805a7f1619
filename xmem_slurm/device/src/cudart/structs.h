/* The structs of the CUDA runtime and driver that the stand-ins read or fill, declared here so that no toolkit is
 * needed.
 *
 * XMEM_CUDA_MAJOR (12 or 13) chooses the layout. Sources: driver_types.h and cuda.h of CUDA 12.1 to 12.9 and of 13.0 to
 * 13.5; tests/integration/device/test_device_layout.py compares sizes and offsets with those headers. Fields that are
 * never set are kept under their names, because what counts is where the others lie.
 */
#ifndef XMEM_STRUCTS_H
#define XMEM_STRUCTS_H

#include <stddef.h>

#if XMEM_CUDA_MAJOR == 12
#define ONLY_CUDA_12(field) field
#elif XMEM_CUDA_MAJOR == 13
#define ONLY_CUDA_12(field)
#else
#error "XMEM_CUDA_MAJOR must be 12 or 13"
#endif

struct dim3 {
    unsigned x, y, z;
};

struct cudaDeviceProp {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    size_t memPitch;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    ONLY_CUDA_12(int clockRate;)
    size_t totalConstMem;
    int major;
    int minor;
    size_t textureAlignment;
    size_t texturePitchAlignment;
    ONLY_CUDA_12(int deviceOverlap;)
    int multiProcessorCount;
    ONLY_CUDA_12(int kernelExecTimeoutEnabled;)
    int integrated;
    int canMapHostMemory;
    ONLY_CUDA_12(int computeMode;)
    int maxTexture1D;
    int maxTexture1DMipmap;
    ONLY_CUDA_12(int maxTexture1DLinear;)
    int maxTexture2D[2];
    int maxTexture2DMipmap[2];
    int maxTexture2DLinear[3];
    int maxTexture2DGather[2];
    int maxTexture3D[3];
    int maxTexture3DAlt[3];
    int maxTextureCubemap;
    int maxTexture1DLayered[2];
    int maxTexture2DLayered[3];
    int maxTextureCubemapLayered[2];
    int maxSurface1D;
    int maxSurface2D[2];
    int maxSurface3D[3];
    int maxSurface1DLayered[2];
    int maxSurface2DLayered[3];
    int maxSurfaceCubemap;
    int maxSurfaceCubemapLayered[2];
    size_t surfaceAlignment;
    int concurrentKernels;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
    int tccDriver;
    int asyncEngineCount;
    int unifiedAddressing;
    ONLY_CUDA_12(int memoryClockRate;)
    int memoryBusWidth;
    int l2CacheSize;
    int persistingL2CacheMaxSize;
    int maxThreadsPerMultiProcessor;
    int streamPrioritiesSupported;
    int globalL1CacheSupported;
    int localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor;
    int managedMemory;
    int isMultiGpuBoard;
    int multiGpuBoardGroupID;
    int hostNativeAtomicSupported;
    ONLY_CUDA_12(int singleToDoublePrecisionPerfRatio;)
    int pageableMemoryAccess;
    int concurrentManagedAccess;
    int computePreemptionSupported;
    int canUseHostPointerForRegisteredMem;
    int cooperativeLaunch;
    ONLY_CUDA_12(int cooperativeMultiDeviceLaunch;)
    size_t sharedMemPerBlockOptin;
    int pageableMemoryAccessUsesHostPageTables;
    int directManagedMemAccessFromHost;
    int maxBlocksPerMultiProcessor;
    int accessPolicyMaxWindowSize;
    size_t reservedSharedMemPerBlock;
    int hostRegisterSupported; /* the first field that CUDA 11's struct does not have */
    int sparseCudaArraySupported;
    int hostRegisterReadOnlySupported;
    int timelineSemaphoreInteropSupported;
    int memoryPoolsSupported;
    int gpuDirectRDMASupported;
    unsigned gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    unsigned memoryPoolSupportedHandleTypes;
    int deferredMappingCudaArraySupported;
    int ipcEventSupported;
    int clusterLaunch;
    int unifiedFunctionPointers;
    int reserved[63]; /* CUDA 13 took seven of these for NUMA, MPS and PCI identifiers; 0 for us */
};

/* enum cudaMemoryType */
enum { MEMORY_UNREGISTERED = 0, MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_MANAGED = 3 };

struct cudaPointerAttributes {
    int type;
    int device;
    void *devicePointer;
    void *hostPointer;
#if XMEM_CUDA_MAJOR == 13
    long reserved[8];
#endif
};

struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    size_t constSizeBytes;
    size_t localSizeBytes;
    int maxThreadsPerBlock;
    int numRegs;
    int ptxVersion;
    int binaryVersion;
    int cacheModeCA;
    int maxDynamicSharedSizeBytes;
    int preferredShmemCarveout;
    int clusterDimMustBeSet;
    int requiredClusterWidth;
    int requiredClusterHeight;
    int requiredClusterDepth;
    int clusterSchedulingPolicyPreference;
    int nonPortableClusterSizeAllowed;
    int reserved[16];
};

/* CUmemAllocationProp; location.id is the device. */
struct CUmemAllocationProp {
    int type;
    int requestedHandleTypes;
    struct {
        int type;
        int id;
    } location;
    void *win32HandleMetaData;
    unsigned char allocFlags[8];
};

#endif
