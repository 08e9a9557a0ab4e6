/* Reader of the fleet's file. It has lines `key = value`: first those of the machine, then a line `[gpu]` before those
   of each GPU, then a line `[instance]` before those of each MIG instance.

   fleet.py checks the values and writes the file, so this reader can be short. The file is always replaced as a whole,
   and never edited in place. */
#include "gpusim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static const struct {
  const char *name;
  Reading reading;
} READINGS[] = {
    {"name", READING_NAME},
    {"uuid", READING_UUID},
    {"pci", READING_PCI},
    {"memory", READING_MEMORY},
    {"utilization", READING_UTILIZATION},
    {"samples", READING_SAMPLES},
    {"processes", READING_PROCESSES},
    {"graphics_processes", READING_GRAPHICS_PROCESSES},
    {"process_memory", READING_PROCESS_MEMORY},
    {"compute_mode", READING_COMPUTE_MODE},
    {"temperature", READING_TEMPERATURE},
    {"power", READING_POWER},
    {"p2p", READING_P2P},
    {"topology", READING_TOPOLOGY},
};

static const struct {
  const char *name;
  Sickness sickness;
} HEALTH[] = {
    {"row_remapping_pending", ROW_REMAPPING_PENDING},
    {"row_remapping_failed", ROW_REMAPPING_FAILED},
    {"page_retirement_pending", PAGE_RETIREMENT_PENDING},
};

