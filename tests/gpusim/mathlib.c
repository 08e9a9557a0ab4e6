/* cuBLAS, cuDNN, cuSPARSE, cuSOLVER and others. Programs can make handles. Every calculation succeeds at once and does
   nothing. */
#include "mathlib.h"

#include <stdlib.h>
#include <string.h>

/* ---- cuBLAS ---- */

MAKE(cublasCreate_v2)
SUCCEED(cublasDestroy_v2)
SUCCEED(cublasSetStream_v2)
SUCCEED(cublasSetMathMode)
SUCCEED(cublasGetMathMode)
SUCCEED(cublasSetWorkspace_v2)
SUCCEED(cublasSetPointerMode_v2)
SUCCEED(cublasGetPointerMode_v2)
SUCCEED(cublasSetAtomicsMode)
SUCCEED(cublasSgemm_v2)
SUCCEED(cublasDgemm_v2)
SUCCEED(cublasCgemm_v2)
SUCCEED(cublasZgemm_v2)
SUCCEED(cublasDgemmStridedBatched)
SUCCEED(cublasCgemmStridedBatched)
SUCCEED(cublasZgemmStridedBatched)
SUCCEED(cublasDgemv_v2)
SUCCEED(cublasSdot_v2)
SUCCEED(cublasDdot_v2)
SUCCEED(cublasDotEx)
SUCCEED(cublasGemmEx)
SUCCEED(cublasGemmEx_64)
SUCCEED(cublasSgemmEx)
SUCCEED(cublasGemmStridedBatchedEx)
SUCCEED(cublasGemmStridedBatchedEx_64)
SUCCEED(cublasGemmBatchedEx)
SUCCEED(cublasSgemmBatched)
SUCCEED(cublasSgemmStridedBatched)
SUCCEED(cublasSgemv_v2)
SUCCEED(cublasSscal_v2)
SUCCEED(cublasSaxpy_v2)

API Status cublasGetVersion_v2(void *handle, int *version) {
  *version = 120500;
  return 0;
}

/* ---- cuBLASLt ---- */

MAKE(cublasLtCreate)
MAKE(cublasLtMatmulDescCreate)
MAKE(cublasLtMatrixLayoutCreate)
MAKE(cublasLtMatmulPreferenceCreate)
SUCCEED(cublasLtDestroy)
SUCCEED(cublasLtMatmul)
SUCCEED(cublasLtMatmulDescDestroy)
SUCCEED(cublasLtMatmulDescSetAttribute)
SUCCEED(cublasLtMatrixLayoutDestroy)
SUCCEED(cublasLtMatrixLayoutSetAttribute)
SUCCEED(cublasLtMatmulPreferenceDestroy)
SUCCEED(cublasLtMatmulPreferenceSetAttribute)

API size_t cublasLtGetVersion(void) {
  return 120500;
}

/* Return one algorithm. Its result is all zeros, which means: status success, and no workspace. */
API Status cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                          void *preference, int wanted, void *results, int *found) {
  enum { RESULT_BYTES = 96 };
  memset(results, 0, RESULT_BYTES);
  *found = wanted > 0;
  return 0;
}

API Status cublasLtMatmulDescGetAttribute(void *of, int attribute, void *value, size_t size,
                                          size_t *written) {
  if (value) {
    memset(value, 0, size);
  }
  if (written) {
    *written = size;
  }
  return 0;
}
ALIAS(cublasLtMatrixLayoutGetAttribute, cublasLtMatmulDescGetAttribute);

/* ---- cuDNN ---- */

MAKE(cudnnCreate)
SUCCEED(cudnnDestroy)
SUCCEED(cudnnSetStream)

API size_t cudnnGetCudartVersion(void) {
  return (size_t)fleet_now()->cuda_version;
}

API const char *cudnnGetErrorString(Status status) {
  return status ? "CUDNN_STATUS_INTERNAL_ERROR" : "CUDNN_STATUS_SUCCESS";
}

API void cudnnGetLastErrorString(char *text, size_t size) {
  if (size) {
    *text = 0;
  }
}

typedef struct {
  int type;
  char rest[60];
} BackendDescriptor;

API Status cudnnBackendCreateDescriptor(int type, BackendDescriptor **descriptor) {
  *descriptor = calloc(1, sizeof **descriptor);
  (*descriptor)->type = type;
  return 0;
}

/* Return the size of one value. More bytes would overwrite the memory after the caller's value. */
static size_t backend_value_bytes(int type) {
  enum { HANDLE = 0, BOOLEAN = 2, INT64 = 3, DOUBLE = 5, VOID_POINTER = 6, CHAR = 24 };
  switch (type) {
    case HANDLE:
    case INT64:
    case DOUBLE:
    case VOID_POINTER: return 8;
    case BOOLEAN:
    case CHAR: return 1;
    default: return 4;
  }
}

/* Our engines have no knobs and no notes, so these lists are empty. cuDNN's front end would dereference any entry. */
static bool is_list_of_none(int name) {
  enum {
    CONFIG_KNOB_CHOICES = 302,
    ENGINE_KNOBS = 1302,
    ENGINE_NUMERICAL_NOTES = 1303,
    ENGINE_BEHAVIOR_NOTES = 1305
  };
  return name == CONFIG_KNOB_CHOICES || name == ENGINE_KNOBS || name == ENGINE_NUMERICAL_NOTES ||
         name == ENGINE_BEHAVIOR_NOTES;
}

/* Return one value of zeros, or no value for a list. */
API Status cudnnBackendGetAttribute(BackendDescriptor *descriptor, int name, int type, int64_t wanted,
                                    int64_t *found, void *values) {
  enum { DESCRIPTOR = 15 };
  bool is_none = is_list_of_none(name);
  if (found) {
    *found = !is_none;
  }
  if (!is_none && values && wanted > 0 && type != DESCRIPTOR) {
    memset(values, 0, backend_value_bytes(type));
  }
  return 0;
}

SUCCEED(cudnnBackendDestroyDescriptor)
SUCCEED(cudnnBackendSetAttribute)
SUCCEED(cudnnBackendFinalize)
SUCCEED(cudnnBackendExecute)

/* ---- the others ---- */

MAKE(cusparseCreate)
SUCCEED(cusparseDestroy)
SUCCEED(cusparseSetStream)

API Status cusparseGetProperty(int property, int *value) {
  static const int parts[] = {12, 5, 10};
  *value = parts[property];
  return 0;
}

API const char *cusparseGetErrorString(Status status) {
  return status ? "simulated error" : "success";
}
ALIAS(cusparseGetErrorName, cusparseGetErrorString);

MAKE(cusolverDnCreate)
SUCCEED(cusolverDnDestroy)
SUCCEED(cusolverDnSetStream)
VERSION(cuptiGetVersion, 22)
