/* NVML: the MIG instances of a card. A handle belongs to a card or to an instance.

   Source of each call's result: NVML API Reference, "Multi Instance GPU Management". */
#include "gpusim.h"

#define MOST_INSTANCES 7 /* the limit per card, not the number of existing instances */

/* These calls need a card that supports MIG. */
#define NEEDS_MIG_CARD(device)             \
  NEEDS_GPU(device, READING_OF_CARD);      \
  do {                                     \
    if (!gpu->can_mig)                     \
      return NVML_ERROR_NOT_SUPPORTED;     \
  } while (0)
#define NEEDS_INSTANCE(device)                                                     \
  NEEDS_GPU(device, READING_ANY);                                                  \
  do {                                                                             \
    if (!gpu->is_instance)                                                         \
      return gpu->can_mig ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED; \
  } while (0)

API nvmlReturn nvmlDeviceGetMigMode(nvmlDevice device, unsigned *now, unsigned *after_reset) {
  NEEDS_MIG_CARD(device);
  *now = *after_reset = gpu->in_mig_mode;
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetMaxMigDeviceCount(nvmlDevice device, unsigned *count) {
  NEEDS_GPU(device, READING_OF_CARD);
  *count = gpu->in_mig_mode ? MOST_INSTANCES : 0;
  return NVML_SUCCESS;
}

/* A destroyed instance leaves a gap in the numbers. Instances that are denied to a container leave no gap: the others
   are numbered from 0 (`nvidia-smi -L` in two pods of one card shows a "Device 0" in each). */
static bool has_index(const Fleet *fleet, const Gpu *instance, int position, unsigned index) {
  return fleet->device_files[0] ? (unsigned)position == index : (unsigned)instance->mig_index == index;
}

API nvmlReturn nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice device, unsigned index, nvmlDevice *instance) {
  NEEDS_MIG_CARD(device);
  if (!gpu->in_mig_mode || index >= MOST_INSTANCES) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  const Fleet *fleet = fleet_now();
  int list[MAX_GPUS];
  int count = instances_of(fleet, (int)device - 1, list);
  for (int i = 0; i < count; i++) {
    if (has_index(fleet, &fleet->gpu[list[i]], i, index)) {
      return nvml_hand_over(list[i], instance);
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn nvmlDeviceIsMigDeviceHandle(nvmlDevice device, unsigned *is_mig) {
  NEEDS_GPU(device, READING_ANY);
  *is_mig = gpu->is_instance;
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice device, nvmlDevice *card) {
  NEEDS_INSTANCE(device);
  *card = (nvmlDevice)gpu->card + 1;
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetGpuInstanceId(nvmlDevice device, unsigned *id) {
  NEEDS_INSTANCE(device);
  *id = gpu->gpu_instance;
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetComputeInstanceId(nvmlDevice device, unsigned *id) {
  NEEDS_INSTANCE(device);
  *id = gpu->compute_instance;
  return NVML_SUCCESS;
}

unsigned nvml_mig_index(const Fleet *fleet, int index) {
  const Gpu *gpu = &fleet->gpu[index];
  int list[MAX_GPUS];
  int count = instances_of(fleet, gpu->card, list);
  for (int i = 0; fleet->device_files[0] && i < count; i++) {
    if (list[i] == index) {
      return (unsigned)i;
    }
  }
  return (unsigned)gpu->mig_index;
}
