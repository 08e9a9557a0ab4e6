/* The GPUs that CUDA lists for a process, and their order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

   Rules from "CUDA Environment Variables" in NVIDIA's CUDA programming guide:
   - Entries are indices or UUIDs. An abbreviated UUID is enough if it is unique.
   - CUDA numbers the GPUs in the order of the list.
   - The first invalid entry ends the list. An empty list hides all GPUs.
   - FASTEST_FIRST is the default order.
   Rules that the guide lacks, from PyTorch's reimplementation (torch.cuda._parse_visible_devices):
   - A duplicate GPU empties the list.
   - Numbers are read as by strtol: "1gpu2" is 1.
   - The first entry decides whether the list has indices or UUIDs.

   Rules for MIG from "CUDA Device Enumeration" in NVIDIA's MIG user guide:
   - Before R570 a process sees at most one instance, the first in the list, and then no whole GPU.
   - From R570 on a process sees one compute instance of each GPU instance, and also whole GPUs.
   - A card in MIG mode is not a whole GPU.
   Rules that the guide lacks, from tests that record eight A100 with driver 550 (github.com/DataDog/datadog-agent,
   pkg/gpu/cuda/env_test.go):
   - Whole GPUs are numbered first, then the first instance of each card.
   - The UUID of a card in MIG mode means its first instance.
   Both rules are unpublished from R570 on. Here all instances are then numbered, and the UUID keeps its meaning. */
#include "gpusim.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define UUID_PREFIX "GPU-"
#define INSTANCE_PREFIX "MIG-"

/* The guide calls the driver's rule "a simple heuristic", and does not describe it. This rule is our own. */
static int speed_of(const Gpu *gpu) {
  return gpu->speed ? gpu->speed : gpu->major * 100000 + gpu->minor * 10000 + gpu->multiprocessors;
}

static void sort_fastest_first(const Fleet *fleet, int *list, int count) {
  for (int i = 1; i < count; i++) {
    int moving = list[i];
    int at = i;
    for (; at > 0 && speed_of(&fleet->gpu[list[at - 1]]) < speed_of(&fleet->gpu[moving]); at--) {
      list[at] = list[at - 1];
    }
    list[at] = moving;
  }
}

/* CUDA does not list or number a GPU that the process may not open, for example because of its cgroup. */
static bool is_there(const Fleet *fleet, int index) {
  return fault_of(fleet, &fleet->gpu[index]) != NVML_ERROR_NO_PERMISSION && !device_file_is_denied(fleet, index);
}

static bool shows_one_instance(const Fleet *fleet) {
  return driver_branch(fleet) < 570;
}

/* List the instances of a card that CUDA numbers, and return their count. */
static int numbered_instances(const Fleet *fleet, int card, int list[MAX_GPUS]) {
  int all[MAX_GPUS];
  int all_count = instances_of(fleet, card, all);
  int count = 0;
  for (int i = 0; i < all_count && !(count && shows_one_instance(fleet)); i++) {
    if (is_there(fleet, all[i])) {
      list[count++] = all[i];
    }
  }
  return count;
}

static int enumerate(const Fleet *fleet, const char *order, int list[MAX_GPUS]) {
  int cards[MAX_GPUS];
  int card_count = 0;
  for (int i = 0; i < fleet->gpu_count; i++) {
    if (is_there(fleet, i)) {
      cards[card_count++] = i;
    }
  }
  if (!order || strcmp(order, "PCI_BUS_ID") != 0) {
    sort_fastest_first(fleet, cards, card_count);
  }
  int count = 0;
  for (int i = 0; i < card_count; i++) {
    if (!fleet->gpu[cards[i]].in_mig_mode) {
      list[count++] = cards[i];
    }
  }
  for (int i = 0; i < card_count; i++) {
    count += numbered_instances(fleet, cards[i], list + count);
  }
  return count;
}

/* Return the number in the fleet of the GPU that an entry means; -1 if it means none or more than one. */
static int gpu_of_uuid(const Fleet *fleet, const char *entry, size_t length) {
  int found = -1;
  for (int i = 0; i < fleet->gpu_count; i++) {
    if (is_there(fleet, i) && strncasecmp(fleet->gpu[i].uuid, entry, length) == 0) {
      if (found >= 0) {
        return -1;
      }
      found = i;
    }
  }
  if (found < 0 || !fleet->gpu[found].in_mig_mode) {
    return found;
  }
  int instances[MAX_GPUS];
  return numbered_instances(fleet, found, instances) ? instances[0] : -1;
}

static int instance_of_uuid(const Fleet *fleet, const char *entry, size_t length) {
  for (int i = fleet->gpu_count; i < fleet->device_count; i++) {
    if (is_there(fleet, i) && is_name_of_instance(fleet, i, entry, length)) {
      return i;
    }
  }
  return -1;
}

static bool is_instance_uuid(const char *entry) {
  return strncmp(entry, INSTANCE_PREFIX, strlen(INSTANCE_PREFIX)) == 0;
}

static bool is_uuid(const char *entry) {
  return strncmp(entry, UUID_PREFIX, strlen(UUID_PREFIX)) == 0 || is_instance_uuid(entry);
}

static int named_by_uuid(const Fleet *fleet, const char *entry) {
  size_t length = strlen(entry);
  while (length && isspace((unsigned char)entry[length - 1])) {
    length--;
  }
  return is_instance_uuid(entry) ? instance_of_uuid(fleet, entry, length) : gpu_of_uuid(fleet, entry, length);
}

static int named_by_index(const char *entry, const int *all, int count) {
  char *end;
  long index = strtol(entry, &end, 10);
  return end != entry && index >= 0 && index < count ? all[index] : -1;
}

static const char *without_leading_space(const char *text) {
  while (isspace((unsigned char)*text)) {
    text++;
  }
  return text;
}

/* Read the variable into `list`, and return the number of GPUs. */
static int read_list(const Fleet *fleet, const char *visible, const int *all, int all_count, int list[MAX_GPUS]) {
  char *text = strdup(visible);
  char *rest = text;
  bool by_uuid = is_uuid(without_leading_space(text));
  bool is_taken[MAX_GPUS] = {false};
  int count = 0;
  /* Use strsep, because strtok skips empty entries, and an empty entry is invalid. */
  for (char *word = strsep(&rest, ","); word; word = strsep(&rest, ",")) {
    const char *entry = without_leading_space(word);
    int named = -1;
    if (is_uuid(entry) == by_uuid) {
      named = by_uuid ? named_by_uuid(fleet, entry) : named_by_index(entry, all, all_count);
    }
    if (named < 0) {
      break;
    }
    if (is_taken[named]) {
      count = 0;
      break;
    }
    is_taken[named] = true;
    list[count++] = named;
  }
  free(text);
  return count;
}

static int without_what_stands_beside_an_instance(const Fleet *fleet, int *list, int count) {
  for (int i = 0; i < count; i++) {
    if (fleet->gpu[list[i]].is_instance) {
      list[0] = list[i];
      return 1;
    }
  }
  return count;
}

int visible_devices(const Fleet *fleet, const char *visible, const char *order, int list[MAX_GPUS]) {
  int all[MAX_GPUS];
  int count = enumerate(fleet, order, all);
  if (visible) {
    count = read_list(fleet, visible, all, count, list);
  } else {
    memcpy(list, all, sizeof all);
  }
  return shows_one_instance(fleet) ? without_what_stands_beside_an_instance(fleet, list, count) : count;
}
