/* Calls of functions that the simulation lacks. */
#include "missing.h"

#include <stdio.h>
#include <string.h>

/* Each library's error code for "not supported", or the most similar one. */
static const struct {
  const char *prefix;
  int error;
} ERRORS[] = {
    {"cublas", 15},     {"cudnn", 3000},  {"cusparseLt", 10}, {"cusparse", 10},
    {"cusolver", 8},    {"cufft", 16},    {"curand", 201},    {"cupti", 27},
    {"nvrtc", 11},      {"nccl", 3},      {"nvshmem", -1},    {"nvml", NVML_ERROR_NOT_SUPPORTED},
    {"nvJitLink", 7},   {"cuda", CUDA_ERROR_NOT_SUPPORTED},
};

API int gpusim_missing(const char *name) {
  char call[128];
  snprintf(call, sizeof call, "missing %s", name);
  log_call(call, -1, 0);
  for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++) {
    if (strncmp(name, ERRORS[i].prefix, strlen(ERRORS[i].prefix)) == 0) {
      return ERRORS[i].error;
    }
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}
