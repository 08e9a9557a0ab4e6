/* NVML: readings of one GPU. A reading without a key in the fleet is derived from the load, or is a constant. */
#include "gpusim.h"

#include <stdio.h>
#include <string.h>

/* ---- identity ---- */

API nvmlReturn nvmlDeviceGetName(nvmlDevice device, char *name, unsigned size) {
  NEEDS_GPU(device, READING_NAME);
  return nvml_copy_text(name, size, gpu->name);
}

API nvmlReturn nvmlDeviceGetUUID(nvmlDevice device, char *uuid, unsigned size) {
  NEEDS_GPU(device, READING_UUID);
  return nvml_copy_text(uuid, size, gpu->uuid);
}

API nvmlReturn nvmlDeviceGetIndex(nvmlDevice device, unsigned *index) {
  NEEDS_GPU(device, READING_ANY);
  const Fleet *fleet = fleet_now();
  *index = gpu->is_instance ? nvml_mig_index(fleet, (int)device - 1) : nvml_index(fleet, (int)device - 1);
  return NVML_SUCCESS;
}

/* The number of the device file. GPUs that NVML does not list count too. */
API nvmlReturn nvmlDeviceGetMinorNumber(nvmlDevice device, unsigned *number) {
  NEEDS_GPU(device, READING_OF_CARD);
  *number = (unsigned)device - 1;
  return NVML_SUCCESS;
}

void nvml_describe_pci(PciAddress at, PciInfo *info) {
  enum { SOME_NVIDIA_CARD = 0x1b0610de };
  memset(info, 0, sizeof *info);
  info->domain = at.domain;
  info->bus = at.bus;
  info->device = at.device;
  info->vendor_and_device = SOME_NVIDIA_CARD;
  snprintf(info->legacy_id, sizeof info->legacy_id, "%04X:%02X:%02X.0", at.domain & 0xffff, at.bus & 0xff,
           at.device & 0xff);
  snprintf(info->id, sizeof info->id, "%08X:%02X:%02X.0", at.domain, at.bus, at.device);
}

API nvmlReturn nvmlDeviceGetPciInfo_v3(nvmlDevice device, PciInfo *info) {
  NEEDS_GPU(device, READING_PCI);
  nvml_describe_pci(gpu->pci, info);
  return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo_v3);

API nvmlReturn nvmlDeviceGetCudaComputeCapability(nvmlDevice device, int *major, int *minor) {
  NEEDS_GPU(device, READING_OF_CARD);
  *major = gpu->major;
  *minor = gpu->minor;
  return NVML_SUCCESS;
}

/* Source: CUDA C++ Programming Guide, 32-bit floating-point operations per clock cycle and multiprocessor. */
static int cores_of_multiprocessor(const Gpu *gpu) {
  bool is_first_of_age = gpu->minor == 0 && (gpu->major == 6 || gpu->major == 8);
  return gpu->major == 3 ? 192 : gpu->major == 7 || is_first_of_age ? 64 : 128;
}

