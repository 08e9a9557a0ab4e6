/* State of this process: its lock, the paths of its files, forks, and hangs and crashes on request. */
#include "gpusim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static bool has_cuda;
static bool is_forked_from_cuda;
static const char *paths[3];

void process_lock(void) {
  pthread_mutex_lock(&lock);
}

void process_unlock(void) {
  pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void) {
  is_forked_from_cuda = is_forked_from_cuda || has_cuda;
  ledger_forget_after_fork();
  /* Make a new lock instead of unlocking: a recursive lock belongs to a thread id, and the child has another id. */
  lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

static const char *copy_of(const char *name) {
  const char *value = getenv(name);
  return value && *value ? strdup(value) : NULL;
}

/* Read the paths only once: a program may change its environment in another thread while the driver works.
   Read them at the first call and not when the library is loaded, which some TensorFlow wheels do at their import: a
   process that is forked in between must use the server in its own environment. */
static void read_paths(void) {
  paths[PATH_FLEET] = copy_of("GPUSIM_FLEET");
  paths[PATH_STATE] = copy_of("GPUSIM_STATE");
  paths[PATH_LOG] = copy_of("GPUSIM_LOG");
}

__attribute__((constructor)) static void load(void) {
  /* Hold the lock during a fork. Otherwise the child could inherit a lock whose owner thread does not exist there. */
  pthread_atfork(process_lock, process_unlock, after_fork_in_child);
}

const char *process_path(Path path) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_paths);
  return paths[path];
}

bool process_is_forked_from_cuda(void) {
  return is_forked_from_cuda;
}

void process_has_cuda(void) {
  has_cuda = true;
}

int suffer(int fault) {
  if (fault == FAULT_CRASH) {
    abort();
  }
  while (fault == FAULT_HANG) {
    pause();
  }
  return fault;
}

/* Abort on an error of the simulation itself: a test must not take it for a faulty GPU. */
_Noreturn void give_up(const char *what, const char *path) {
  fprintf(stderr, "gpusim: %s %s: %s\n", what, path ? path : "(not set)", strerror(errno));
  abort();
}
