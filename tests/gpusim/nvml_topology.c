/* NVML: connections between two GPUs: NVLinks, direct or over an NVSwitch, and the nearest common ancestor on PCI
   Express.

   Source of each call's result: NVML API Reference, "Device Queries". */
#include "gpusim.h"

#include <string.h>

static int gpu_at(const Fleet *fleet, PciAddress address) {
  for (int i = 0; i < fleet->gpu_count; i++) {
    if (memcmp(&fleet->gpu[i].pci, &address, sizeof address) == 0) {
      return i;
    }
  }
  return -1;
}

static bool is_used(PciAddress link) {
  return link.domain || link.bus || link.device;
}

/* True if a link goes from one GPU to the other, or if both have a link to the same switch. */
static bool are_linked(const Fleet *fleet, const Gpu *one, const Gpu *other) {
  for (int i = 0; i < one->link_count; i++) {
    PciAddress end = one->links[i];
    if (is_used(end) && memcmp(&end, &other->pci, sizeof end) == 0) {
      return true;
    }
    for (int j = 0; is_used(end) && gpu_at(fleet, end) < 0 && j < other->link_count; j++) {
      if (memcmp(&end, &other->links[j], sizeof end) == 0) {
        return true;
      }
    }
  }
  return false;
}

API nvmlReturn nvmlDeviceGetP2PStatus(nvmlDevice device, nvmlDevice peer, int capability, int *status) {
  enum { CAPABILITY_NVLINK = 2, STATUS_OK = 0, STATUS_NOT_SUPPORTED = 5 };
  NEEDS_GPU(device, READING_P2P);
  const Gpu *one = gpu;
  {
    NEEDS_GPU(peer, READING_P2P);
    log_call("p2p", (int)device - 1, 0);
    bool is_linked = capability == CAPABILITY_NVLINK && are_linked(fleet_now(), one, gpu);
    *status = is_linked ? STATUS_OK : STATUS_NOT_SUPPORTED;
  }
  return NVML_SUCCESS;
}

/* The level follows from the number of equal steps at the beginning of both paths: none is SYSTEM, then come NODE,
   HOSTBRIDGE, MULTIPLE (switches), SINGLE (one switch) and INTERNAL (one board). */
API nvmlReturn nvmlDeviceGetTopologyCommonAncestor(nvmlDevice device, nvmlDevice peer, int *level) {
  enum { SYSTEM = 50, STEP = 10 };
  NEEDS_GPU(device, READING_TOPOLOGY);
  const Gpu *one = gpu;
  {
    NEEDS_GPU(peer, READING_TOPOLOGY);
    if (!one->path_length || !gpu->path_length) {
      return NVML_ERROR_NOT_SUPPORTED;
    }
    log_call("ancestor", (int)device - 1, 0);
    int common = 0;
    while (common < one->path_length && common < gpu->path_length && one->path[common] == gpu->path[common]) {
      common++;
    }
    *level = SYSTEM - STEP * common;
  }
  return NVML_SUCCESS;
}
