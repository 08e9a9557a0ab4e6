/* NVRTC: every program compiles to empty code, because no kernel is ever run. */
#include "mathlib.h"

#include <string.h>

static const char NOTHING[] = "// nothing";

API Status nvrtcVersion(int *major, int *minor) {
  *major = fleet_now()->cuda_version / 1000;
  *minor = fleet_now()->cuda_version % 1000 / 10;
  return 0;
}

API const char *nvrtcGetErrorString(Status status) {
  return status ? "NVRTC_ERROR" : "NVRTC_SUCCESS";
}

API Status nvrtcGetPTXSize(void *program, size_t *bytes) {
  *bytes = sizeof NOTHING;
  return 0;
}
ALIAS(nvrtcGetCUBINSize, nvrtcGetPTXSize);

API Status nvrtcGetPTX(void *program, char *code) {
  memcpy(code, NOTHING, sizeof NOTHING);
  return 0;
}
ALIAS(nvrtcGetCUBIN, nvrtcGetPTX);

API Status nvrtcGetProgramLogSize(void *program, size_t *bytes) {
  *bytes = 1;
  return 0;
}

API Status nvrtcGetProgramLog(void *program, char *log) {
  *log = 0;
  return 0;
}

API Status nvrtcGetLoweredName(void *program, const char *name, const char **lowered) {
  *lowered = name;
  return 0;
}

MAKE(nvrtcCreateProgram)
SUCCEED(nvrtcDestroyProgram)
SUCCEED(nvrtcCompileProgram)
SUCCEED(nvrtcAddNameExpression)
