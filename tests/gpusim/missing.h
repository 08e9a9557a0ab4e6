/* Functions that a wheel is linked against and that nobody wrote here: imports.py makes a list of them, one line
   each. Called, one says so in the log and fails with an error of its library. */
#ifndef GPUSIM_MISSING_H
#define GPUSIM_MISSING_H

#include "gpusim.h"

/* Writes `missing NAME` into the log, and returns the error. */
API int gpusim_missing(const char *name);

/* The arguments don't matter, so they are left out. */
#define MISSING(function)             \
  API int function() {                \
    return gpusim_missing(#function); \
  }

#endif
