/* Calls that make something that is only told from others, never looked into. */
#ifndef GPUSIM_HANDLE_H
#define GPUSIM_HANDLE_H

#include "gpusim.h"

/* The call makes something and hands it back through its first argument. */
#define MAKE(function, ...)            \
  API CUresult function(__VA_ARGS__) { \
    NEEDS_INIT;                        \
    *made = new_handle(#function);     \
    return CUDA_SUCCESS;               \
  }

#endif
