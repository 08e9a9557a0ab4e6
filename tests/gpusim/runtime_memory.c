/* The runtime API: memory, streams and events. It calls the driver API. */
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

/* Programs call cudaFree(0) to make a context. */
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

API cudaError cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                  Stream *stream) {
  return cudaMemcpy(to, from, bytes, 0);
}

API cudaError cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                size_t height, int kind, Stream *stream) {
  NEEDS_CURRENT_DEVICE;
  for (size_t row = 0; row < height; row++) {
    memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  }
  return CUDA_SUCCESS;
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

/* Symbols are never read, because no kernel is ever run. */
ACCEPT_ALWAYS(cudaMemcpyToSymbol, const void *symbol, const void *from, size_t bytes, size_t offset, int kind)
ACCEPT_ALWAYS(cudaHostRegister, void *address, size_t bytes, unsigned flags)
ACCEPT_ALWAYS(cudaHostUnregister, void *address)

/* ---- pools ---- */

API cudaError cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
  return remember_error(cuMemPoolGetAttribute(pool, attribute, value));
}

API cudaError cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
  return remember_error(cuMemPoolSetAttribute(pool, attribute, value));
}

ACCEPT_ALWAYS(cudaMemPoolSetAccess, void *pool, const void *map, size_t count)
ACCEPT_ALWAYS(cudaMemPoolTrimTo, void *pool, size_t bytes)

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

API cudaError cudaStreamGetPriority(Stream *stream, int *priority) {
  return cuStreamGetPriority(stream, priority);
}

API cudaError cudaStreamAddCallback(Stream *stream, void (*function)(Stream *, CUresult, void *), void *data,
                                    unsigned flags) {
  NEEDS_CURRENT_DEVICE;
  return cuStreamAddCallback(stream, function, data, flags);
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

API cudaError cudaEventRecordWithFlags(Event *event, Stream *stream, unsigned flags) {
  return cudaEventRecord(event, stream);
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
