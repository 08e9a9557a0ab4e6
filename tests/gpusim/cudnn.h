/* What the stand-ins for cuDNN's functions have in common: each succeeds at once and does nothing. */
#ifndef GPUSIM_CUDNN_H
#define GPUSIM_CUDNN_H

#include "gpusim.h"

typedef int Status;

/* The arguments don't matter, so they are left out. */
#define SUCCEED(function) \
  API Status function() { \
    return 0;             \
  }

/* A descriptor whose content is never looked at. */
#define DESCRIPTOR(kind)                                        \
  API Status cudnnCreate##kind##Descriptor(void **descriptor) { \
    static char shared[256];                                    \
    *descriptor = shared;                                       \
    return 0;                                                   \
  }                                                             \
  SUCCEED(cudnnDestroy##kind##Descriptor)

#endif
