/* cuFFT: programs can make plans. A plan needs no workspace and transforms nothing. */
#include "mathlib.h"

API Status cufftCreate(int *plan) {
  *plan = 1;
  return 0;
}

API Status cufftXtMakePlanMany(int plan, int rank, void *sizes, void *in_embed, int64_t in_stride, int64_t in_distance,
                               int in_type, void *out_embed, int64_t out_stride, int64_t out_distance, int out_type,
                               int64_t batch, size_t *workspace_bytes, int execution_type) {
  *workspace_bytes = 0;
  return 0;
}

API Status cufftMakePlanMany64(int plan, int rank, void *sizes, void *in_embed, int64_t in_stride, int64_t in_distance,
                               void *out_embed, int64_t out_stride, int64_t out_distance, int type, int64_t batch,
                               size_t *workspace_bytes) {
  *workspace_bytes = 0;
  return 0;
}

API Status cufftMakePlanMany(int plan, int rank, void *sizes, void *in_embed, int in_stride, int in_distance,
                             void *out_embed, int out_stride, int out_distance, int type, int batch,
                             size_t *workspace_bytes) {
  *workspace_bytes = 0;
  return 0;
}

VERSION(cufftGetVersion, 11400)
SUCCEED(cufftDestroy)
SUCCEED(cufftSetAutoAllocation)
SUCCEED(cufftSetStream)
SUCCEED(cufftSetWorkArea)
SUCCEED(cufftXtExec)
SUCCEED(cufftExecC2C)
SUCCEED(cufftExecC2R)
SUCCEED(cufftExecR2C)
SUCCEED(cufftExecD2Z)
SUCCEED(cufftExecZ2D)
SUCCEED(cufftExecZ2Z)
