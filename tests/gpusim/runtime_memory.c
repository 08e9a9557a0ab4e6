/* The runtime API: memory, streams and events, over the driver's. */
#include "gpusim.h"

#include <string.h>

/* ---- memory ---- */

API cudaError cudaMalloc(void **address, size_t bytes) {
  *address = NULL;
  NEEDS_CURRENT_DEVICE;
  if (!bytes) {
    return CUDA_SUCCESS;
  }
  CUdeviceptr allocated;
  cudaError error = device_allocate(&allocated, bytes, current_context()->device);
  *address = (void *)(uintptr_t)allocated;
  return remember_error(error);
}

API cudaError cudaMallocAsync(void **address, size_t bytes, Stream *stream) {
  return cudaMalloc(address, bytes);
}

API cudaError cudaMallocManaged(void **address, size_t bytes, unsigned flags) {
  return cudaMalloc(address, bytes);
}

/* cudaFree(0) is the common way to make a context on purpose. */
API cudaError cudaFree(void *address) {
  NEEDS_CURRENT_DEVICE;
  return remember_error(memory_free((uintptr_t)address));
}

API cudaError cudaFreeAsync(void *address, Stream *stream) {
  return cudaFree(address);
}

API cudaError cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
  NEEDS_CURRENT_DEVICE;
  return host_allocate(address, bytes);
}

API cudaError cudaMallocHost(void **address, size_t bytes) {
  return cudaHostAlloc(address, bytes, 0);
}

API cudaError cudaFreeHost(void *address) {
  return remember_error(memory_free((uintptr_t)address));
}

API cudaError cudaHostGetDevicePointer(void **address, void *host, unsigned flags) {
  *address = host;
  return CUDA_SUCCESS;
}

API cudaError cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  NEEDS_CURRENT_DEVICE;
  return cuMemGetInfo_v2(free_bytes, total_bytes);
}

API cudaError cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  NEEDS_CURRENT_DEVICE;
  memmove(to, from, bytes);
  return CUDA_SUCCESS;
}

API cudaError cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream *stream) {
  return cudaMemcpy(to, from, bytes, kind);
}

API cudaError cudaMemset(void *at, int value, size_t count) {
  NEEDS_CURRENT_DEVICE;
  memset(at, value, count);
  return CUDA_SUCCESS;
}

API cudaError cudaMemsetAsync(void *at, int value, size_t count, Stream *stream) {
  return cudaMemset(at, value, count);
}

API cudaError cudaPointerGetAttributes(void *attributes, const void *address) {
  enum { TYPE_UNREGISTERED = 0, TYPE_HOST = 1, TYPE_DEVICE = 2 };
  struct {
    int type, device;
    const void *device_address, *host_address;
  } known = {.type = TYPE_UNREGISTERED};
  Block block;
  if (find_block((uintptr_t)address, &block)) {
    known.type = block.kind == BLOCK_HOST ? TYPE_HOST : TYPE_DEVICE;
    known.device_address = address;
    known.host_address = address;
  }
  memcpy(attributes, &known, sizeof known);
  return CUDA_SUCCESS;
}

ACCEPT_ALWAYS(cudaHostRegister, void *address, size_t bytes, unsigned flags)
ACCEPT_ALWAYS(cudaHostUnregister, void *address)

/* ---- streams and events ---- */

API cudaError cudaStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
  NEEDS_CURRENT_DEVICE;
  return cuStreamCreateWithPriority(stream, flags, priority);
}

API cudaError cudaStreamCreateWithFlags(Stream **stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

API cudaError cudaStreamCreate(Stream **stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

API cudaError cudaStreamDestroy(Stream *stream) {
  return cuStreamDestroy_v2(stream);
}

API cudaError cudaStreamIsCapturing(Stream *stream, int *status) {
  *status = 0;
  return CUDA_SUCCESS;
}

API cudaError cudaStreamGetCaptureInfo_v2(Stream *stream, int *status, uint64_t *id, void **graph,
                                          const void ***nodes, size_t *count) {
  *status = 0;
  return CUDA_SUCCESS;
}

API cudaError cudaLaunchHostFunc(Stream *stream, void (*function)(void *), void *data) {
  NEEDS_CURRENT_DEVICE;
  return cuLaunchHostFunc(stream, function, data);
}

API cudaError cudaEventCreateWithFlags(Event **event, unsigned flags) {
  NEEDS_CURRENT_DEVICE;
  return cuEventCreate(event, flags);
}

API cudaError cudaEventCreate(Event **event) {
  return cudaEventCreateWithFlags(event, 0);
}

API cudaError cudaEventDestroy(Event *event) {
  return cuEventDestroy_v2(event);
}

API cudaError cudaEventRecord(Event *event, Stream *stream) {
  return cuEventRecord(event, stream);
}

API cudaError cudaEventElapsedTime(float *milliseconds, Event *start, Event *end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

ACCEPT_ALWAYS(cudaStreamSynchronize, Stream *stream)
ACCEPT_ALWAYS(cudaStreamQuery, Stream *stream)
ACCEPT_ALWAYS(cudaStreamWaitEvent, Stream *stream, Event *event, unsigned flags)
ACCEPT_ALWAYS(cudaEventQuery, Event *event)
ACCEPT_ALWAYS(cudaEventSynchronize, Event *event)
ACCEPT_ALWAYS(cudaThreadExchangeStreamCaptureMode, int *mode)
