/* NCCL: every collective succeeds at once and moves nothing. */
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
SUCCEED(ncclAllGather)
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
