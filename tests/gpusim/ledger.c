/* The ledger: the memory of each process on each GPU. It is one file, which all processes map, with a row per process.

   A process that ends leaves its row, and the next user of the ledger clears it. So memory is freed after an exit, a
   crash and SIGKILL. /proc shows which processes have ended. But each NVML call would read a file per process, while
   other callers wait. So each process also locks one byte of a second file, the roll, until it ends. Only a process
   without this lock is looked up in /proc. */
#include "gpusim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_PROCESSES 1024

typedef struct {
  uint32_t pid;        /* 0: the row is free */
  uint64_t start_time; /* pids are reused; a pid together with its start time is unique */
  uint32_t contexts[MAX_GPUS];
  uint64_t bytes[MAX_GPUS];
} Row;

static Row *rows;
static Row *own_row;
static int ledger_file = -1;
static int roll_file = -1; /* never closed, because closing would drop the lock */
static struct stat roll;

void ledger_forget_after_fork(void) {
  own_row = NULL;
}

/* Return the 22nd field of /proc/PID/stat; 0 if the process has ended, even if nobody has waited for it. */
static uint64_t start_time_of(uint32_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return 0;
  }
  char text[1024];
  ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) {
    return 0;
  }
  text[length] = 0;
  /* The second field is the program's name in brackets. The name may itself contain brackets. */
  char *field = strrchr(text, ')');
  if (!field || field[2] == 'Z' || field[2] == 'X') {
    return 0;
  }
  for (int number = 2; number < 22 && field; number++) {
    field = strchr(field + 1, ' ');
  }
  return field ? strtoull(field, NULL, 10) : 0;
}

static struct flock byte_of(const Row *row, short type) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = row - rows, .l_len = 1};
}

static void open_roll(void) {
  struct stat now;
  /* A daemon closes all its descriptors. The number may then belong to another file. */
  bool is_open = roll_file >= 0 && fstat(roll_file, &now) == 0;
  if (is_open && now.st_ino == roll.st_ino && now.st_dev == roll.st_dev) {
    return;
  }
  char path[4096];
  snprintf(path, sizeof path, "%s.roll", process_path(PATH_STATE));
  roll_file = open(path, O_RDWR | O_CLOEXEC);
  if (roll_file < 0 || fstat(roll_file, &roll) != 0) {
    give_up("cannot open the roll", path);
  }
}

static bool answers_the_roll(const Row *row) {
  /* F_GETLK does not report the process's own locks. */
  struct flock asked = byte_of(row, F_WRLCK);
  return row == own_row || (fcntl(roll_file, F_GETLK, &asked) == 0 && asked.l_type != F_UNLCK);
}

static void clear_rows_of_the_dead(void) {
  open_roll();
  for (int i = 0; i < MAX_PROCESSES; i++) {
    if (rows[i].pid && !answers_the_roll(&rows[i]) && start_time_of(rows[i].pid) != rows[i].start_time) {
      memset(&rows[i], 0, sizeof rows[i]);
    }
  }
}

/* Open the file for each use: a lock of flock() belongs to the open file, which a forked child would share. */
static void open_ledger(void) {
  process_lock();
  const char *path = process_path(PATH_STATE);
  ledger_file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (ledger_file < 0) {
    give_up("cannot open the ledger", path);
  }
  while (flock(ledger_file, LOCK_EX) != 0) {
    if (errno != EINTR) {
      give_up("cannot lock the ledger", path);
    }
  }
  if (!rows) {
    size_t size = MAX_PROCESSES * sizeof(Row);
    struct stat status;
    if (fstat(ledger_file, &status) != 0 ||
        ((size_t)status.st_size < size && ftruncate(ledger_file, (off_t)size) != 0)) {
      give_up("cannot grow the ledger", path);
    }
    rows = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ledger_file, 0);
    if (rows == MAP_FAILED) {
      give_up("cannot map the ledger", path);
    }
  }
  clear_rows_of_the_dead();
}

static void close_ledger(void) {
  flock(ledger_file, LOCK_UN);
  close(ledger_file);
  process_unlock();
}

/* Return this process's row, and make it at the first use; NULL if all rows are taken. */
static Row *row_of_this_process(void) {
  if (own_row) {
    return own_row;
  }
  uint32_t pid = (uint32_t)getpid();
  Row *free_row = NULL;
  for (int i = 0; i < MAX_PROCESSES; i++) {
    /* This process wrote the row before exec() replaced its program. CUDA ended with that program, so reuse the row. */
    if (rows[i].pid == pid) {
      free_row = &rows[i];
      break;
    }
    if (!rows[i].pid && !free_row) {
      free_row = &rows[i];
    }
  }
  if (free_row) {
    memset(free_row, 0, sizeof *free_row);
    free_row->pid = pid;
    free_row->start_time = start_time_of(pid);
    struct flock mine = byte_of(free_row, F_WRLCK);
    fcntl(roll_file, F_SETLK, &mine);
  }
  own_row = free_row;
  return own_row;
}

static uint64_t sum_of(const Holdings *holdings) {
  uint64_t sum = 0;
  for (int i = 0; i < holdings->count; i++) {
    sum += holdings->holding[i].bytes;
  }
  return sum;
}

