// torch's own caching allocator, driven from standard input: the oracle of the allocator model's tests.
//
// Linked with libc10.so and libc10_cuda.so of one torch release, and run on the stand-in CUDA runtime. Arguments: the
// number of streams, the number of private pools, the memory fraction ("-": not set). One operation a line:
//
//     a ID BYTES STREAM POOL    allocate (POOL -1: the default pool)     f ID           free
//     r ID STREAM               record_stream                            e              empty_cache
//     s                         every event so far is ready              p              the segments
//     l                         launch a kernel
//     t                         read the rest (only a, f, e), then do it silently: the answer is the seconds it took
//
// One answer a line: the address (for "a"; -1 is out of memory), then the statistics in the order of `answer`.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <unordered_map>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using Pool = std::pair<unsigned long long, unsigned long long>;

// What libc10_cuda.so expects libtorch_cuda.so to have set up; the second is in it from 2.11 on.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*check)(DeviceIndex));
}
namespace c10::cuda::detail {
__attribute__((weak)) void init_p2p_access_cache(int64_t num_devices);
}

namespace {

using Stats = decltype(allocator::getDeviceStats(0));

void print_stat(const decltype(Stats{}.segment)& stat) {
    for (int type = 0; type < 3; ++type)  // all, small pool, large pool
        std::cout << ' ' << stat[type].current << ' ' << stat[type].peak << ' ' << stat[type].allocated;
}

void answer() {
    const Stats stats = allocator::getDeviceStats(0);
    for (const auto* stat :
         {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes,
          &stats.requested_bytes, &stats.allocation, &stats.segment, &stats.active, &stats.inactive_split})
        print_stat(*stat);
    std::cout << ' ' << stats.num_alloc_retries << ' ' << stats.num_ooms << ' ' << stats.num_sync_all_streams << ' '
              << stats.num_device_alloc << ' ' << stats.num_device_free << ' ' << stats.oversize_allocations.current
              << ' ' << stats.oversize_segments.current << '\n';
}

// Releases before 2.6 make a pool when it is first used; createOrIncrefPool is newer.
template <typename Allocator>
auto create_pool(Allocator* native, Pool pool, int) -> decltype(native->createOrIncrefPool(0, pool), void()) {
    native->createOrIncrefPool(0, pool);
}
template <typename Allocator>
void create_pool(Allocator* native, Pool pool, long) {
    native->beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    native->endAllocateToPool(0, pool);
}

// The operations that are left on standard input, done without a word in between.
double seconds_for_the_rest(const std::vector<c10::cuda::CUDAStream>& streams) {
    struct Operation {
        char kind;
        long id;
        size_t bytes;
        int stream;
    };
    std::vector<Operation> operations;
    std::string kind;
    long most = 0;
    while (std::cin >> kind) {
        Operation operation{kind[0], 0, 0, 0};
        int pool;
        if (kind == "a") std::cin >> operation.id >> operation.bytes >> operation.stream >> pool;
        if (kind == "f") std::cin >> operation.id;
        most = std::max(most, operation.id);
        operations.push_back(operation);
    }
    std::vector<c10::DataPtr> live(most + 1);
    auto* native = allocator::get();
    int current = -1;
    const auto start = std::chrono::steady_clock::now();
    for (const auto& operation : operations) {
        if (operation.kind == 'a') {
            if (operation.stream != current) c10::cuda::setCurrentCUDAStream(streams[current = operation.stream]);
            live[operation.id] = native->allocate(operation.bytes);
        } else if (operation.kind == 'f') {
            live[operation.id].clear();
        } else {
            allocator::emptyCache();
        }
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print_segments(const std::vector<c10::cuda::CUDAStream>& streams) {
    for (const auto& segment : allocator::snapshot().segments) {
        const auto stream = std::find_if(streams.begin(), streams.end(), [&](const auto& candidate) {
            return (void*)candidate.stream() == (void*)segment.stream;
        });
        std::cout << (unsigned long long)segment.address << ' ' << segment.total_size << ' '
                  << stream - streams.begin() << ' ' << (segment.is_large ? 'l' : 's') << ' ' << segment.is_expandable
                  << ' ' << static_cast<long long>(segment.owner_private_pool_id.second) - 1;
        for (const auto& block : segment.blocks)
            std::cout << ' ' << block.size << ' ' << block.requested_size << ' '
                      << (block.allocated ? 'A' : block.active ? 'P' : 'I');
        std::cout << '\n';
    }
    std::cout << "end\n";
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    std::ios::sync_with_stdio(false);
    c10::cuda::_internal::setHasPrimaryContext([](DeviceIndex) { return true; });
    allocator::init(1);
    if (c10::cuda::detail::init_p2p_access_cache) c10::cuda::detail::init_p2p_access_cache(1);
    auto* native = allocator::get();
    if (std::string(argv[3]) != "-") allocator::setMemoryFraction(std::atof(argv[3]), 0);

    std::vector<c10::cuda::CUDAStream> streams{c10::cuda::getDefaultCUDAStream(0)};
    while (streams.size() < std::stoul(argv[1])) streams.push_back(c10::cuda::getStreamFromPool(false, 0));
    std::vector<Pool> pools;
    for (unsigned long long id = 1; id <= std::stoull(argv[2]); ++id) {
        pools.emplace_back(0, id);
        create_pool(native, pools.back(), 0);
    }

    std::unordered_map<long, c10::DataPtr> live;
    std::string operation;
    while (std::cin >> operation) {
        long id = 0;
        size_t bytes = 0;
        int stream = 0, pool = 0;
        switch (operation[0]) {
            case 'a':
                std::cin >> id >> bytes >> stream >> pool;
                c10::cuda::setCurrentCUDAStream(streams[stream]);
                if (pool >= 0) native->beginAllocateToPool(0, pools[pool], [](cudaStream_t) { return true; });
                try {
                    auto pointer = native->allocate(bytes);
                    std::cout << reinterpret_cast<unsigned long long>(pointer.get());
                    live.emplace(id, std::move(pointer));
                } catch (const c10::OutOfMemoryError&) {
                    std::cout << -1;
                }
                if (pool >= 0) {
                    native->endAllocateToPool(0, pools[pool]);
                    native->releasePool(0, pools[pool]);
                }
                break;
            case 'f':
                std::cin >> id;
                live.erase(id);
                break;
            case 'r':
                std::cin >> id >> stream;
                allocator::recordStream(live.at(id), streams[stream]);
                break;
            case 'e':
                allocator::emptyCache();
                break;
            case 's':
                cudaDeviceSynchronize();
                break;
            case 'l':
                static_cast<void>(cudaLaunchKernel(nullptr, {1, 1, 1}, {1, 1, 1}, nullptr, 0, nullptr));
                break;
            case 't':
                std::cout << seconds_for_the_rest(streams) << '\n';
                std::cout.flush();
                _exit(0);
            case 'p':
                print_segments(streams);
                std::cout.flush();
                continue;
            default:
                return 2;
        }
        if (operation[0] != 'a') std::cout << 0;
        answer();
        if (std::cin.rdbuf()->in_avail() == 0) std::cout.flush();
    }
    std::cout.flush();
    _exit(0);  // the libraries' own clean-up asks the runtime for things that a stand-in does not have
}
