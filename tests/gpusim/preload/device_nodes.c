/* Makes the files of NVIDIA's driver in /dev seem to exist: JAX does not call the driver without one. This is a library
   of its own, because it must be loaded before Python looks for the files. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <string.h>
#include <sys/stat.h>

#define API __attribute__((visibility("default")))

static const char *instead_of(const char *path) {
  return path && (strcmp(path, "/dev/nvidia0") == 0 || strcmp(path, "/dev/nvidiactl") == 0) ? "/dev/null" : path;
}

typedef int Stat(const char *path, struct stat *about);

API int stat(const char *path, struct stat *about) {
  static Stat *next;
  next = next ? next : (Stat *)dlsym(RTLD_NEXT, "stat");
  return next(instead_of(path), about);
}

API int stat64(const char *path, struct stat64 *about) {
  return stat(path, (struct stat *)about);
}
