/* The runtime API (libcudart), which calls the driver API. Each call that needs the driver initialises it. */
#include "gpusim.h"

#include <string.h>

typedef struct {
  unsigned x, y, z;
} Dim3;

static __thread int device_of_thread;
static __thread cudaError last_error;
static bool has_retained[MAX_GPUS];

cudaError remember_error(cudaError error) {
  if (error) {
    last_error = error;
  }
  return error;
}

static cudaError initialise(void) {
  return remember_error(cuInit(0));
}

/* Make the device's context, as the runtime does at the first call that needs one. */
static cudaError use_device(int device) {
  cudaError error = initialise();
  if (error) {
    return error;
  }
  if (!is_device(device)) {
    return remember_error(CUDA_ERROR_INVALID_DEVICE);
  }
  if (current_context() && current_context()->device == device) {
    return CUDA_SUCCESS;
  }
  process_lock();
  bool is_first = !has_retained[device];
  has_retained[device] = true;
  process_unlock();
  if (is_first) {
    Context *context;
    error = cuDevicePrimaryCtxRetain(&context, device);
    if (error) {
      has_retained[device] = false;
      return remember_error(error);
    }
  }
  return remember_error(cuCtxSetCurrent(primary_context(device)));
}

cudaError use_current_device(void) {
  if (driver_is_ready() && current_context()) {
    return CUDA_SUCCESS;
  }
  return use_device(device_of_thread);
}

#define NEEDS_RUNTIME                \
  do {                               \
    cudaError error_ = initialise(); \
    if (error_)                      \
      return error_;                 \
  } while (0)

/* ---- registration: compiled CUDA code calls these functions when it is loaded, long before it uses a GPU ---- */

API void **__cudaRegisterFatBinary(void *binary) {
  static void *handle[8];
  return handle;
}

API void __cudaRegisterFatBinaryEnd(void **handle) {}

API void __cudaUnregisterFatBinary(void **handle) {}

API char __cudaInitModule(void **handle) {
  return 1;
}

API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
                           size_t size, int constant, int global) {}

API void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external,
                                  size_t size, int constant, int global) {}

API void __cudaRegisterHostVar(void **handle, const char *name, char *host, size_t size) {}

API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                                void *thread, void *block, void *block_dim, void *grid_dim, int *size) {}

/* ---- launches: `kernel<<<grid, block>>>()` compiles to push, pop, launch ---- */

typedef struct {
  Dim3 grid, block;
  size_t shared_bytes;
  void *stream;
} CallConfiguration;

#define PUSHED 16
static __thread CallConfiguration pushed[PUSHED];
static __thread int pushed_count;

API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared_bytes, void *stream) {
  if (pushed_count < PUSHED) {
    pushed[pushed_count++] = (CallConfiguration){grid, block, shared_bytes, stream};
  }
  return 0;
}

API cudaError __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared_bytes, void **stream) {
  if (!pushed_count) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CallConfiguration *popped = &pushed[--pushed_count];
  *grid = popped->grid;
  *block = popped->block;
  *shared_bytes = popped->shared_bytes;
  *stream = popped->stream;
  return CUDA_SUCCESS;
}

API cudaError __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return CUDA_SUCCESS;
}

ACCEPT_ALWAYS(cudaLaunchKernel, const void *function, Dim3 grid, Dim3 block, void **arguments,
              size_t shared_bytes, Stream *stream)
ACCEPT_ALWAYS(__cudaLaunchKernel, const void *function, Dim3 grid, Dim3 block, void **arguments,
              size_t shared_bytes, Stream *stream)
ACCEPT_ALWAYS(cudaLaunchKernelExC, const void *config, const void *function, void **arguments)
ACCEPT_ALWAYS(cudaLaunchCooperativeKernel, const void *function, Dim3 grid, Dim3 block, void **arguments,
              size_t shared_bytes, Stream *stream)
ACCEPT_ALWAYS(cudaFuncSetAttribute, const void *function, int attribute, int value)
ACCEPT_ALWAYS(cudaFuncSetCacheConfig, const void *function, int config)
ACCEPT_ALWAYS(cudaFuncSetSharedMemConfig, const void *function, int config)

API cudaError cudaGetFuncBySymbol(void **function, const void *symbol) {
  *function = new_handle("symbol");
  return CUDA_SUCCESS;
}

API cudaError cudaGetSymbolAddress(void **address, const void *symbol) {
  static char globals[1 << 16] __attribute__((aligned(4096)));
  *address = globals;
  return CUDA_SUCCESS;
}

API cudaError cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                     int threads, size_t shared_bytes,
                                                                     unsigned flags) {
  *blocks = 2;
  return CUDA_SUCCESS;
}

API cudaError cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                            size_t shared_bytes) {
  *blocks = 2;
  return CUDA_SUCCESS;
}

