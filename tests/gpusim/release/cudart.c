/* The runtime of one CUDA release, which build.py chooses. All other functions are in libgpusim.so. */
#include "../gpusim.h"

API cudaError cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return CUDA_SUCCESS;
}

cudaError gpusim_choose_device(int device);
cudaError gpusim_enter_device(int device);

/* From CUDA 12.0 on this makes the device's context, and before it did not (CUDA's programming guide,
   "Initialization"). TensorFlow sets device 0 at the end of its set-up, whatever GPU it uses. With 2.4, which has CUDA
   11, that must not make a context on device 0. */
API cudaError cudaSetDevice(int device) {
  return CUDART_VERSION >= 12000 ? gpusim_enter_device(device) : gpusim_choose_device(device);
}

cudaError cudaStreamGetCaptureInfo_v2(Stream *stream, int *status, uint64_t *id, void **graph,
                                      const void ***nodes, size_t *count);

/* From CUDA 13 on the function with this name has more arguments. */
#if CUDART_VERSION >= 13000
API cudaError cudaStreamGetCaptureInfo(Stream *stream, int *status, uint64_t *id, void **graph,
                                       const void ***nodes, const void ***edges, size_t *count) {
  if (edges) {
    *edges = NULL;
  }
  return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}
#else
API cudaError cudaStreamGetCaptureInfo(Stream *stream, int *status, uint64_t *id) {
  return cudaStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}
#endif
