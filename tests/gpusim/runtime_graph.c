/* The runtime API: stream capture and graphs. A graph stays empty, and its launch does nothing. */
#include "gpusim.h"

/* NULL and two small numbers are the default streams, which can't be captured. */
static bool is_capturing(Stream *stream) {
  return (uintptr_t)stream > 16 && stream->captured_graph;
}

API cudaError cudaStreamBeginCapture(Stream *stream, int mode) {
  return remember_error(cuStreamBeginCapture_v2(stream, mode));
}

API cudaError cudaStreamEndCapture(Stream *stream, void **graph) {
  return remember_error(cuStreamEndCapture(stream, graph));
}

/* Report the true state, unlike the driver's function: PyTorch checks that its own capture is active. */
API cudaError cudaStreamIsCapturing(Stream *stream, int *status) {
  enum { NONE = 0, ACTIVE = 1 };
  *status = is_capturing(stream) ? ACTIVE : NONE;
  return CUDA_SUCCESS;
}

API cudaError cudaStreamGetCaptureInfo_v2(Stream *stream, int *status, uint64_t *id, void **graph,
                                          const void ***nodes, size_t *count) {
  if (is_capturing(stream)) {
    if (id) {
      *id = (uintptr_t)stream->captured_graph;
    }
    if (graph) {
      *graph = stream->captured_graph;
    }
  }
  if (nodes) {
    *nodes = NULL;
  }
  if (count) {
    *count = 0;
  }
  return cudaStreamIsCapturing(stream, status);
}

/* Declared as from CUDA 12 on. CUDA 11 passes other arguments after `graph`, for error reports. All are ignored. */
API cudaError cudaGraphInstantiate(void **executable, void *graph, uint64_t flags) {
  *executable = new_handle("graph");
  return CUDA_SUCCESS;
}
ALIAS(cudaGraphInstantiateWithFlags, cudaGraphInstantiate);

API cudaError cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
  *count = 0;
  return CUDA_SUCCESS;
}

API cudaError cudaUserObjectCreate(void **object, void *pointer, void (*destroy)(void *), unsigned references,
                                   unsigned flags) {
  *object = new_handle("user object");
  return CUDA_SUCCESS;
}

ACCEPT_ALWAYS(cudaGraphLaunch, void *executable, Stream *stream)
ACCEPT_ALWAYS(cudaGraphDestroy, void *graph)
ACCEPT_ALWAYS(cudaGraphExecDestroy, void *executable)
ACCEPT_ALWAYS(cudaGraphRetainUserObject, void *graph, void *object, unsigned count, unsigned flags)
ACCEPT_ALWAYS(cudaUserObjectRelease, void *object, unsigned count)
ACCEPT_ALWAYS(cudaStreamUpdateCaptureDependencies)
