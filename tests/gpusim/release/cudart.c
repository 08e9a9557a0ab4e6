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
