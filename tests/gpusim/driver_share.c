/* Driver API: memory that several GPUs or processes share. PyTorch wants the functions to be there before it uses any
   of the driver's own; they are not simulated. */
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
