/* Log of the driver's calls: one JSON object per line, in the file whose path is in GPUSIM_LOG. */
#include "gpusim.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void log_call(const char *call, int gpu, uint64_t bytes) {
  const char *path = process_path(PATH_LOG);
  if (!path) {
    return;
  }
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  char about[96] = "null, \"bytes\": null";
  if (gpu >= 0) {
    const Gpu *used = &fleet_now()->gpu[gpu];
    int card = used->is_instance ? used->card : gpu;
    int length = snprintf(about, sizeof about, "%d, \"bytes\": %llu", card, (unsigned long long)bytes);
    if (used->is_instance) {
      snprintf(about + length, sizeof about - (size_t)length, ", \"instance\": %d", used->mig_index);
    }
  }
  char line[256];
  int length =
      snprintf(line, sizeof line, "{\"pid\": %d, \"call\": \"%s\", \"gpu\": %s, \"time_s\": %lld.%06ld}\n",
               (int)getpid(), call, about, (long long)now.tv_sec, now.tv_nsec / 1000);
  /* Open the file for each line. A daemon closes all its descriptors, and the number may then belong to
     another file. */
  int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) {
    give_up("cannot open the log", path);
  }
  /* Write the line with one call in append mode, so that lines of several processes don't mix. */
  if (write(file, line, (size_t)length) != length) {
    give_up("cannot write the log", path);
  }
  close(file);
}
