/* Driver API: copies and fills. They are really done, and at once. */
#include "gpusim.h"

#include <string.h>

static void *pointer(CUdeviceptr address) {
  return (void *)(uintptr_t)address;
}

static CUresult copy(void *to, const void *from, size_t bytes) {
  NEEDS_INIT;
  callbacks_settle();
  memmove(to, from, bytes);
  return CUDA_SUCCESS;
}

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(pointer(to), pointer(from), bytes);
}

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, Stream *stream) {
  return copy(pointer(to), pointer(from), bytes);
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  return copy(pointer(to), from, bytes);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, Stream *stream) {
  return copy(pointer(to), from, bytes);
}

API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  return copy(to, pointer(from), bytes);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, Stream *stream) {
  return copy(to, pointer(from), bytes);
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(pointer(to), pointer(from), bytes);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, Stream *stream) {
  return copy(pointer(to), pointer(from), bytes);
}

API CUresult cuMemcpyPeer(CUdeviceptr to, Context *to_context, CUdeviceptr from, Context *from_context,
                          size_t bytes) {
  return copy(pointer(to), pointer(from), bytes);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, Context *to_context, CUdeviceptr from, Context *from_context,
                               size_t bytes, Stream *stream) {
  return copy(pointer(to), pointer(from), bytes);
}

API CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t count) {
  NEEDS_INIT;
  memset(pointer(at), value, count);
  return CUDA_SUCCESS;
}

API CUresult cuMemsetD16_v2(CUdeviceptr at, unsigned short value, size_t count) {
  NEEDS_INIT;
  unsigned short *element = pointer(at);
  for (size_t i = 0; i < count; i++) {
    element[i] = value;
  }
  return CUDA_SUCCESS;
}

API CUresult cuMemsetD32_v2(CUdeviceptr at, unsigned value, size_t count) {
  NEEDS_INIT;
  unsigned *element = pointer(at);
  for (size_t i = 0; i < count; i++) {
    element[i] = value;
  }
  return CUDA_SUCCESS;
}

API CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count, Stream *stream) {
  return cuMemsetD8_v2(at, value, count);
}

API CUresult cuMemsetD16Async(CUdeviceptr at, unsigned short value, size_t count, Stream *stream) {
  return cuMemsetD16_v2(at, value, count);
}

API CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, Stream *stream) {
  return cuMemsetD32_v2(at, value, count);
}
