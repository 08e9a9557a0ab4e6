/* The MIG instances of a card: their names, and the list of instances that a process may use.

   Source: NVIDIA's MIG user guide, "CUDA Visible Devices". From R470 on an instance has a UUID, MIG-<uuid>. Older
   drivers use the UUID of its card: MIG-GPU-<uuid>/<GPU instance>/<compute instance>. According to NVML's change log,
   newer drivers accept the older name too. */
#include "gpusim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int driver_branch(const Fleet *fleet) {
  return atoi(fleet->driver);
}

int fault_of(const Fleet *fleet, const Gpu *gpu) {
  int fault = gpu->is_instance ? fleet->gpu[gpu->card].nvml_fault : 0;
  return fault ? fault : gpu->nvml_fault;
}

static bool is_same_name(const char *name, const char *text, size_t length) {
  return strlen(name) == length && strncasecmp(name, text, length) == 0;
}

/* Compare the full name: the CUDA guide allows abbreviations only for whole GPUs. */
bool is_name_of_instance(const Fleet *fleet, int index, const char *text, size_t length) {
  const Gpu *gpu = &fleet->gpu[index];
  char older[128];
  snprintf(older, sizeof older, "MIG-%s/%u/%u", fleet->gpu[gpu->card].uuid, gpu->gpu_instance,
           gpu->compute_instance);
  return is_same_name(gpu->uuid, text, length) || is_same_name(older, text, length);
}

int instances_of(const Fleet *fleet, int card, int list[MAX_GPUS]) {
  int count = 0;
  for (int i = fleet->gpu_count; i < fleet->device_count; i++) {
    if (fleet->gpu[i].card == card && !device_file_is_denied(fleet, i)) {
      list[count++] = i;
    }
  }
  return count;
}
