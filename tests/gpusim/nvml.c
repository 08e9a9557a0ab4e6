/* NVML: initialisation, readings of the machine, and look-up of a GPU. */
#include "gpusim.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static int initialised; /* number of nvmlInit calls minus nvmlShutdown calls */

bool nvml_is_ready(void) {
  return initialised > 0;
}

#define NEEDS_NVML                     \
  do {                                 \
    if (!nvml_is_ready())              \
      return NVML_ERROR_UNINITIALIZED; \
  } while (0)

API nvmlReturn nvmlInitWithFlags(unsigned flags) {
  log_call("nvmlInit", -1, 0);
  const Fleet *fleet = fleet_now();
  int fault = suffer(fleet->nvml_fault);
  if (fault) {
    return fault;
  }
  if (!fleet->gpu_count) {
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  process_lock();
  initialised++;
  process_unlock();
  return NVML_SUCCESS;
}

API nvmlReturn nvmlInit_v2(void) {
  return nvmlInitWithFlags(0);
}
ALIAS(nvmlInit, nvmlInit_v2);

API nvmlReturn nvmlShutdown(void) {
  NEEDS_NVML;
  process_lock();
  initialised--;
  process_unlock();
  return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn error) {
  switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}

nvmlReturn nvml_copy_text(char *to, unsigned size, const char *text) {
  if (strlen(text) + 1 > size) {
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  strcpy(to, text);
  return NVML_SUCCESS;
}

/* ---- the machine ---- */

API nvmlReturn nvmlSystemGetDriverVersion(char *version, unsigned size) {
  NEEDS_NVML;
  return nvml_copy_text(version, size, fleet_now()->driver);
}

API nvmlReturn nvmlSystemGetNVMLVersion(char *version, unsigned size) {
  const Fleet *fleet = fleet_now();
  char text[64];
  snprintf(text, sizeof text, "%d.%s", fleet->cuda_version / 1000, fleet->driver);
  return nvml_copy_text(version, size, text);
}

API nvmlReturn nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = fleet_now()->cuda_version;
  return NVML_SUCCESS;
}
ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

API nvmlReturn nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
  NEEDS_NVML;
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return NVML_ERROR_NOT_FOUND;
  }
  ssize_t length = read(file, name, size - 1);
  close(file);
  name[length > 0 ? length : 0] = 0;
  return NVML_SUCCESS;
}

/* ---- finding a GPU ---- */

/* True if instances lack the reading. NVML supports only the listed readings for an instance: nvitop's snapshot of an
   instance shows the others as not available (github.com/XuehaiPan/nvitop/pull/8). */
static bool is_of_cards_only(Reading reading) {
  return reading & ~(READING_NAME | READING_UUID | READING_MEMORY | READING_PROCESSES | READING_GRAPHICS_PROCESSES |
                     READING_PROCESS_MEMORY);
}

/* True if the reading covers all instances of a card. It needs a privilege that containers don't have. */
static bool is_of_all_instances(Reading reading) {
  return reading & (READING_MEMORY | READING_PROCESSES | READING_GRAPHICS_PROCESSES);
}

nvmlReturn nvml_find(nvmlDevice device, Reading reading, const Gpu **gpu) {
  NEEDS_NVML;
  const Fleet *fleet = fleet_now();
  if (device < 1 || device > (nvmlDevice)fleet->device_count) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (device_file_is_denied(fleet, (int)device - 1)) {
    return NVML_ERROR_NO_PERMISSION;
  }
  *gpu = &fleet->gpu[device - 1];
  int fault = suffer(fault_of(fleet, *gpu));
  if (fault) {
    return fault;
  }
  if ((*gpu)->in_mig_mode && is_of_all_instances(reading) && monitor_file_is_denied(fleet)) {
    return NVML_ERROR_NO_PERMISSION;
  }
  /* Documented: in MIG mode there is no utilization, neither of the card nor of its instances. */
  bool is_missing = (*gpu)->is_instance ? is_of_cards_only(reading)
                                        : (*gpu)->in_mig_mode && reading & READING_UTILIZATION;
  return is_missing || (*gpu)->unsupported & reading ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* NVML counts a lost or denied GPU, and fails when a program asks for it. But if the fleet's `denied` is "omit",
   NVML does not count denied GPUs. */
static bool is_listed(const Fleet *fleet, int gpu) {
  return !fleet->omits_denied || !device_file_is_denied(fleet, gpu);
}

/* Return NVML's index of a GPU of the fleet: the number of listed GPUs before it. */
unsigned nvml_index(const Fleet *fleet, int gpu) {
  unsigned index = 0;
  for (int i = 0; i < gpu; i++) {
    index += is_listed(fleet, i);
  }
  return index;
}

API nvmlReturn nvmlDeviceGetCount_v2(unsigned *count) {
  NEEDS_NVML;
  const Fleet *fleet = fleet_now();
  *count = nvml_index(fleet, fleet->gpu_count);
  return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

nvmlReturn nvml_hand_over(int index_in_fleet, nvmlDevice *device) {
  *device = (nvmlDevice)index_in_fleet + 1;
  NEEDS_GPU(*device, READING_ANY);
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice *device) {
  NEEDS_NVML;
  const Fleet *fleet = fleet_now();
  for (int i = 0; i < fleet->gpu_count; i++) {
    if (is_listed(fleet, i) && nvml_index(fleet, i) == index) {
      return nvml_hand_over(i, device);
    }
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

API nvmlReturn nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice *device) {
  NEEDS_NVML;
  const Fleet *fleet = fleet_now();
  for (int i = 0; i < fleet->gpu_count; i++) {
    if (is_listed(fleet, i) && strcasecmp(uuid, fleet->gpu[i].uuid) == 0) {
      return nvml_hand_over(i, device);
    }
  }
  for (int i = fleet->gpu_count; i < fleet->device_count; i++) {
    if (is_listed(fleet, i) && is_name_of_instance(fleet, i, uuid, strlen(uuid))) {
      return nvml_hand_over(i, device);
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice *device) {
  NEEDS_NVML;
  unsigned domain = 0, bus = 0, slot = 0;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) < 3) {
    domain = 0;
    if (sscanf(text, "%x:%x", &bus, &slot) < 2) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
  }
  const Fleet *fleet = fleet_now();
  for (int i = 0; i < fleet->gpu_count; i++) {
    const Gpu *gpu = &fleet->gpu[i];
    bool is_there = gpu->pci.domain == domain && gpu->pci.bus == bus && gpu->pci.device == slot;
    if (is_there && is_listed(fleet, i)) {
      return nvml_hand_over(i, device);
    }
  }
  return NVML_ERROR_NOT_FOUND;
}
ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);
