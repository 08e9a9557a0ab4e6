/* Driver API: modules, kernels and graphs: accepted, never run. */
#include "gpusim.h"

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

/* A call that makes something and hands it back through its first argument. */
#define MAKE(function, ...)            \
  API CUresult function(__VA_ARGS__) { \
    NEEDS_INIT;                        \
    *made = new_handle(#function);     \
    return CUDA_SUCCESS;               \
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

/* One place for every global of every module. XLA aborts where it is not aligned to 128 bytes. */
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, void *module, const char *name) {
  static char globals[1 << 16] __attribute__((aligned(4096)));
  NEEDS_INIT;
  if (address) {
    *address = (uintptr_t)globals;
  }
  if (bytes) {
    *bytes = sizeof globals;
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

/* ---- graphs: Keras' jit_compile="auto" builds them ---- */

MAKE(cuGraphCreate, void **made, unsigned flags)
MAKE(cuGraphClone, void **made, void *graph)
MAKE(cuGraphAddKernelNode_v2, void **made, void *graph, void *after, size_t count, void *parameters)
MAKE(cuGraphAddKernelNode, void **made, void *graph, void *after, size_t count, void *parameters)
MAKE(cuGraphAddMemcpyNode, void **made, void *graph, void *after, size_t count, void *parameters,
     void *context)
MAKE(cuGraphAddMemsetNode, void **made, void *graph, void *after, size_t count, void *parameters,
     void *context)
MAKE(cuGraphAddEmptyNode, void **made, void *graph, void *after, size_t count)
MAKE(cuGraphAddChildGraphNode, void **made, void *graph, void *after, size_t count, void *child)
MAKE(cuGraphInstantiateWithFlags, void **made, void *graph, uint64_t flags)
MAKE(cuGraphInstantiateWithParams, void **made, void *graph, void *parameters)

/* XLA wants a graph to have one node at least; the graph itself serves as that. */
API CUresult cuGraphGetRootNodes(void *graph, void **nodes, size_t *count) {
  NEEDS_INIT;
  if (nodes && *count) {
    nodes[0] = graph;
  }
  *count = 1;
  return CUDA_SUCCESS;
}
ALIAS(cuGraphGetNodes, cuGraphGetRootNodes);

API CUresult cuGraphNodeGetType(void *node, int *type) {
  enum { KERNEL_NODE = 0 };
  NEEDS_INIT;
  *type = KERNEL_NODE;
  return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetDependencies(void *node, void **nodes, size_t *count) {
  NEEDS_INIT;
  *count = 0;
  return CUDA_SUCCESS;
}

/* Their arguments don't matter, so they are left out. */
ACCEPT(cuGraphExecKernelNodeSetParams_v2)
ACCEPT(cuGraphExecMemcpyNodeSetParams)
ACCEPT(cuGraphExecMemsetNodeSetParams)
ACCEPT(cuGraphExecChildGraphNodeSetParams)
ACCEPT(cuGraphExecUpdate)
ACCEPT(cuGraphExecUpdate_v2)
ACCEPT(cuGraphKernelNodeSetAttribute)
ACCEPT(cuGraphNodeSetEnabled)
ACCEPT(cuGraphLaunch)
ACCEPT(cuGraphUpload)
ACCEPT(cuGraphDestroy)
ACCEPT(cuGraphExecDestroy)
ACCEPT(cuGraphDebugDotPrint)
ACCEPT(cuDeviceGraphMemTrim)
