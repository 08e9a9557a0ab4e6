/* NVML: processes on a GPU, and its utilization over the last seconds. */
#include "gpusim.h"

#include <string.h>
#include <time.h>

/* ---- processes ---- */

#define MAX_LISTED 1200 /* rows of the ledger, and processes in the fleet */

typedef struct {
  unsigned pid;
  uint64_t used_bytes;
} ProcessV1;

typedef struct {
  unsigned pid;
  uint64_t used_bytes;
  unsigned gpu_instance, compute_instance;
} Process;

static const uint64_t MEMORY_NOT_AVAILABLE = UINT64_MAX;
static const unsigned NO_INSTANCE = UINT32_MAX;

/* As documented: always return the count, but the list only if it has room for all processes. */
static nvmlReturn hand_out(const Gpu *gpu, const Holding *list, unsigned count, unsigned *capacity,
                           void *processes, bool is_v1) {
  unsigned room = processes ? *capacity : 0;
  *capacity = count;
  if (count > room) {
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  for (unsigned i = 0; i < count; i++) {
    uint64_t bytes = gpu->unsupported & READING_PROCESS_MEMORY ? MEMORY_NOT_AVAILABLE : list[i].bytes;
    if (is_v1) {
      ((ProcessV1 *)processes)[i] = (ProcessV1){list[i].pid, bytes};
    } else {
      const Gpu *instance = list[i].instance;
      ((Process *)processes)[i] = (Process){list[i].pid, bytes, instance ? instance->gpu_instance : NO_INSTANCE,
                                            instance ? instance->compute_instance : NO_INSTANCE};
    }
  }
  return NVML_SUCCESS;
}

static unsigned list_compute_processes(nvmlDevice device, const Gpu *gpu, Holding list[MAX_LISTED]) {
  return gpu->hide_processes ? 0 : (unsigned)ledger_processes((int)device - 1, list, MAX_LISTED);
}

static nvmlReturn compute_processes(nvmlDevice device, unsigned *count, void *processes, bool is_v1) {
  NEEDS_GPU(device, READING_PROCESSES);
  Holding list[MAX_LISTED];
  unsigned found = list_compute_processes(device, gpu, list);
  return hand_out(gpu, list, found, count, processes, is_v1);
}

API nvmlReturn nvmlDeviceGetComputeRunningProcesses(nvmlDevice device, unsigned *count,
                                                    ProcessV1 *processes) {
  return compute_processes(device, count, processes, true);
}

API nvmlReturn nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice device, unsigned *count,
                                                       Process *processes) {
  return compute_processes(device, count, processes, false);
}
ALIAS(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses_v2);

static nvmlReturn graphics_processes(nvmlDevice device, unsigned *count, void *processes, bool is_v1) {
  NEEDS_GPU(device, READING_GRAPHICS_PROCESSES);
  unsigned found = gpu->hide_processes ? 0 : (unsigned)gpu->graphics.count;
  return hand_out(gpu, gpu->graphics.holding, found, count, processes, is_v1);
}

API nvmlReturn nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice device, unsigned *count,
                                                     ProcessV1 *processes) {
  return graphics_processes(device, count, processes, true);
}

API nvmlReturn nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice device, unsigned *count,
                                                        Process *processes) {
  return graphics_processes(device, count, processes, false);
}
ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v2);

API nvmlReturn nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice device, unsigned *count, void *processes) {
  NEEDS_GPU(device, READING_PROCESSES);
  *count = 0;
  return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetMPSComputeRunningProcesses);

API nvmlReturn nvmlDeviceGetRunningProcessDetailList(nvmlDevice device, void *list) {
  NEEDS_GPU(device, READING_PROCESSES);
  return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice device, void *info) {
  NEEDS_GPU(device, READING_PROCESSES);
  return NVML_ERROR_NOT_SUPPORTED;
}

static uint64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

typedef struct {
  unsigned pid;
  uint64_t time_us;
  unsigned gpu_percent, memory_percent, encoder_percent, decoder_percent;
} ProcessUtilization;

/* All processes get the same share of the utilization: no kernel runs that could be measured. */
API nvmlReturn nvmlDeviceGetProcessUtilization(nvmlDevice device, ProcessUtilization *list, unsigned *count,
                                               uint64_t seen_us) {
  NEEDS_GPU(device, READING_PROCESSES | READING_UTILIZATION);
  Holding processes[MAX_LISTED];
  unsigned found = list_compute_processes(device, gpu, processes);
  unsigned room = list ? *count : 0;
  *count = found;
  if (!found) {
    return NVML_ERROR_NOT_FOUND;
  }
  if (found > room) {
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  for (unsigned i = 0; i < found; i++) {
    unsigned percent = (gpu_utilization(gpu) + found - 1) / found;
    list[i] = (ProcessUtilization){.pid = processes[i].pid, .time_us = now_us(), .gpu_percent = percent};
  }
  return NVML_SUCCESS;
}

/* ---- samples ---- */

enum { SAMPLES_POWER = 0, SAMPLES_GPU = 1, SAMPLES_MEMORY = 2 };

typedef struct {
  uint64_t time_us;
  union {
    double as_double;
    unsigned as_unsigned;
    uint64_t as_u64;
  } value;
} Sample;

#define SAMPLE_PERIOD_US 1000000

static unsigned sample_value(int kind, unsigned utilization) {
  switch (kind) {
    case SAMPLES_POWER: return 30000 + 2000 * utilization;
    case SAMPLES_MEMORY: return utilization / 2;
    default: return utilization;
  }
}

/* One sample a second, the newest at the last full second, so a sample has the same time in every call. A change of the
   fleet changes past samples too. */
API nvmlReturn nvmlDeviceGetSamples(nvmlDevice device, int kind, uint64_t seen_us, int *value_type,
                                    unsigned *count, Sample *samples) {
  enum { TYPE_UNSIGNED_INT = 1 };
  NEEDS_GPU(device, READING_SAMPLES);
  bool is_of_utilization = kind == SAMPLES_GPU || kind == SAMPLES_MEMORY;
  if (kind != SAMPLES_POWER && (!is_of_utilization || gpu->in_mig_mode)) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  *value_type = TYPE_UNSIGNED_INT;
  /* A caller without a list asks for the length of the list. */
  if (!samples) {
    *count = (unsigned)gpu->sample_count;
    return NVML_SUCCESS;
  }
  uint64_t newest_us = now_us() / SAMPLE_PERIOD_US * SAMPLE_PERIOD_US;
  unsigned written = 0;
  for (int i = 0; i < gpu->sample_count && written < *count; i++) {
    uint64_t time_us = newest_us - (uint64_t)(gpu->sample_count - 1 - i) * SAMPLE_PERIOD_US;
    if (time_us > seen_us) {
      samples[written].time_us = time_us;
      samples[written].value.as_u64 = 0;
      samples[written].value.as_unsigned = sample_value(kind, gpu->samples[i]);
      written++;
    }
  }
  *count = written;
  return written ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
