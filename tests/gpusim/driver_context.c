/* Driver API: contexts. Each context takes memory on its GPU, which the limit of an allocator does not cover. */
#include "gpusim.h"

#include <stdlib.h>

#define STACK_DEPTH 64

static Context primary[MAX_GPUS];
static __thread Context *stack[STACK_DEPTH];
static __thread int stack_size;

Context *current_context(void) {
  return stack_size ? stack[stack_size - 1] : NULL;
}

Context *primary_context(CUdevice device) {
  return &primary[device];
}

/* CUDA fails or hangs on a GPU whose NVML calls fail or hang. */
static bool gpu_fails(CUdevice device) {
  return suffer(fault_of(fleet_now(), gpu_of(device))) != 0;
}

static CUresult open_context(Context *context, CUdevice device) {
  context->device = device;
  if (context->is_open) {
    return CUDA_SUCCESS;
  }
  uint64_t bytes = fleet_now()->context_bytes;
  Grant grant = ledger_open_context(physical_gpu(device), bytes);
  if (grant != GRANTED) {
    log_call("refused", physical_gpu(device), bytes);
    return grant == NO_ROOM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  log_call("context", physical_gpu(device), bytes);
  context->is_open = true;
  context->charged_bytes = bytes;
  return CUDA_SUCCESS;
}

static void close_context(Context *context) {
  if (!context->is_open) {
    return;
  }
  ledger_close_context(physical_gpu(context->device), context->charged_bytes);
  log_call("context_end", physical_gpu(context->device), context->charged_bytes);
  context->is_open = false;
}

API CUresult cuDevicePrimaryCtxRetain(Context **context, CUdevice device) {
  NEEDS_DEVICE(device);
  *context = NULL;
  /* Check before taking the lock: a hanging GPU must block only the threads that use it. */
  if (!primary[device].is_open && gpu_fails(device)) {
    return CUDA_ERROR_UNKNOWN;
  }
  process_lock();
  CUresult result = open_context(&primary[device], device);
  if (result == CUDA_SUCCESS) {
    primary[device].references++;
    *context = &primary[device];
  }
  process_unlock();
  return result;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  NEEDS_DEVICE(device);
  process_lock();
  bool is_held = primary[device].references > 0;
  if (is_held && --primary[device].references == 0) {
    close_context(&primary[device]);
  }
  process_unlock();
  return is_held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  NEEDS_DEVICE(device);
  process_lock();
  primary[device].references = 0;
  close_context(&primary[device]);
  process_unlock();
  return CUDA_SUCCESS;
}
ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  NEEDS_DEVICE(device);
  primary[device].flags = flags;
  return CUDA_SUCCESS;
}
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
  NEEDS_DEVICE(device);
  if (flags) {
    *flags = primary[device].flags;
  }
  *is_active = primary[device].references > 0;
  return CUDA_SUCCESS;
}

static CUresult push(Context *context) {
  if (stack_size == STACK_DEPTH) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  stack[stack_size++] = context;
  return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v2(Context **context, unsigned flags, CUdevice device) {
  NEEDS_DEVICE(device);
  if (gpu_fails(device)) {
    return CUDA_ERROR_UNKNOWN;
  }
  Context *made = calloc(1, sizeof *made);
  made->flags = flags;
  CUresult result = open_context(made, device);
  if (result != CUDA_SUCCESS) {
    free(made);
    return result;
  }
  *context = made;
  return push(made);
}
ALIAS(cuCtxCreate, cuCtxCreate_v2);

/* Don't free the struct: other threads may still have it on their stack of contexts. */
API CUresult cuCtxDestroy_v2(Context *context) {
  NEEDS_INIT;
  if (!context) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  close_context(context);
  if (current_context() == context) {
    stack_size--;
  }
  return CUDA_SUCCESS;
}
ALIAS(cuCtxDestroy, cuCtxDestroy_v2);

API CUresult cuCtxSetCurrent(Context *context) {
  NEEDS_INIT;
  if (stack_size) {
    stack_size--;
  }
  return context ? push(context) : CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(Context **context) {
  NEEDS_INIT;
  *context = current_context();
  return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(Context *context) {
  NEEDS_INIT;
  return push(context);
}
ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);

API CUresult cuCtxPopCurrent_v2(Context **context) {
  NEEDS_INIT;
  if (!stack_size) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  stack_size--;
  if (context) {
    *context = stack[stack_size];
  }
  return CUDA_SUCCESS;
}
ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);

API CUresult cuCtxGetDevice(CUdevice *device) {
  NEEDS_INIT;
  if (!current_context()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *device = current_context()->device;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetFlags(unsigned *flags) {
  NEEDS_INIT;
  *flags = current_context() ? current_context()->flags : 0;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(Context *context, unsigned *version) {
  NEEDS_INIT;
  *version = 3020;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(Context *context, uint64_t *id) {
  NEEDS_INIT;
  *id = (uintptr_t)(context ? context : current_context());
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(size_t *value, int limit) {
  NEEDS_INIT;
  *value = 1 << 20;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetSharedMemConfig(int *config) {
  NEEDS_INIT;
  *config = 1;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  NEEDS_INIT;
  if (least) {
    *least = 0;
  }
  if (greatest) {
    *greatest = -5;
  }
  return CUDA_SUCCESS;
}

ACCEPT(cuCtxSynchronize, void)
ACCEPT(cuCtxEnablePeerAccess, Context *peer, unsigned flags)
ACCEPT(cuCtxDisablePeerAccess, Context *peer)
ACCEPT(cuCtxSetLimit, int limit, size_t value)
ACCEPT(cuCtxSetCacheConfig, int config)
ACCEPT(cuCtxSetSharedMemConfig, int config)
ACCEPT(cuProfilerStart, void)
ACCEPT(cuProfilerStop, void)
