// The interface of the library: the sets of kernels that this processor runs, the best first.
#include "abi.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define EXPORTED extern "C" __attribute__((visibility("default")))

extern const Kernels plain;
#if defined(__x86_64__)
extern const Kernels avx2;
extern const Kernels avx512;
extern const Kernels amx;
#endif

namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

// A process must request tiles: the kernel saves their state only then.
bool has_amx() {
#if defined(__linux__)
    constexpr long kRequestFeature = 0x1023, kTileData = 18;
    return has_avx512() && __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8") &&
           syscall(SYS_arch_prctl, kRequestFeature, kTileData) == 0;
#else
    return false;
#endif
}
#endif

}  // namespace

// Writes the sets that this processor runs into `sets`, which has room for four. Returns their number.
EXPORTED int32_t sluiceway_kernels(const Kernels** sets) {
    int32_t n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (has_amx()) sets[n++] = &amx;
    if (has_avx512()) sets[n++] = &avx512;
    if (has_avx2()) sets[n++] = &avx2;
#endif
    sets[n++] = &plain;
    return n;
}

// The digest of the sources of this library.
EXPORTED const char* sluiceway_digest() { return SLUICEWAY_DIGEST; }
