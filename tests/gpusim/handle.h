/* Calls that make an object, which has an identity but no content. */
#ifndef GPUSIM_HANDLE_H
#define GPUSIM_HANDLE_H

#include "gpusim.h"

/* A call that makes an object and returns it through its first argument. */
#define MAKE(function, ...)            \
  API CUresult function(__VA_ARGS__) { \
    NEEDS_INIT;                        \
    *made = new_handle(#function);     \
    return CUDA_SUCCESS;               \
  }

#endif
