/* cuBLAS, cuDNN, cuSPARSE, cuSOLVER, NCCL and others: handles can be made, and every calculation succeeds at
   once and does nothing. */
#include "gpusim.h"

#include <stdlib.h>
#include <string.h>

typedef int Status;

static char shared_handle[4096];

#define MAKE(function)                 \
  API Status function(void **handle) { \
    *handle = shared_handle;           \
    return 0;                          \
  }

/* The arguments don't matter, so they are left out. */
#define SUCCEED(function) \
  API Status function() { \
    return 0;             \
  }

#define VERSION(function, number)     \
  API Status function(int *version) { \
    *version = number;                \
    return 0;                         \
  }

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

/* One way to multiply, all zeros: no workspace, status success. */
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

/* The size of one value; writing more would hit what the caller has behind it. */
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

/* An engine here has nothing to turn and nothing to tell: cuDNN's front end would follow what it is given. */
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

/* One value, all zeros. */
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

/* ---- NCCL: every collective succeeds at once ---- */

typedef struct {
  int ranks, rank;
} Communicator;

typedef struct {
  char bytes[128];
} UniqueId;

static Communicator *new_communicator(int ranks, int rank) {
  Communicator *communicator = malloc(sizeof *communicator);
  *communicator = (Communicator){ranks, rank};
  return communicator;
}

API Status ncclGetUniqueId(UniqueId *id) {
  memset(id, 7, sizeof *id);
  return 0;
}

API Status ncclCommInitRank(Communicator **communicator, int ranks, UniqueId id, int rank) {
  *communicator = new_communicator(ranks, rank);
  return 0;
}

API Status ncclCommInitRankConfig(Communicator **communicator, int ranks, UniqueId id, int rank,
                                  void *config) {
  return ncclCommInitRank(communicator, ranks, id, rank);
}

API Status ncclCommInitAll(Communicator **communicators, int ranks, const int *devices) {
  for (int rank = 0; rank < ranks; rank++) {
    communicators[rank] = new_communicator(ranks, rank);
  }
  return 0;
}

API Status ncclCommCount(Communicator *communicator, int *ranks) {
  *ranks = communicator->ranks;
  return 0;
}

API Status ncclCommUserRank(Communicator *communicator, int *rank) {
  *rank = communicator->rank;
  return 0;
}

API Status ncclCommGetAsyncError(Communicator *communicator, Status *error) {
  *error = 0;
  return 0;
}

API const char *ncclGetErrorString(Status status) {
  return status ? "simulated error" : "no error";
}

API const char *ncclGetLastError(Communicator *communicator) {
  return "";
}

VERSION(ncclGetVersion, 22304)
SUCCEED(ncclGroupStart)
SUCCEED(ncclGroupEnd)
SUCCEED(ncclAllReduce)
SUCCEED(ncclReduce)
SUCCEED(ncclBroadcast)
SUCCEED(ncclBcast)
SUCCEED(ncclAllGather)
SUCCEED(ncclReduceScatter)
SUCCEED(ncclSend)
SUCCEED(ncclRecv)
SUCCEED(ncclCommDestroy)
SUCCEED(ncclCommAbort)
SUCCEED(ncclCommFinalize)

/* ---- the others ---- */

MAKE(cusparseCreate)
SUCCEED(cusparseDestroy)
SUCCEED(cusparseSetStream)
MAKE(cusolverDnCreate)
SUCCEED(cusolverDnDestroy)
SUCCEED(cusolverDnSetStream)
VERSION(cufftGetVersion, 11000)
VERSION(cuptiGetVersion, 22)
