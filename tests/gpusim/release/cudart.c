/* The runtime of one CUDA release; build.py says which. All else that it can do, it has from libgpusim.so. */
#include "../gpusim.h"

API cudaError cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return CUDA_SUCCESS;
}

cudaError gpusim_choose_device(int device);
cudaError gpusim_enter_device(int device);

/* CUDA's programming guide, "Initialization": from 12.0 on this makes the device's context, and before it did
   not. TensorFlow ends its set-up by going back to device 0, whatever GPU it took: 2.4 must not take that one
   as well. */
API cudaError cudaSetDevice(int device) {
  return CUDART_VERSION >= 12000 ? gpusim_enter_device(device) : gpusim_choose_device(device);
}

cudaError cudaStreamGetCaptureInfo_v2(Stream *stream, int *status, uint64_t *id, void **graph,
                                      const void ***nodes, size_t *count);

/* CUDA 13 gave the name to a function with more arguments. */
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
