/* This process: its lock, where its files are, what a fork means, and how it hangs or crashes on request. */
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
  /* Made anew and not unlocked: a recursive lock belongs to a thread id, and the child's is another. */
  lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

static const char *copy_of(const char *name) {
  const char *value = getenv(name);
  return value && *value ? strdup(value) : NULL;
}

/* Once, and not when a path is wanted: a program may change its environment from another thread while the driver works.
   At the first call and not at the load, which comes with the import of some TensorFlow wheels: a process that is
   forked between the two is on the server that its own environment names. */
static void read_paths(void) {
  paths[PATH_FLEET] = copy_of("GPUSIM_FLEET");
  paths[PATH_STATE] = copy_of("GPUSIM_STATE");
  paths[PATH_LOG] = copy_of("GPUSIM_LOG");
}

__attribute__((constructor)) static void load(void) {
  /* Without holding the lock over the fork, a child could inherit it locked by a thread it doesn't have. */
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

/* A broken stage must not look like a broken GPU: a test would believe it. */
_Noreturn void give_up(const char *what, const char *path) {
  fprintf(stderr, "gpusim: %s %s: %s\n", what, path ? path : "(not set)", strerror(errno));
  abort();
}
