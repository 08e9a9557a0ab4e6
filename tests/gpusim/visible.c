/* Which GPUs a process may see, and in which order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

   Source: "CUDA Environment Variables" in NVIDIA's CUDA programming guide. It says: indices or UUIDs; an
   abbreviated UUID is enough if it is unique; the order of the list is the order of enumeration; the first
   invalid entry ends the list; an empty list shows nothing; FASTEST_FIRST is the default order.
   It doesn't say, and is taken from PyTorch's reimplementation (torch.cuda._parse_visible_devices): a GPU
   named twice empties the list, numbers are read as strtol does ("1gpu2" is 1), the kind of the first entry
   is the kind of all. Not simulated: MIG identifiers, which end the list here. */
#include "gpusim.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define UUID_PREFIX "GPU-"

/* The guide calls the driver's order "a simple heuristic"; this is ours. */
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

/* A GPU that the process may not open (a cgroup denies it) is not enumerated, and indices pass over it. */
static int enumerate(const Fleet *fleet, const char *order, int list[MAX_GPUS]) {
  int count = 0;
  for (int i = 0; i < fleet->gpu_count; i++) {
    if (fleet->gpu[i].nvml_fault != NVML_ERROR_NO_PERMISSION && !device_file_is_denied(fleet, i)) {
      list[count++] = i;
    }
  }
  if (!order || strcmp(order, "PCI_BUS_ID") != 0) {
    sort_fastest_first(fleet, list, count);
  }
  return count;
}

/* The position among `all` that one entry names, or -1 for none or more than one. */
static int position_of_uuid(const char *entry, const Fleet *fleet, const int *all, int count) {
  size_t length = strlen(entry);
  while (length && isspace((unsigned char)entry[length - 1])) {
    length--;
  }
  int found = -1;
  for (int i = 0; i < count; i++) {
    if (strncasecmp(fleet->gpu[all[i]].uuid, entry, length) == 0) {
      if (found >= 0) {
        return -1;
      }
      found = i;
    }
  }
  return found;
}

static int position_of_index(const char *entry, int count) {
  char *end;
  long index = strtol(entry, &end, 10);
  return end != entry && index >= 0 && index < count ? (int)index : -1;
}

static const char *without_leading_space(const char *text) {
  while (isspace((unsigned char)*text)) {
    text++;
  }
  return text;
}

static bool is_uuid(const char *entry) {
  return strncmp(entry, UUID_PREFIX, strlen(UUID_PREFIX)) == 0;
}

int visible_devices(const Fleet *fleet, const char *visible, const char *order, int list[MAX_GPUS]) {
  int all[MAX_GPUS];
  int all_count = enumerate(fleet, order, all);
  if (!visible) {
    memcpy(list, all, sizeof all);
    return all_count;
  }
  char *text = strdup(visible);
  char *rest = text;
  bool by_uuid = is_uuid(without_leading_space(text));
  bool is_taken[MAX_GPUS] = {false};
  int count = 0;
  /* strsep and not strtok: an empty entry is an invalid one. */
  for (char *word = strsep(&rest, ","); word; word = strsep(&rest, ",")) {
    const char *entry = without_leading_space(word);
    int position = -1;
    if (is_uuid(entry) == by_uuid) {
      position =
          by_uuid ? position_of_uuid(entry, fleet, all, all_count) : position_of_index(entry, all_count);
    }
    if (position < 0) {
      break;
    }
    if (is_taken[position]) {
      count = 0;
      break;
    }
    is_taken[position] = true;
    list[count++] = all[position];
  }
  free(text);
  return count;
}
