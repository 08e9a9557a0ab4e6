/* Common parts of the stand-ins for NVIDIA's mathematical libraries. Programs can make handles. Each function
   succeeds at once and does nothing. */
#ifndef GPUSIM_MATHLIB_H
#define GPUSIM_MATHLIB_H

#include "gpusim.h"

typedef int Status;

/* A handle whose content is never read. */
#define MAKE(function)                 \
  API Status function(void **handle) { \
    static char shared_handle[4096];   \
    *handle = shared_handle;           \
    return 0;                          \
  }

/* The arguments are not used, so the prototype leaves them out. */
#define SUCCEED(function) \
  API Status function() { \
    return 0;             \
  }

#define VERSION(function, number)     \
  API Status function(int *version) { \
    *version = number;                \
    return 0;                         \
  }

#endif
