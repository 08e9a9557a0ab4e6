/* Driver API: memory shared by several GPUs or processes. It is not simulated. But PyTorch checks that these functions
   exist before it calls any function of the driver. */
#include "missing.h"

MISSING(cuMemExportToShareableHandle)
MISSING(cuMemImportFromShareableHandle)
MISSING(cuMemRetainAllocationHandle)
MISSING(cuMemGetAllocationPropertiesFromHandle)
MISSING(cuMulticastAddDevice)
MISSING(cuMulticastBindMem)
MISSING(cuMulticastCreate)
MISSING(cuMulticastUnbind)

API CUresult cuStreamWriteValue32(Stream *stream, CUdeviceptr at, uint32_t value, unsigned flags) {
  NEEDS_INIT;
  *(uint32_t *)(uintptr_t)at = value;
  return CUDA_SUCCESS;
}
