/* Driver API: modules and kernels. They are accepted but never run. */
#include "handle.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
  char name[120];
} Handle;

void *new_handle(const char *name) {
  Handle *handle = calloc(1, sizeof *handle);
  snprintf(handle->name, sizeof handle->name, "%s", name ? name : "");
  return handle;
}

/* ---- modules ---- */

MAKE(cuModuleLoad, void **made, const char *path)
MAKE(cuModuleLoadData, void **made, const void *image)
MAKE(cuModuleLoadDataEx, void **made, const void *image, unsigned count, int *options, void **values)
MAKE(cuModuleLoadFatBinary, void **made, const void *binary)
MAKE(cuLibraryLoadData, void **made, const void *code, void *jit, void *jit_values, unsigned jit_count,
     void *options, void *values, unsigned count)

API CUresult cuModuleUnload(void *module) {
  NEEDS_INIT;
  free(module);
  return CUDA_SUCCESS;
}
ALIAS(cuLibraryUnload, cuModuleUnload);

API CUresult cuModuleGetFunction(Handle **function, void *module, const char *name) {
  NEEDS_INIT;
  *function = new_handle(name);
  return CUDA_SUCCESS;
}
ALIAS(cuLibraryGetKernel, cuModuleGetFunction);

API CUresult cuLibraryGetModule(void **module, void *library) {
  NEEDS_INIT;
  *module = library;
  return CUDA_SUCCESS;
}

API CUresult cuKernelGetFunction(Handle **function, Handle *kernel) {
  NEEDS_INIT;
  *function = kernel;
  return CUDA_SUCCESS;
}

/* All globals of all modules share one address on each GPU. XLA aborts if the address is not aligned to 128 bytes or
   is no memory of a GPU. */
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, void *module, const char *name) {
  static char globals[MAX_GPUS][1 << 16] __attribute__((aligned(4096)));
  NEEDS_INIT;
  if (!current_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  int gpu = physical_gpu(current_context()->device);
  uintptr_t place = (uintptr_t)globals[gpu];
  Block known;
  if (!find_block(place, &known)) {
    remember_block(place, sizeof globals[gpu], gpu, BLOCK_MAPPED);
  }
  if (address) {
    *address = place;
  }
  if (bytes) {
    *bytes = sizeof globals[gpu];
  }
  return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(int *mode) {
  enum { LAZY = 2 };
  NEEDS_INIT;
  *mode = LAZY;
  return CUDA_SUCCESS;
}

/* ---- functions and launches ---- */

API CUresult cuFuncGetAttribute(int *value, int attribute, Handle *function) {
  enum { MAX_THREADS_PER_BLOCK = 0, REGISTERS = 4 };
  NEEDS_INIT;
  *value = attribute == MAX_THREADS_PER_BLOCK ? 1024 : attribute == REGISTERS ? 32 : 0;
  return CUDA_SUCCESS;
}

API CUresult cuKernelGetAttribute(int *value, int attribute, Handle *kernel, CUdevice device) {
  return cuFuncGetAttribute(value, attribute, kernel);
}

API CUresult cuFuncGetName(const char **name, Handle *function) {
  NEEDS_INIT;
  *name = function->name;
  return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Handle *function, int threads,
                                                                  size_t shared_bytes, unsigned flags) {
  NEEDS_INIT;
  *blocks = 2;
  return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Handle *function, int threads,
                                                         size_t shared_bytes) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, Handle *function, void *shared_bytes_of,
                                              size_t shared_bytes, int limit) {
  NEEDS_INIT;
  *grid = 64;
  *block = 256;
  return CUDA_SUCCESS;
}

ACCEPT(cuFuncSetAttribute, Handle *function, int attribute, int value)
ACCEPT(cuKernelSetAttribute, int attribute, int value, Handle *kernel, CUdevice device)
ACCEPT(cuFuncSetCacheConfig, Handle *function, int config)
ACCEPT(cuFuncSetSharedMemConfig, Handle *function, int config)
ACCEPT(cuLaunchKernel, Handle *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
       unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream *stream, void **parameters,
       void **extra)
ACCEPT(cuLaunchCooperativeKernel, Handle *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream *stream,
       void **parameters)
ACCEPT(cuLaunchKernelEx, const void *config, Handle *function, void **parameters, void **extra)
