/* The GPUs that are denied to a process, by their device files: /dev/nvidiaN on a real machine, and for what a card in
   MIG mode has, /dev/nvidia-caps. There the files have numbers, and /proc/driver/nvidia-caps/mig-minors tells which is
   which; here they have the names of that list.

   Nothing is kept: a scheduler may put a process that runs into another cgroup. */
#include "gpusim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((format(printf, 2, 3))) static bool is_denied(const Fleet *fleet, const char *format, ...) {
  if (!fleet->device_files[0]) {
    return false;
  }
  char path[MAX_PATH + 64];
  int length = snprintf(path, sizeof path, "%s/", fleet->device_files);
  va_list names;
  va_start(names, format);
  vsnprintf(path + length, sizeof path - (size_t)length, format, names);
  va_end(names);
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file >= 0) {
    close(file);
    return false;
  }
  /* A cgroup answers with EPERM, and a container doesn't have the file. ENXIO is no denial: the kernel let us
     through to a driver that this machine doesn't have. */
  return errno == EPERM || errno == EACCES || errno == ENOENT;
}

bool device_file_is_denied(const Fleet *fleet, int index) {
  const Gpu *gpu = &fleet->gpu[index];
  int card = gpu->is_instance ? gpu->card : index;
  return is_denied(fleet, "nvidia%d", card) ||
         (gpu->is_instance && is_denied(fleet, "nvidia-caps/gpu%d/gi%u/access", card, gpu->gpu_instance));
}

bool monitor_file_is_denied(const Fleet *fleet) {
  return is_denied(fleet, "nvidia-caps/monitor");
}
