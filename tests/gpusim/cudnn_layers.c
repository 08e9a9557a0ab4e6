/* cuDNN's functions for single layers. Before version 8 there was no other API, and programs still use it for some
   layers. Every layer succeeds at once and does nothing. */
#include "cudnn.h"

#include <stdlib.h>
#include <string.h>

/* ---- descriptors: their content is never read ---- */

API Status cudnnCreateTensorDescriptor(TensorDescriptor **descriptor) {
  *descriptor = calloc(1, sizeof **descriptor);
  return 0;
}

API Status cudnnDestroyTensorDescriptor(TensorDescriptor *descriptor) {
  free(descriptor);
  return 0;
}

DESCRIPTOR(Filter)
DESCRIPTOR(Convolution)
DESCRIPTOR(Activation)
DESCRIPTOR(Pooling)
SUCCEED(cudnnSetTensorNdDescriptor)
SUCCEED(cudnnSetTensor4dDescriptor)
SUCCEED(cudnnSetFilterNdDescriptor)
SUCCEED(cudnnSetConvolutionNdDescriptor)
SUCCEED(cudnnSetConvolutionMathType)
SUCCEED(cudnnSetConvolutionGroupCount)
SUCCEED(cudnnSetActivationDescriptor)
SUCCEED(cudnnSetPoolingNdDescriptor)

API Status cudnnGetConvolutionMathType(void *descriptor, int *math_type) {
  *math_type = 0;
  return 0;
}

/* Version checks between the libraries of cuDNN 8 and 9. They always succeed. */
SUCCEED(cudnnOpsInferVersionCheck)
SUCCEED(cudnnOpsTrainVersionCheck)
SUCCEED(cudnnCnnInferVersionCheck)
SUCCEED(cudnnCnnTrainVersionCheck)
SUCCEED(cudnnAdvInferVersionCheck)
SUCCEED(cudnnAdvTrainVersionCheck)
SUCCEED(cudnnGraphVersionCheck)
SUCCEED(cudnnOpsVersionCheck)
SUCCEED(cudnnCnnVersionCheck)
SUCCEED(cudnnAdvVersionCheck)

/* ---- convolutions: the first algorithm is always chosen, and needs no workspace ---- */

typedef struct {
  int algorithm;
  Status status;
  float milliseconds;
  size_t workspace_bytes;
  int determinism, math_type, reserved[3];
} Performance;

#define CONVOLUTION(direction)                                                                              \
  SUCCEED(cudnnConvolution##direction)                                                                      \
  API Status cudnnGetConvolution##direction##AlgorithmMaxCount(void *handle, int *count) {                  \
    *count = 1;                                                                                             \
    return 0;                                                                                               \
  }                                                                                                         \
  API Status cudnnGetConvolution##direction##Algorithm_v7(void *handle, void *a, void *b, void *operation,  \
                                                          void *c, int wanted, int *found,                  \
                                                          Performance *results) {                           \
    *found = wanted > 0;                                                                                    \
    memset(results, 0, *found * sizeof *results);                                                           \
    return 0;                                                                                               \
  }                                                                                                         \
  API Status cudnnGetConvolution##direction##WorkspaceSize(void *handle, void *a, void *b, void *operation, \
                                                           void *c, int algorithm, size_t *bytes) {         \
    *bytes = 0;                                                                                             \
    return 0;                                                                                               \
  }

CONVOLUTION(Forward)
CONVOLUTION(BackwardData)
CONVOLUTION(BackwardFilter)
SUCCEED(cudnnConvolutionBackwardBias)
SUCCEED(cudnnConvolutionBiasActivationForward)

/* ---- pooling and normalization ---- */

SUCCEED(cudnnPoolingForward)
SUCCEED(cudnnPoolingBackward)
SUCCEED(cudnnBatchNormalizationForwardInference)
SUCCEED(cudnnBatchNormalizationForwardTraining)
SUCCEED(cudnnBatchNormalizationForwardTrainingEx)
SUCCEED(cudnnBatchNormalizationBackward)
SUCCEED(cudnnBatchNormalizationBackwardEx)

API Status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations,
                                                                    void *x, void *z, void *y, void *scale,
                                                                    void *activation, size_t *bytes) {
  *bytes = 0;
  return 0;
}

API Status cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x,
                                                             void *y, void *dy, void *dz, void *dx,
                                                             void *scale, void *activation, size_t *bytes) {
  *bytes = 0;
  return 0;
}

API Status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations,
                                                                void *activation, void *x, size_t *bytes) {
  *bytes = 0;
  return 0;
}
