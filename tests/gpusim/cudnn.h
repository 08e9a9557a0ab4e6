/* What the stand-ins for cuDNN's functions have in common. */
#ifndef GPUSIM_CUDNN_H
#define GPUSIM_CUDNN_H

#include "mathlib.h"

/* A descriptor whose content is never looked at. */
#define DESCRIPTOR(kind)                                        \
  API Status cudnnCreate##kind##Descriptor(void **descriptor) { \
    static char shared[256];                                    \
    *descriptor = shared;                                       \
    return 0;                                                   \
  }                                                             \
  SUCCEED(cudnnDestroy##kind##Descriptor)

/* Of a tensor's, only what a recurrent layer says about its weights. */
typedef struct {
  int sizes[3];
} TensorDescriptor;

#endif