/* ---- devices ---- */

API cudaError cudaGetDeviceCount(int *count) {
  *count = 0;
  NEEDS_RUNTIME;
  *count = device_count();
  return CUDA_SUCCESS;
}

API cudaError cudaGetDevice(int *device) {
  NEEDS_RUNTIME;
  *device = current_context() ? current_context()->device : device_of_thread;
  return CUDA_SUCCESS;
}

/* The binary version is that of the GPU: PyTorch refuses kernels that were built for other GPUs. */
API cudaError cudaFuncGetAttributes(void *attributes, const void *function) {
  struct {
    size_t shared_bytes, constant_bytes, local_bytes;
    int threads_per_block, registers, ptx_version, binary_version;
    int rest[4];
  } known = {.threads_per_block = 1024, .registers = 32};
  int device;
  cudaError error = cudaGetDevice(&device);
  if (error) {
    return error;
  }
  known.binary_version = gpu_of(device)->major * 10 + gpu_of(device)->minor;
  known.ptx_version = known.binary_version;
  memcpy(attributes, &known, sizeof known);
  return CUDA_SUCCESS;
}

/* Set the thread's device. The first call that needs a context makes it. */
API cudaError gpusim_choose_device(int device) {
  NEEDS_RUNTIME;
  if (!is_device(device)) {
    return remember_error(CUDA_ERROR_INVALID_DEVICE);
  }
  device_of_thread = device;
  return remember_error(cuCtxSetCurrent(has_retained[device] ? primary_context(device) : NULL));
}

API cudaError gpusim_enter_device(int device) {
  cudaError error = use_device(device);
  if (!error) {
    device_of_thread = device;
  }
  return error;
}

API cudaError cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  return gpusim_enter_device(device);
}

API cudaError cudaGetDeviceFlags(unsigned *flags) {
  *flags = 0;
  return CUDA_SUCCESS;
}

API cudaError cudaDeviceReset(void) {
  NEEDS_RUNTIME;
  has_retained[device_of_thread] = false;
  cuCtxSetCurrent(NULL);
  return remember_error(cuDevicePrimaryCtxReset_v2(device_of_thread));
}

API cudaError cudaDeviceGetAttribute(int *value, int attribute, int device) {
  NEEDS_RUNTIME;
  return remember_error(cuDeviceGetAttribute(value, attribute, device));
}

API cudaError cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  NEEDS_RUNTIME;
  return remember_error(cuDeviceCanAccessPeer(can, device, peer));
}

API cudaError cudaDeviceGetPCIBusId(char *text, int size, int device) {
  NEEDS_RUNTIME;
  return remember_error(cuDeviceGetPCIBusId(text, size, device));
}

API cudaError cudaDeviceGetByPCIBusId(int *device, const char *text) {
  NEEDS_RUNTIME;
  return remember_error(cuDeviceGetByPCIBusId(device, text));
}

API cudaError cudaDeviceGetLimit(size_t *value, int limit) {
  *value = 1024;
  return CUDA_SUCCESS;
}

API cudaError cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  NEEDS_RUNTIME;
  return cuCtxGetStreamPriorityRange(least, greatest);
}

API cudaError cudaDeviceGetDefaultMemPool(void *pool, int device) {
  NEEDS_RUNTIME;
  return remember_error(cuDeviceGetDefaultMemPool(pool, device));
}

ACCEPT_ALWAYS(cudaSetDeviceFlags, unsigned flags)
ACCEPT_ALWAYS(cudaDeviceSynchronize, void)
ACCEPT_ALWAYS(cudaDeviceEnablePeerAccess, int peer, unsigned flags)
ACCEPT_ALWAYS(cudaDeviceSetLimit, int limit, size_t value)
ACCEPT_ALWAYS(cudaProfilerStart, void)
ACCEPT_ALWAYS(cudaProfilerStop, void)

/* ---- versions and errors ---- */

API cudaError cudaDriverGetVersion(int *version) {
  return cuDriverGetVersion(version);
}

/* An unknown name is no error. The status reports it. */
API cudaError cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                               uint64_t flags, int *status) {
  cuGetProcAddress_v2(name, function, (int)version, flags, status);
  return CUDA_SUCCESS;
}

API cudaError cudaGetDriverEntryPoint(const char *name, void **function, uint64_t flags, int *status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}

API cudaError cudaGetLastError(void) {
  cudaError error = last_error;
  last_error = CUDA_SUCCESS;
  return error;
}

API cudaError cudaPeekAtLastError(void) {
  return last_error;
}

API const char *cudaGetErrorString(cudaError error) {
  const char *text;
  cuGetErrorString(error, &text);
  return text;
}

API const char *cudaGetErrorName(cudaError error) {
  const char *name;
  cuGetErrorName(error, &name);
  return name;
}
