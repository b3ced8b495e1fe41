// The one door through which libulysses_mpi hands its transport to the core: versioned, undocumented, C.
#pragma once

#include <ulysses/ulysses.h>

#include "transport/transport.h"

extern "C" {

// Functions of the fallback; `context` is theirs. Both libraries are of one version: checked by `version`.
struct ulyssesInternalTransport {
  int version;  // ULYSSES_VERSION_CODE
  const char* name;
  void* context;
  // Moves one agreed transfer; collective. 0 on success, else it has written a text of at most `textBytes`.
  int (*exchange)(void* context, const ulysses::Transfer* transfer, char* text, size_t textBytes);
  void (*release)(void* context);  // once, with the communicator
  // Why there is no transport after all (context is NULL then), for the core to report; else ulyssesSuccess, NULL.
  ulyssesResult_t refusalCode;
  const char* refusal;
};

// As ulyssesCommInitOob, with a fallback. Takes over `transport`, also on failure.
ULYSSES_API ulyssesResult_t ulyssesInternalTransport_v1(ulyssesComm_t* comm, const ulyssesOob_t* oob,
                                                        const ulyssesConfig_t* config,
                                                        const ulyssesInternalTransport* transport);
}