API nvmlReturn nvmlDeviceGetNumGpuCores(nvmlDevice device, unsigned *cores) {
  NEEDS_GPU(device, READING_OF_CARD);
  *cores = (unsigned)(gpu->multiprocessors * cores_of_multiprocessor(gpu));
  /* github.com/DataDog/datadog-agent/pull/45266 */
  return gpu->in_mig_mode ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetBrand(nvmlDevice device, int *brand) {
  enum { UNKNOWN = 0, TESLA = 2, GEFORCE = 5, TITAN = 6 };
  NEEDS_GPU(device, READING_ANY);
  *brand = strstr(gpu->name, "GeForce") ? GEFORCE
           : strstr(gpu->name, "TITAN") ? TITAN
           : strstr(gpu->name, "Tesla") ? TESLA
                                        : UNKNOWN;
  return NVML_SUCCESS;
}

/* ---- memory ---- */

typedef struct {
  uint64_t total, free, used;
} MemoryInfo;

typedef struct {
  unsigned version;
  uint64_t total, reserved, free, used;
} MemoryInfoV2;

API nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, MemoryInfo *info) {
  NEEDS_GPU(device, READING_MEMORY);
  uint64_t used = ledger_used_bytes((int)device - 1);
  *info = (MemoryInfo){gpu->memory_bytes, gpu->memory_bytes - used, used};
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, MemoryInfoV2 *info) {
  NEEDS_GPU(device, READING_MEMORY);
  uint64_t used = ledger_used_bytes((int)device - 1);
  *info = (MemoryInfoV2){info->version, gpu->memory_bytes, 0, gpu->memory_bytes - used, used};
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetBAR1MemoryInfo(nvmlDevice device, MemoryInfo *info) {
  NEEDS_GPU(device, READING_MEMORY);
  *info = (MemoryInfo){256 << 20, 250 << 20, 6 << 20};
  return NVML_SUCCESS;
}

/* ---- load ---- */

API nvmlReturn nvmlDeviceGetUtilizationRates(nvmlDevice device, unsigned rates[2]) {
  enum { GPU = 0, MEMORY = 1 };
  NEEDS_GPU(device, READING_UTILIZATION);
  rates[GPU] = gpu_utilization(gpu);
  rates[MEMORY] = gpu_utilization(gpu) / 2;
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetEncoderUtilization(nvmlDevice device, unsigned *percent, unsigned *period_us) {
  NEEDS_GPU(device, READING_UTILIZATION);
  *percent = 0;
  *period_us = 1000000;
  return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetDecoderUtilization, nvmlDeviceGetEncoderUtilization);

static unsigned temperature_of(const Gpu *gpu) {
  return 35 + gpu_utilization(gpu) / 2;
}

/* A deprecated function, which fails from CUDA 14 on. */
API nvmlReturn nvmlDeviceGetTemperature(nvmlDevice device, int sensor, unsigned *celsius) {
  NEEDS_GPU(device, READING_TEMPERATURE);
  if (fleet_now()->cuda_version >= 14000) return NVML_ERROR_DEPRECATED;
  *celsius = temperature_of(gpu);
  return NVML_SUCCESS;
}

typedef struct {
  unsigned version;
  int sensor, celsius;
} Temperature;

/* Before R570 the driver has no such function. pynvml reports that with this error. */
API nvmlReturn nvmlDeviceGetTemperatureV(nvmlDevice device, Temperature *temperature) {
  NEEDS_GPU(device, READING_TEMPERATURE);
  if (driver_branch(fleet_now()) < 570) return NVML_ERROR_FUNCTION_NOT_FOUND;
  temperature->celsius = (int)temperature_of(gpu);
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetPowerUsage(nvmlDevice device, unsigned *milliwatts) {
  NEEDS_GPU(device, READING_POWER);
  *milliwatts = 30000 + 2000 * gpu_utilization(gpu);
  return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetPerformanceState(nvmlDevice device, int *state) {
  NEEDS_GPU(device, READING_OF_CARD);
  *state = gpu_utilization(gpu) ? 2 : 8;
  return NVML_SUCCESS;
}

/* ---- modes ---- */

API nvmlReturn nvmlDeviceGetComputeMode(nvmlDevice device, int *mode) {
  NEEDS_GPU(device, READING_COMPUTE_MODE);
  *mode = gpu->compute_mode;
  return NVML_SUCCESS;
}

/* ---- health ---- */

API nvmlReturn nvmlDeviceGetEccMode(nvmlDevice device, int *now, int *after_reboot) {
  NEEDS_GPU(device, READING_OF_CARD);
  *now = *after_reboot = gpu->has_ecc;
  return gpu->has_ecc ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn nvmlDeviceGetTotalEccErrors(nvmlDevice device, int kind, int counter, unsigned long long *count) {
  enum { UNCORRECTED = 1 };
  NEEDS_GPU(device, READING_OF_CARD);
  *count = kind == UNCORRECTED ? gpu->uncorrected_errors : 0;
  return gpu->has_ecc ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* Row remapping exists from Ampere on. Older GPUs retire pages. */
static bool remaps_rows(const Gpu *gpu) {
  return gpu->has_ecc && gpu->major >= 8;
}

static bool has_instances(int card) {
  const Fleet *fleet = fleet_now();
  for (int i = fleet->gpu_count; i < fleet->device_count; i++) {
    if (fleet->gpu[i].card == card) {
      return true;
    }
  }
  return false;
}

API nvmlReturn nvmlDeviceGetRemappedRows(nvmlDevice device, unsigned *corrected, unsigned *uncorrected,
                                         unsigned *is_pending, unsigned *has_failed) {
  NEEDS_GPU(device, READING_OF_CARD);
  *corrected = 0;
  *is_pending = (gpu->health & ROW_REMAPPING_PENDING) != 0;
  *has_failed = (gpu->health & ROW_REMAPPING_FAILED) != 0;
  *uncorrected = *is_pending + *has_failed;
  /* Documented: not supported while the card has MIG instances. */
  return remaps_rows(gpu) && !has_instances((int)device - 1) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice device, int *is_pending) {
  NEEDS_GPU(device, READING_OF_CARD);
  *is_pending = (gpu->health & PAGE_RETIREMENT_PENDING) != 0;
  return gpu->has_ecc && !remaps_rows(gpu) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice device, unsigned long long *reasons) {
  enum { IDLE = 0x1 };
  NEEDS_GPU(device, READING_OF_CARD);
  *reasons = gpu_utilization(gpu) ? 0 : IDLE;
  return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons);

/* ---- constants ---- */

#define CONSTANT(function, value)                                \
  API nvmlReturn function(nvmlDevice device, unsigned *answer) { \
    NEEDS_GPU(device, READING_OF_CARD);                              \
    *answer = (value);                                           \
    return NVML_SUCCESS;                                         \
  }

CONSTANT(nvmlDeviceGetPersistenceMode, 0)
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetFanSpeed, 30)
CONSTANT(nvmlDeviceGetEnforcedPowerLimit, 250000)
CONSTANT(nvmlDeviceGetPowerManagementLimit, 250000)
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, 3)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, 3)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)

#define CONSTANT_OF_KIND(function, value)                                  \
  API nvmlReturn function(nvmlDevice device, int kind, unsigned *answer) { \
    NEEDS_GPU(device, READING_OF_CARD);                                        \
    *answer = (value);                                                     \
    return NVML_SUCCESS;                                                   \
  }

CONSTANT_OF_KIND(nvmlDeviceGetClockInfo, 1500)
CONSTANT_OF_KIND(nvmlDeviceGetMaxClockInfo, 1900)
CONSTANT_OF_KIND(nvmlDeviceGetPcieThroughput, 0)

/* ---- readings that these GPUs lack; the functions exist, because tools take a missing one for an old driver ---- */

#define NOT_SUPPORTED(function)                \
  API nvmlReturn function(nvmlDevice device) { \
    NEEDS_GPU(device, READING_ANY);            \
    return NVML_ERROR_NOT_SUPPORTED;           \
  }

NOT_SUPPORTED(nvmlDeviceGetApplicationsClock)
NOT_SUPPORTED(nvmlDeviceGetArchitecture)
NOT_SUPPORTED(nvmlDeviceGetAttributes_v2)
NOT_SUPPORTED(nvmlDeviceGetBoardId)
NOT_SUPPORTED(nvmlDeviceGetConfComputeMemSizeInfo)
NOT_SUPPORTED(nvmlDeviceGetConfComputeProtectedMemoryUsage)
NOT_SUPPORTED(nvmlDeviceGetCpuAffinity)
NOT_SUPPORTED(nvmlDeviceGetDetailedEccErrors)
NOT_SUPPORTED(nvmlDeviceGetDriverModel)
NOT_SUPPORTED(nvmlDeviceGetDriverModel_v2)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed_v2)
NOT_SUPPORTED(nvmlDeviceGetFieldValues)
NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfo)
NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfoV)
NOT_SUPPORTED(nvmlDeviceGetMaxCustomerBoostClock)
NOT_SUPPORTED(nvmlDeviceGetMemoryErrorCounter)
NOT_SUPPORTED(nvmlDeviceGetMultiGpuBoard)
NOT_SUPPORTED(nvmlDeviceGetNumFans)
NOT_SUPPORTED(nvmlDeviceGetNvLinkCapability)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_SUPPORTED(nvmlDeviceGetNvLinkState)
NOT_SUPPORTED(nvmlDeviceGetNvLinkVersion)
NOT_SUPPORTED(nvmlDeviceGetPowerState)
NOT_SUPPORTED(nvmlDeviceGetRetiredPages)
NOT_SUPPORTED(nvmlDeviceGetSerial)
NOT_SUPPORTED(nvmlDeviceGetSupportedEventTypes)
NOT_SUPPORTED(nvmlDeviceGetTemperatureThreshold)
NOT_SUPPORTED(nvmlDeviceGetTotalEnergyConsumption)
NOT_SUPPORTED(nvmlDeviceGetVbiosVersion)
NOT_SUPPORTED(nvmlDeviceGetVirtualizationMode)
