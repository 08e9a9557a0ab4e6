/* Driver API: functions that work before cuInit: versions, error texts, and look-up of functions by name. */
#include "gpusim.h"

#include <dlfcn.h>
#include <stdio.h>

API CUresult cuDriverGetVersion(int *version) {
  *version = fleet_now()->cuda_version;
  return CUDA_SUCCESS;
}

static const struct {
  CUresult error;
  const char *name, *text;
} ERRORS[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static size_t row_of(CUresult error) {
  size_t last = sizeof ERRORS / sizeof *ERRORS - 1;
  for (size_t i = 0; i < last; i++) {
    if (ERRORS[i].error == error) {
      return i;
    }
  }
  return last;
}

API CUresult cuGetErrorName(CUresult error, const char **name) {
  *name = ERRORS[row_of(error)].name;
  return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = ERRORS[row_of(error)].text;
  return CUDA_SUCCESS;
}

/* A plain name means the newest version of the function. */
static void *find_function(const char *name) {
  static void *self;
  if (!self) {
    Dl_info about;
    dladdr((void *)cuInit, &about);
    self = dlopen(about.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }
  char newest[160];
  snprintf(newest, sizeof newest, "%s_v2", name);
  void *found = dlsym(self, newest);
  return found ? found : dlsym(self, name);
}

API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  *function = find_function(name);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                 int *status) {
  *function = find_function(name);
  if (status) {
    *status = *function ? 0 : 1;
  }
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Undocumented tables. A program with an old runtime linked in asks for them, and can't launch kernels without them. */
API CUresult cuGetExportTable(const void **table, const void *id) {
  *table = NULL;
  return CUDA_ERROR_NOT_FOUND;
}