static bool is_instance_of(const Gpu *gpu, int card) {
  return gpu->is_instance && gpu->card == card;
}

/* The sum for a card includes its MIG instances. */
static uint64_t used_bytes_in_open_ledger(const Fleet *fleet, int index) {
  const Gpu *gpu = &fleet->gpu[index];
  uint64_t used = gpu->used_bytes + sum_of(&gpu->compute) + sum_of(&gpu->graphics);
  for (int i = 0; i < MAX_PROCESSES; i++) {
    used += rows[i].pid ? rows[i].bytes[index] : 0;
  }
  for (int i = fleet->gpu_count; i < fleet->device_count; i++) {
    used += is_instance_of(&fleet->gpu[i], index) ? used_bytes_in_open_ledger(fleet, i) : 0;
  }
  return used;
}

static bool somebody_else_computes_on(const Gpu *gpu, int index) {
  for (int i = 0; i < MAX_PROCESSES; i++) {
    if (rows[i].pid && rows[i].pid != (uint32_t)getpid() && rows[i].contexts[index]) {
      return true;
    }
  }
  return gpu->compute.count > 0;
}

static Grant take_from_open_ledger(int index, uint64_t bytes, unsigned contexts) {
  const Fleet *fleet = fleet_now();
  if (used_bytes_in_open_ledger(fleet, index) + bytes > fleet->gpu[index].memory_bytes) {
    return NO_ROOM;
  }
  Row *row = row_of_this_process();
  if (!row) {
    return NO_ROOM;
  }
  row->bytes[index] += bytes;
  row->contexts[index] += contexts;
  return GRANTED;
}

Grant ledger_take(int index, uint64_t bytes) {
  open_ledger();
  Grant grant = take_from_open_ledger(index, bytes, 0);
  close_ledger();
  return grant;
}

/* MPS: its server has the one context that the exclusive mode allows, and its clients share that context. */
static bool has_mps(void) {
  const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
  char control[PATH_MAX];
  snprintf(control, sizeof control, "%s/control", folder && *folder ? folder : "/tmp/nvidia-mps");
  return access(control, F_OK) == 0;
}

Grant ledger_open_context(int index, uint64_t bytes) {
  open_ledger();
  const Gpu *gpu = &fleet_now()->gpu[index];
  Grant grant = NOT_FOR_YOU;
  bool is_forbidden = gpu->compute_mode == MODE_PROHIBITED ||
                      (gpu->compute_mode == MODE_EXCLUSIVE_PROCESS && !has_mps() && somebody_else_computes_on(gpu, index));
  if (!is_forbidden) {
    grant = take_from_open_ledger(index, bytes, 1);
  }
  close_ledger();
  return grant;
}

static void give_back(int index, uint64_t bytes, unsigned contexts) {
  open_ledger();
  if (own_row) {
    own_row->bytes[index] -= bytes;
    own_row->contexts[index] -= contexts;
  }
  close_ledger();
}

void ledger_give_back(int index, uint64_t bytes) {
  give_back(index, bytes, 0);
}

void ledger_close_context(int index, uint64_t bytes) {
  give_back(index, bytes, 1);
}

uint64_t ledger_used_bytes(int index) {
  const Fleet *fleet = fleet_now();
  open_ledger();
  uint64_t used = used_bytes_in_open_ledger(fleet, index);
  close_ledger();
  /* After a change of the fleet, the sum can be larger than the GPU's memory. */
  uint64_t all = fleet->gpu[index].memory_bytes;
  return used < all ? used : all;
}

/* Append the processes of one GPU or instance after the first `count`. Return the new count, which may exceed
   `capacity`. */
static int add_processes(const Fleet *fleet, int index, Holding *list, int count, int capacity) {
  const Gpu *gpu = &fleet->gpu[index];
  const Gpu *instance = gpu->is_instance ? gpu : NULL;
  for (int i = 0; i < gpu->compute.count; i++, count++) {
    if (count < capacity) {
      list[count] = (Holding){gpu->compute.holding[i].pid, gpu->compute.holding[i].bytes, instance};
    }
  }
  for (int i = 0; i < MAX_PROCESSES; i++) {
    if (!rows[i].pid || !rows[i].contexts[index]) {
      continue;
    }
    if (count < capacity) {
      list[count] = (Holding){rows[i].pid, rows[i].bytes[index], instance};
    }
    count++;
  }
  return count;
}

/* List the compute processes: first the fleet's, then the running ones. A card's list includes its MIG instances.
   Return the count, which may exceed `capacity`. */
int ledger_processes(int index, Holding *list, int capacity) {
  const Fleet *fleet = fleet_now();
  open_ledger();
  int count = add_processes(fleet, index, list, 0, capacity);
  for (int i = fleet->gpu_count; i < fleet->device_count; i++) {
    if (is_instance_of(&fleet->gpu[i], index)) {
      count = add_processes(fleet, i, list, count, capacity);
    }
  }
  close_ledger();
  return count;
}

/* For server.py: the used memory that NVML would report without faults. */
API uint64_t gpusim_used_bytes(int index) {
  return index >= 0 && index < fleet_now()->device_count ? ledger_used_bytes(index) : 0;
}
