/* One release of cuDNN, which build.py chooses. All other functions are in libgpusim.so. */
#include "../gpusim.h"

enum { MAJOR_UNIT = CUDNN_VERSION >= 90000 ? 10000 : 1000 }; /* 8.9.6 is 8906, and 9.3.0 is 90300 */

API size_t cudnnGetVersion(void) {
  return CUDNN_VERSION;
}

API int cudnnGetProperty(int property, int *value) {
  enum { MAJOR, MINOR, PATCH };
  *value = property == MAJOR   ? CUDNN_VERSION / MAJOR_UNIT
           : property == MINOR ? CUDNN_VERSION % MAJOR_UNIT / 100
                               : CUDNN_VERSION % 100;
  return 0;
}
