/* Driver API: memory pools, and address ranges that are reserved separately from their memory. */
#include "gpusim.h"

#include <stdlib.h>
#include <sys/mman.h>

/* ---- pools ---- */

typedef struct {
  CUdevice device;
  uint64_t release_threshold, used_bytes, most_used_bytes;
} Pool;

static Pool default_pools[MAX_GPUS];

API CUresult cuDeviceGetDefaultMemPool(void *pool, CUdevice device) {
  NEEDS_DEVICE(device);
  default_pools[device].device = device;
  *(Pool **)pool = &default_pools[device];
  return CUDA_SUCCESS;
}
ALIAS(cuDeviceGetMemPool, cuDeviceGetDefaultMemPool);

/* The properties begin with two words for types. The location follows: its type and its device. */
static CUdevice device_in_properties(const int *properties) {
  return properties[3];
}

API CUresult cuMemPoolCreate(Pool **pool, const int *properties) {
  NEEDS_DEVICE(device_in_properties(properties));
  *pool = calloc(1, sizeof **pool);
  (*pool)->device = device_in_properties(properties);
  return CUDA_SUCCESS;
}

/* Freed memory leaves the ledger at once: our pools keep no memory. */
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, Pool *pool, Stream *stream) {
  NEEDS_INIT;
  CUresult result = device_allocate(address, bytes, pool->device);
  if (result == CUDA_SUCCESS) {
    pool->used_bytes += bytes;
    if (pool->used_bytes > pool->most_used_bytes) {
      pool->most_used_bytes = pool->used_bytes;
    }
  }
  return result;
}

enum { POOL_LAST_FLAG = 3, POOL_RELEASE_THRESHOLD = 4, POOL_RESERVED_HIGH = 6, POOL_USED_HIGH = 8 };

API CUresult cuMemPoolSetAttribute(void *of, int attribute, void *value) {
  Pool *pool = of;
  NEEDS_INIT;
  if (attribute == POOL_RELEASE_THRESHOLD) {
    pool->release_threshold = *(uint64_t *)value;
  }
  return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAttribute(void *of, int attribute, void *value) {
  Pool *pool = of;
  NEEDS_INIT;
  if (attribute <= POOL_LAST_FLAG) {
    *(int *)value = 1;
  } else if (attribute == POOL_RELEASE_THRESHOLD) {
    *(uint64_t *)value = pool->release_threshold;
  } else if (attribute == POOL_RESERVED_HIGH || attribute == POOL_USED_HIGH) {
    *(uint64_t *)value = pool->most_used_bytes;
  } else {
    *(uint64_t *)value = pool->used_bytes;
  }
  return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAccess(int *flags, Pool *pool, void *location) {
  enum { READ_WRITE = 3 };
  NEEDS_INIT;
  *flags = READ_WRITE;
  return CUDA_SUCCESS;
}

ACCEPT(cuDeviceSetMemPool, CUdevice device, Pool *pool)
ACCEPT(cuMemPoolDestroy, Pool *pool)
ACCEPT(cuMemPoolTrimTo, Pool *pool, size_t bytes)
ACCEPT(cuMemPoolSetAccess, Pool *pool, const void *map, size_t count)

/* ---- reserved addresses: TF's virtual memory allocator ---- */

typedef struct {
  uint64_t bytes;
  int gpu;
} Physical;

static void *pointer(CUdeviceptr address) {
  return (void *)(uintptr_t)address;
}

API CUresult cuMemGetAllocationGranularity(size_t *bytes, const int *properties, int option) {
  NEEDS_INIT;
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
                                 uint64_t flags) {
  NEEDS_INIT;
  void *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *address = (uintptr_t)start;
  return start == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  NEEDS_INIT;
  munmap(pointer(address), bytes);
  return CUDA_SUCCESS;
}

API CUresult cuMemCreate(uint64_t *handle, size_t bytes, const int *properties, uint64_t flags) {
  NEEDS_DEVICE(device_in_properties(properties));
  int gpu = physical_gpu(device_in_properties(properties));
  bool is_granted = ledger_take(gpu, bytes) == GRANTED;
  log_call(is_granted ? "allocate" : "refused", gpu, bytes);
  if (!is_granted) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Physical *physical = malloc(sizeof *physical);
  *physical = (Physical){bytes, gpu};
  *handle = (uintptr_t)physical;
  return CUDA_SUCCESS;
}

API CUresult cuMemRelease(uint64_t handle) {
  NEEDS_INIT;
  Physical *physical = pointer(handle);
  ledger_give_back(physical->gpu, physical->bytes);
  log_call("free", physical->gpu, physical->bytes);
  free(physical);
  return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags) {
  NEEDS_INIT;
  mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE);
  remember_block(address, bytes, ((Physical *)pointer(handle))->gpu, BLOCK_MAPPED);
  return CUDA_SUCCESS;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  NEEDS_INIT;
  Block block;
  forget_block(address, &block);
  madvise(pointer(address), bytes, MADV_DONTNEED);
  mprotect(pointer(address), bytes, PROT_NONE);
  return CUDA_SUCCESS;
}

ACCEPT(cuMemSetAccess, CUdeviceptr address, size_t bytes, const void *access, size_t count)
