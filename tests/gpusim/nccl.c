/* NCCL: every collective succeeds at once, and no data come from another rank. Two ranks of one process on one GPU are
   refused, as by the real NCCL ("Duplicate GPU detected"). */
#include "mathlib.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int ranks, rank;
} Communicator;

typedef struct {
  char bytes[128];
} UniqueId;

enum { INVALID_USAGE = 5, MOST_MEMBERS = 1024 };

/* The ranks of this process, each with its group. */
static struct {
  UniqueId group;
  int device;
} members[MOST_MEMBERS];
static int member_count;
static pthread_mutex_t members_lock = PTHREAD_MUTEX_INITIALIZER;

static int current_device(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  int (*get_device)(int *) = driver ? (int (*)(int *))dlsym(driver, "cuCtxGetDevice") : NULL;
  int device = -1;
  return get_device && get_device(&device) == 0 ? device : -1;
}

static Status join(const UniqueId *group, int device) {
  Status status = 0;
  pthread_mutex_lock(&members_lock);
  for (int member = 0; member < member_count; member++) {
    if (device >= 0 && members[member].device == device &&
        memcmp(&members[member].group, group, sizeof *group) == 0) {
      status = INVALID_USAGE;
    }
  }
  if (status == 0 && member_count < MOST_MEMBERS) {
    members[member_count].group = *group;
    members[member_count++].device = device;
  }
  pthread_mutex_unlock(&members_lock);
  return status;
}

static Communicator *new_communicator(int ranks, int rank) {
  Communicator *communicator = malloc(sizeof *communicator);
  *communicator = (Communicator){ranks, rank};
  return communicator;
}

API Status ncclGetUniqueId(UniqueId *id) {
  static int groups;
  memset(id, 7, sizeof *id);
  int group = __atomic_add_fetch(&groups, 1, __ATOMIC_SEQ_CST);
  memcpy(id->bytes, &group, sizeof group);
  return 0;
}

API Status ncclCommInitRank(Communicator **communicator, int ranks, UniqueId id, int rank) {
  *communicator = NULL;
  Status status = join(&id, current_device());
  if (status == 0) {
    *communicator = new_communicator(ranks, rank);
  }
  return status;
}

API Status ncclCommInitRankConfig(Communicator **communicator, int ranks, UniqueId id, int rank,
                                  void *config) {
  return ncclCommInitRank(communicator, ranks, id, rank);
}

API Status ncclCommInitAll(Communicator **communicators, int ranks, const int *devices) {
  UniqueId id;
  ncclGetUniqueId(&id);
  for (int rank = 0; rank < ranks; rank++) {
    Status status = join(&id, devices ? devices[rank] : rank);
    if (status != 0) {
      return status;
    }
    communicators[rank] = new_communicator(ranks, rank);
  }
  return 0;
}

API Status ncclCommCount(Communicator *communicator, int *ranks) {
  *ranks = communicator->ranks;
  return 0;
}

API Status ncclCommUserRank(Communicator *communicator, int *rank) {
  *rank = communicator->rank;
  return 0;
}

API Status ncclCommGetAsyncError(Communicator *communicator, Status *error) {
  *error = 0;
  return 0;
}

API const char *ncclGetErrorString(Status status) {
  if (status == INVALID_USAGE) {
    return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  }
  return status ? "simulated error" : "no error";
}

API const char *ncclGetLastError(Communicator *communicator) {
  return "";
}

VERSION(ncclGetVersion, 22304)
SUCCEED(ncclGroupStart)
SUCCEED(ncclGroupEnd)
SUCCEED(ncclAllReduce)
SUCCEED(ncclReduce)
SUCCEED(ncclBroadcast)
SUCCEED(ncclBcast)
SUCCEED(ncclReduceScatter)
SUCCEED(ncclSend)
SUCCEED(ncclRecv)
SUCCEED(ncclCommDestroy)
SUCCEED(ncclCommAbort)
SUCCEED(ncclCommFinalize)
SUCCEED(ncclAlltoAll)
SUCCEED(ncclGather)
SUCCEED(ncclScatter)
SUCCEED(ncclCommDeregister)
SUCCEED(ncclCommWindowDeregister)
SUCCEED(ncclRedOpDestroy)
SUCCEED(ncclGroupSimulateEnd)

API Status ncclCommRegister(Communicator *communicator, void *buffer, size_t bytes, void **registration) {
  *registration = buffer;
  return 0;
}

API Status ncclCommSplit(Communicator *communicator, int colour, int key, Communicator **part, void *config) {
  *part = new_communicator(communicator->ranks, communicator->rank);
  return 0;
}

static size_t element_bytes(int type) {
  enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 };
  switch (type) {
    case INT32:
    case UINT32:
    case FLOAT32: return 4;
    case INT64:
    case UINT64:
    case FLOAT64: return 8;
    case FLOAT16:
    case BFLOAT16: return 2;
    default: return 1;
  }
}

/* Act as if every rank sent the same data: PyTorch compares the models of the ranks before training. */
API Status ncclAllGather(const char *own, char *all, size_t count, int type, Communicator *communicator,
                         Stream *stream) {
  size_t bytes = count * element_bytes(type);
  for (int rank = 0; rank < communicator->ranks; rank++) {
    memmove(all + rank * bytes, own, bytes);
  }
  return 0;
}
