/* Common parts of the stand-ins for cuDNN's functions. */
#ifndef GPUSIM_CUDNN_H
#define GPUSIM_CUDNN_H

#include "mathlib.h"

/* A descriptor whose content is never read. */
#define DESCRIPTOR(kind)                                        \
  API Status cudnnCreate##kind##Descriptor(void **descriptor) { \
    static char shared[256];                                    \
    *descriptor = shared;                                       \
    return 0;                                                   \
  }                                                             \
  SUCCEED(cudnnDestroy##kind##Descriptor)

/* A tensor's descriptor. Only the sizes of a recurrent layer's weights are known. */
typedef struct {
  int sizes[3];
} TensorDescriptor;

#endif
