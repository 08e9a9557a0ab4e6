/* NCCL: every collective succeeds at once, and nothing comes from another rank. */
#include "mathlib.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  int ranks, rank;
} Communicator;

typedef struct {
  char bytes[128];
} UniqueId;

static Communicator *new_communicator(int ranks, int rank) {
  Communicator *communicator = malloc(sizeof *communicator);
  *communicator = (Communicator){ranks, rank};
  return communicator;
}

API Status ncclGetUniqueId(UniqueId *id) {
  memset(id, 7, sizeof *id);
  return 0;
}

API Status ncclCommInitRank(Communicator **communicator, int ranks, UniqueId id, int rank) {
  *communicator = new_communicator(ranks, rank);
  return 0;
}

API Status ncclCommInitRankConfig(Communicator **communicator, int ranks, UniqueId id, int rank,
                                  void *config) {
  return ncclCommInitRank(communicator, ranks, id, rank);
}

API Status ncclCommInitAll(Communicator **communicators, int ranks, const int *devices) {
  for (int rank = 0; rank < ranks; rank++) {
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

/* As if every rank sent the same: PyTorch compares what it gathers about the ranks' models before it trains one. */
API Status ncclAllGather(const char *own, char *all, size_t count, int type, Communicator *communicator,
                         Stream *stream) {
  size_t bytes = count * element_bytes(type);
  for (int rank = 0; rank < communicator->ranks; rank++) {
    memmove(all + rank * bytes, own, bytes);
  }
  return 0;
}
