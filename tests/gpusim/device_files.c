/* The GPUs that are denied to a process, by their device files: /dev/nvidiaN on a real machine.

   Nothing is kept: a scheduler may put a process that runs into another cgroup. */
#include "gpusim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

bool device_file_is_denied(const Fleet *fleet, int gpu) {
  if (!fleet->device_files[0]) {
    return false;
  }
  char path[MAX_PATH + 32];
  snprintf(path, sizeof path, "%s/nvidia%d", fleet->device_files, gpu);
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file >= 0) {
    close(file);
    return false;
  }
  /* A cgroup answers with EPERM, and a container doesn't have the file. ENXIO is no denial: the kernel let us
     through to a driver that this machine doesn't have. */
  return errno == EPERM || errno == EACCES || errno == ENOENT;
}
