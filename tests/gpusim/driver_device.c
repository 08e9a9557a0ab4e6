/* Driver API: initialisation and devices. */
#include "gpusim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- initialisation ---- */

static int visible[MAX_GPUS]; /* index of each device in the fleet */
static int visible_count;
static bool is_ready;

bool driver_is_ready(void) {
  return is_ready && !process_is_forked_from_cuda();
}

API CUresult cuInit(unsigned flags) {
  /* Documented: the forked child of a process with CUDA can't use CUDA, nor initialise it. */
  if (process_is_forked_from_cuda()) {
    log_call("cuInit", -1, 0);
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  process_lock();
  static bool was_asked;
  static int fault;
  if (!was_asked) {
    was_asked = true;
    log_call("cuInit", -1, 0);
    const Fleet *fleet = fleet_now();
    fault = fleet->cuda_fault;
    visible_count =
        visible_devices(fleet, getenv("CUDA_VISIBLE_DEVICES"), getenv("CUDA_DEVICE_ORDER"), visible);
    is_ready = !fault && visible_count > 0;
    if (is_ready) {
      process_has_cuda();
    }
  }
  process_unlock();
  if (suffer(fault)) {
    return fault;
  }
  return is_ready ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* ---- devices ---- */

int device_count(void) {
  return visible_count;
}

bool is_device(CUdevice device) {
  return device >= 0 && device < visible_count;
}

int physical_gpu(CUdevice device) {
  return visible[device];
}

const Gpu *gpu_of(CUdevice device) {
  return &fleet_now()->gpu[visible[device]];
}

API CUresult cuDeviceGetCount(int *count) {
  NEEDS_INIT;
  *count = visible_count;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  NEEDS_DEVICE(ordinal);
  *device = ordinal;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  NEEDS_DEVICE(device);
  snprintf(name, (size_t)size, "%s", gpu_of(device)->name);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) {
  NEEDS_DEVICE(device);
  memcpy(uuid, gpu_of(device)->uuid_bytes, sizeof gpu_of(device)->uuid_bytes);
  return CUDA_SUCCESS;
}

/* For a MIG instance, return the UUID of its card: only the newer function is documented to return the instance's. */
API CUresult cuDeviceGetUuid(void *uuid, CUdevice device) {
  NEEDS_DEVICE(device);
  const Gpu *gpu = gpu_of(device);
  const Gpu *card = gpu->is_instance ? &fleet_now()->gpu[gpu->card] : gpu;
  memcpy(uuid, card->uuid_bytes, sizeof card->uuid_bytes);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  NEEDS_DEVICE(device);
  *bytes = gpu_of(device)->memory_bytes;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  NEEDS_DEVICE(device);
  *major = gpu_of(device)->major;
  *minor = gpu_of(device)->minor;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device) {
  NEEDS_DEVICE(device);
  const Gpu *gpu = gpu_of(device);
  snprintf(text, (size_t)size, "%04X:%02X:%02X.0", gpu->pci.domain, gpu->pci.bus, gpu->pci.device);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
  NEEDS_INIT;
  unsigned domain = 0, bus = 0, slot = 0;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) < 3) {
    domain = 0;
    sscanf(text, "%x:%x", &bus, &slot);
  }
  for (int i = 0; i < visible_count; i++) {
    const Gpu *gpu = gpu_of(i);
    if (gpu->pci.domain == domain && gpu->pci.bus == bus && gpu->pci.device == slot) {
      *device = i;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

/* CU_DEVICE_ATTRIBUTE_*: attributes that are equal on all our GPUs, with the values of a common card. */
static const struct {
  int attribute;
  int value;
} ATTRIBUTES[] = {
    {1, 1024},        /* MAX_THREADS_PER_BLOCK */
    {2, 1024},        /* MAX_BLOCK_DIM_X */
    {3, 1024},        /* MAX_BLOCK_DIM_Y */
    {4, 64},          /* MAX_BLOCK_DIM_Z */
    {5, 2147483647},  /* MAX_GRID_DIM_X */
    {6, 65535},       /* MAX_GRID_DIM_Y */
    {7, 65535},       /* MAX_GRID_DIM_Z */
    {8, 49152},       /* MAX_SHARED_MEMORY_PER_BLOCK */
    {9, 65536},       /* TOTAL_CONSTANT_MEMORY */
    {10, 32},         /* WARP_SIZE */
    {11, 2147483647}, /* MAX_PITCH */
    {12, 65536},      /* MAX_REGISTERS_PER_BLOCK */
    {13, 1582000},    /* CLOCK_RATE */
    {14, 512},        /* TEXTURE_ALIGNMENT */
    {15, 1},          /* GPU_OVERLAP */
    {19, 1},          /* CAN_MAP_HOST_MEMORY */
    {31, 1},          /* CONCURRENT_KERNELS */
    {36, 5505000},    /* MEMORY_CLOCK_RATE */
    {37, 352},        /* GLOBAL_MEMORY_BUS_WIDTH */
    {38, 2883584},    /* L2_CACHE_SIZE */
    {39, 1024},       /* MAX_THREADS_PER_MULTIPROCESSOR */
    {40, 2},          /* ASYNC_ENGINE_COUNT */
    {41, 1},          /* UNIFIED_ADDRESSING */
    {78, 1},          /* STREAM_PRIORITIES_SUPPORTED */
    {79, 1},          /* GLOBAL_L1_CACHE_SUPPORTED */
    {80, 1},          /* LOCAL_L1_CACHE_SUPPORTED */
    {81, 65536},      /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    {82, 65536},      /* MAX_REGISTERS_PER_MULTIPROCESSOR */
    {97, 65536},      /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    {102, 1},         /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {103, 1},         /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    {106, 16},        /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    {115, 1},         /* MEMORY_POOLS_SUPPORTED */
    {119, 1},         /* MEMPOOL_SUPPORTED_HANDLE_TYPES */
    {121, 1},         /* DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED */
};

static int common_attribute(int attribute) {
  for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++) {
    if (ATTRIBUTES[i].attribute == attribute) {
      return ATTRIBUTES[i].value;
    }
  }
  return 0;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  NEEDS_DEVICE(device);
  const Gpu *gpu = gpu_of(device);
  switch (attribute) {
    case 16: *value = gpu->multiprocessors; break;
    case 20: *value = gpu->compute_mode; break;
    case 33: *value = (int)gpu->pci.bus; break;
    case 34: *value = (int)gpu->pci.device; break;
    case 50: *value = (int)gpu->pci.domain; break;
    case 75: *value = gpu->major; break;
    case 76: *value = gpu->minor; break;
    default: *value = common_attribute(attribute);
  }
  return CUDA_SUCCESS;
}

/* No GPU can access another's memory: programs then copy through the host, which works on every machine. */
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  NEEDS_DEVICE(device);
  NEEDS_DEVICE(peer);
  *can = 0;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer) {
  NEEDS_INIT;
  *value = 0;
  return CUDA_SUCCESS;
}
