/* GPUs whose device files a process can't open: /dev/nvidiaN on a real machine, and /dev/nvidia-caps for MIG instances.
   On a real machine the files in nvidia-caps have numbers, and /proc/driver/nvidia-caps/mig-minors lists their names.
   Here the files have these names.

   Results are not cached: a scheduler may move a running process into another cgroup. */
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
  /* A cgroup causes EPERM, and a container lacks the file. ENXIO is no denial: the kernel allowed the access, but this
     machine has no driver. */
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
