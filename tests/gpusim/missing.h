/* Functions that a wheel is linked against and that the simulation lacks. imports.py generates one line for each. A
   call is logged, and fails with an error of the library. */
#ifndef GPUSIM_MISSING_H
#define GPUSIM_MISSING_H

#include "gpusim.h"

/* Write `missing NAME` into the log, and return the error. */
API int gpusim_missing(const char *name);

/* The arguments are not used, so the prototype leaves them out. */
#define MISSING(function)             \
  API int function() {                \
    return gpusim_missing(#function); \
  }

#endif