static unsigned health_from(char *text) {
  unsigned set = 0;
  char *rest = text;
  for (char *word = strtok_r(rest, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    for (size_t i = 0; i < sizeof HEALTH / sizeof *HEALTH; i++) {
      if (strcmp(word, HEALTH[i].name) == 0) {
        set |= HEALTH[i].sickness;
      }
    }
  }
  return set;
}

static unsigned readings_from(char *text) {
  unsigned set = 0;
  char *rest = text;
  for (char *word = strtok_r(rest, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    for (size_t i = 0; i < sizeof READINGS / sizeof *READINGS; i++) {
      if (strcmp(word, READINGS[i].name) == 0) {
        set |= READINGS[i].reading;
      }
    }
  }
  return set;
}

/* "5004242:2147483648,5004243:1048576" */
static void read_holdings(Holdings *holdings, char *text) {
  char *rest = text;
  for (char *word = strtok_r(rest, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    unsigned pid;
    unsigned long long bytes;
    if (holdings->count < MAX_OTHERS && sscanf(word, "%u:%llu", &pid, &bytes) == 2) {
      holdings->holding[holdings->count++] = (Holding){pid, bytes, NULL};
    }
  }
}

static void read_samples(Gpu *gpu, char *text) {
  char *rest = text;
  for (char *word = strtok_r(rest, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    if (gpu->sample_count < MAX_SAMPLES) {
      gpu->samples[gpu->sample_count++] = (unsigned)atoi(word);
    }
  }
}

static PciAddress address_from(const char *text) {
  PciAddress address = {0};
  sscanf(text, "%x:%x:%x", &address.domain, &address.bus, &address.device);
  return address;
}

/* "0000:0a:00.0,-,0000:0b:00.0" */
static void read_links(Gpu *gpu, char *text) {
  char *rest = text;
  for (char *word = strtok_r(rest, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    if (gpu->link_count < MAX_LINKS) {
      gpu->links[gpu->link_count++] = address_from(word);
    }
  }
}

/* "0/1/4" */
static void read_path(Gpu *gpu, char *text) {
  char *rest = text;
  for (char *word = strtok_r(rest, "/", &rest); word; word = strtok_r(NULL, "/", &rest)) {
    if (gpu->path_length < MAX_STEPS) {
      gpu->path[gpu->path_length++] = (unsigned)atoi(word);
    }
  }
}

static void read_uuid(Gpu *gpu, const char *text) {
  snprintf(gpu->uuid, sizeof gpu->uuid, "%s", text);
  int digits = 0;
  /* Older drivers name an instance "MIG-GPU-5d0f.../1/0", which contains the UUID of its card. */
  const char *of_gpu = strstr(text, "GPU-");
  for (const char *c = of_gpu ? of_gpu + strlen("GPU-") : text + strlen("MIG-"); *c && digits < 32; c++) {
    if (*c == '-') {
      continue;
    }
    char digit[2] = {*c, 0};
    gpu->uuid_bytes[digits / 2] = (uint8_t)(gpu->uuid_bytes[digits / 2] << 4 | strtoul(digit, NULL, 16));
    digits++;
  }
}

static int compute_mode_from(const char *text) {
  if (strcmp(text, "exclusive_process") == 0) {
    return MODE_EXCLUSIVE_PROCESS;
  }
  return strcmp(text, "prohibited") == 0 ? MODE_PROHIBITED : MODE_DEFAULT;
}

/* Read a key for MIG. Return true if the key is one. */
static bool read_mig_key(Gpu *gpu, const char *key, const char *value) {
  if (strcmp(key, "can_mig") == 0) {
    gpu->can_mig = atoi(value);
  } else if (strcmp(key, "in_mig_mode") == 0) {
    gpu->in_mig_mode = atoi(value);
  } else if (strcmp(key, "card") == 0) {
    gpu->card = atoi(value);
  } else if (strcmp(key, "mig_index") == 0) {
    gpu->mig_index = atoi(value);
  } else if (strcmp(key, "gpu_instance") == 0) {
    gpu->gpu_instance = (unsigned)atoi(value);
  } else {
    return false;
  }
  return true;
}

static void read_gpu_key(Gpu *gpu, const char *key, char *value) {
  if (read_mig_key(gpu, key, value)) {
    return;
  }
  if (strcmp(key, "name") == 0) {
    snprintf(gpu->name, sizeof gpu->name, "%s", value);
  } else if (strcmp(key, "uuid") == 0) {
    read_uuid(gpu, value);
  } else if (strcmp(key, "pci") == 0) {
    gpu->pci = address_from(value);
  } else if (strcmp(key, "nvlinks") == 0) {
    read_links(gpu, value);
  } else if (strcmp(key, "path") == 0) {
    read_path(gpu, value);
  } else if (strcmp(key, "memory_bytes") == 0) {
    gpu->memory_bytes = strtoull(value, NULL, 10);
  } else if (strcmp(key, "used_bytes") == 0) {
    gpu->used_bytes = strtoull(value, NULL, 10);
  } else if (strcmp(key, "processes") == 0) {
    read_holdings(&gpu->compute, value);
  } else if (strcmp(key, "graphics") == 0) {
    read_holdings(&gpu->graphics, value);
  } else if (strcmp(key, "utilization_samples") == 0) {
    read_samples(gpu, value);
  } else if (strcmp(key, "compute_capability") == 0) {
    sscanf(value, "%d.%d", &gpu->major, &gpu->minor);
  } else if (strcmp(key, "multiprocessors") == 0) {
    gpu->multiprocessors = atoi(value);
  } else if (strcmp(key, "speed") == 0) {
    gpu->speed = atoi(value);
  } else if (strcmp(key, "compute_mode") == 0) {
    gpu->compute_mode = compute_mode_from(value);
  } else if (strcmp(key, "nvml_fault") == 0) {
    gpu->nvml_fault = atoi(value);
  } else if (strcmp(key, "hide_processes") == 0) {
    gpu->hide_processes = atoi(value);
  } else if (strcmp(key, "unsupported") == 0) {
    gpu->unsupported = readings_from(value);
  } else if (strcmp(key, "ecc") == 0) {
    gpu->has_ecc = atoi(value);
  } else if (strcmp(key, "uncorrected_errors") == 0) {
    gpu->uncorrected_errors = strtoull(value, NULL, 10);
  } else if (strcmp(key, "health") == 0) {
    gpu->health = health_from(value);
  }
}

static void read_fleet_key(Fleet *fleet, const char *key, const char *value) {
  if (strcmp(key, "driver") == 0) {
    snprintf(fleet->driver, sizeof fleet->driver, "%s", value);
  } else if (strcmp(key, "cuda_version") == 0) {
    fleet->cuda_version = atoi(value);
  } else if (strcmp(key, "context_bytes") == 0) {
    fleet->context_bytes = strtoull(value, NULL, 10);
  } else if (strcmp(key, "nvml_fault") == 0) {
    fleet->nvml_fault = atoi(value);
  } else if (strcmp(key, "cuda_fault") == 0) {
    fleet->cuda_fault = atoi(value);
  } else if (strcmp(key, "device_files") == 0) {
    snprintf(fleet->device_files, sizeof fleet->device_files, "%s", value);
  } else if (strcmp(key, "omits_denied") == 0) {
    fleet->omits_denied = atoi(value);
  }
}

static Fleet *read_fleet(const char *path) {
  FILE *file = fopen(path, "re");
  if (!file) {
    give_up("cannot read the fleet", path);
  }
  Fleet *fleet = calloc(1, sizeof *fleet);
  Gpu *gpu = NULL;
  char line[8192];
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (strcmp(line, "[gpu]") == 0 && fleet->gpu_count < MAX_GPUS) {
      gpu = &fleet->gpu[fleet->gpu_count++];
      fleet->device_count = fleet->gpu_count;
      continue;
    }
    if (strcmp(line, "[instance]") == 0 && fleet->device_count < MAX_GPUS) {
      gpu = &fleet->gpu[fleet->device_count++];
      gpu->is_instance = true;
      continue;
    }
    char *value = strstr(line, " = ");
    if (!value) {
      continue;
    }
    *value = 0;
    value += strlen(" = ");
    if (gpu) {
      read_gpu_key(gpu, line, value);
    } else {
      read_fleet_key(fleet, line, value);
    }
  }
  fclose(file);
  return fleet;
}

static bool is_same_file(const struct stat *a, const struct stat *b) {
  return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
         a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

const Fleet *fleet_now(void) {
  static const Fleet NO_GPUS;
  static const Fleet *latest;
  static struct stat latest_file;

  const char *path = process_path(PATH_FLEET);
  if (!path) {
    return &NO_GPUS;
  }
  process_lock();
  struct stat file;
  if (stat(path, &file) == 0 && !(latest && is_same_file(&file, &latest_file))) {
    Fleet *fleet = read_fleet(path);
    /* Ignore a fleet with another number of devices: running processes have counted them. Don't free the old
       snapshot, because another thread may be reading it. Fleets change only a few times in a test. */
    if (!latest || (latest->gpu_count == fleet->gpu_count && latest->device_count == fleet->device_count)) {
      latest = fleet;
    }
    latest_file = file;
  }
  if (!latest) {
    give_up("cannot read the fleet", path);
  }
  const Fleet *now = latest;
  process_unlock();
  return now;
}

unsigned gpu_utilization(const Gpu *gpu) {
  return gpu->sample_count ? gpu->samples[gpu->sample_count - 1] : 0;
}
