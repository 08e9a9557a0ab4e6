/* Driver API: memory. GPU memory is host memory, reserved but not filled: an 11 GB arena costs nothing. */
#include "gpusim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KIB 1024ull
#define MIB (KIB * KIB)

static void *pointer(CUdeviceptr address) {
  return (void *)(uintptr_t)address;
}

/* ---- blocks: allocations of this process ---- */

static Block *blocks;

void remember_block(uint64_t address, uint64_t bytes, int gpu, BlockKind kind) {
  Block *block = malloc(sizeof *block);
  process_lock();
  *block = (Block){blocks, address, bytes, gpu, kind};
  blocks = block;
  process_unlock();
}

bool forget_block(uint64_t address, Block *forgotten) {
  bool is_found = false;
  process_lock();
  for (Block **link = &blocks; *link; link = &(*link)->next) {
    if ((*link)->address == address) {
      Block *block = *link;
      *forgotten = *block;
      *link = block->next;
      free(block);
      is_found = true;
      break;
    }
  }
  process_unlock();
  return is_found;
}

bool find_block(uint64_t address, Block *found) {
  bool is_found = false;
  process_lock();
  for (Block *block = blocks; block && !is_found; block = block->next) {
    if (address >= block->address && address < block->address + block->bytes) {
      *found = *block;
      is_found = true;
    }
  }
  process_unlock();
  return is_found;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

static void *reserve(uint64_t bytes, int protection) {
  void *start = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return start == MAP_FAILED ? NULL : start;
}

/* ---- allocate and free ---- */

static CUresult take(CUdevice device, uint64_t bytes) {
  int gpu = physical_gpu(device);
  bool is_granted = ledger_take(gpu, bytes) == GRANTED;
  log_call(is_granted ? "allocate" : "refused", gpu, bytes);
  return is_granted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void give_back(int gpu, uint64_t bytes) {
  ledger_give_back(gpu, bytes);
  log_call("free", gpu, bytes);
}

CUresult device_allocate(CUdeviceptr *address, size_t bytes, CUdevice device) {
  *address = 0;
  if (!bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t rounded = round_up(bytes, bytes >= MIB ? 2 * MIB : 4 * KIB);
  CUresult result = take(device, rounded);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  void *start = reserve(rounded, PROT_READ | PROT_WRITE);
  if (!start) {
    give_back(physical_gpu(device), rounded);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = (uintptr_t)start;
  remember_block(*address, rounded, physical_gpu(device), BLOCK_DEVICE);
  return CUDA_SUCCESS;
}

CUresult host_allocate(void **address, size_t bytes) {
  uint64_t rounded = round_up(bytes, 4 * KIB);
  *address = reserve(rounded, PROT_READ | PROT_WRITE);
  if (!*address) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  remember_block((uintptr_t)*address, rounded, -1, BLOCK_HOST);
  return CUDA_SUCCESS;
}

CUresult memory_free(uint64_t address) {
  Block block;
  if (!address) {
    return CUDA_SUCCESS;
  }
  if (!forget_block(address, &block)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(pointer(block.address), block.bytes);
  if (block.kind == BLOCK_DEVICE) {
    give_back(block.gpu, block.bytes);
  }
  return CUDA_SUCCESS;
}

static CUresult allocate_in_current_context(CUdeviceptr *address, size_t bytes) {
  NEEDS_INIT;
  Context *context = current_context();
  return context ? device_allocate(address, bytes, context->device) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  return allocate_in_current_context(address, bytes);
}

API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, Stream *stream) {
  return allocate_in_current_context(address, bytes);
}

API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
  return allocate_in_current_context(address, bytes);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                unsigned element) {
  *pitch = round_up(width, 512);
  return allocate_in_current_context(address, *pitch * height);
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
  NEEDS_INIT;
  return memory_free(address);
}

API CUresult cuMemFreeAsync(CUdeviceptr address, Stream *stream) {
  return cuMemFree_v2(address);
}

API CUresult cuMemAllocHost_v2(void **address, size_t bytes) {
  NEEDS_INIT;
  return host_allocate(address, bytes);
}

API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  return cuMemAllocHost_v2(address, bytes);
}

API CUresult cuMemFreeHost(void *address) {
  return cuMemFree_v2((uintptr_t)address);
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned flags) {
  NEEDS_INIT;
  *address = (uintptr_t)host;
  return CUDA_SUCCESS;
}

ACCEPT(cuMemHostRegister_v2, void *address, size_t bytes, unsigned flags)
ACCEPT(cuMemHostUnregister, void *address)

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  NEEDS_INIT;
  if (!current_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  CUdevice device = current_context()->device;
  *total_bytes = gpu_of(device)->memory_bytes;
  *free_bytes = *total_bytes - ledger_used_bytes(physical_gpu(device));
  return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address) {
  NEEDS_INIT;
  Block block;
  if (!find_block(address, &block)) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (start) {
    *start = block.address;
  }
  if (bytes) {
    *bytes = block.bytes;
  }
  return CUDA_SUCCESS;
}
ALIAS(cuMemGetAddressRange, cuMemGetAddressRange_v2);

static CUdevice device_of_gpu(int gpu) {
  for (CUdevice device = 0; device < device_count(); device++) {
    if (physical_gpu(device) == gpu) {
      return device;
    }
  }
  return 0;
}

API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
  enum { CONTEXT = 1, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, IS_MANAGED = 8, DEVICE_ORDINAL };
  enum { RANGE_START = 11, RANGE_SIZE, IS_MAPPED };
  enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };
  NEEDS_INIT;
  Block block = {0};
  bool is_ours = find_block(address, &block);
  bool is_about_the_block = attribute == CONTEXT || attribute == MEMORY_TYPE || attribute == DEVICE_ORDINAL ||
                            attribute == RANGE_START || attribute == RANGE_SIZE;
  if (is_about_the_block && !is_ours) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (attribute) {
    case CONTEXT: *(Context **)value = primary_context(device_of_gpu(block.gpu)); break;
    case MEMORY_TYPE: *(unsigned *)value = block.kind == BLOCK_HOST ? TYPE_HOST : TYPE_DEVICE; break;
    case DEVICE_POINTER:
    case HOST_POINTER: *(uint64_t *)value = address; break;
    case IS_MANAGED: *(unsigned *)value = 0; break;
    case DEVICE_ORDINAL: *(int *)value = device_of_gpu(block.gpu); break;
    case RANGE_START: *(uint64_t *)value = block.address; break;
    case RANGE_SIZE: *(size_t *)value = block.bytes; break;
    case IS_MAPPED: *(unsigned *)value = 1; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
