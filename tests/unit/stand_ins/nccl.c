/* Looks like an NCCL 2.23 and does nothing: what loading it must and must not find. */
#include <string.h>

#define STAND_IN(name, arguments) \
  int name arguments { return 5; }

int ncclGetVersion(int* version) {
  *version = 22303;
  return 0;
}
int ncclGetUniqueId(void* id) {
  memset(id, 0, 128);
  return 0;
}
const char* ncclGetErrorString(int result) {
  (void)result;
  return "stand-in error";
}
typedef struct {
  char internal[128];
} UniqueId;
STAND_IN(ncclCommInitRank, (void** comm, int nranks, UniqueId id, int rank))
STAND_IN(ncclCommDestroy, (void* comm))
STAND_IN(ncclCommAbort, (void* comm))
STAND_IN(ncclCommGetAsyncError, (void* comm, int* error))
STAND_IN(ncclCommCount, (const void* comm, int* count))
STAND_IN(ncclCommUserRank, (const void* comm, int* rank))
STAND_IN(ncclCommCuDevice, (const void* comm, int* device))
STAND_IN(ncclAllGather, (const void* send, void* recv, size_t count, int type, void* comm, void* stream))
#ifndef WITHOUT_SEND
STAND_IN(ncclSend, (const void* buffer, size_t count, int type, int peer, void* comm, void* stream))
#endif
STAND_IN(ncclRecv, (void* buffer, size_t count, int type, int peer, void* comm, void* stream))
STAND_IN(ncclGroupStart, (void))
STAND_IN(ncclGroupEnd, (void))
