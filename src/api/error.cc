// Result codes and the thread's last error.
#include "api/handles.h"

namespace ulysses {
namespace {
thread_local std::string lastError;
}

ulyssesResult_t report(const Status& status) {
  if (!status.ok()) lastError = status.message();
  return status.code();
}

}  // namespace ulysses

extern "C" {

const char* ulyssesGetLastError(void) {
  return ulysses::lastError.c_str();
}

const char* ulyssesGetErrorString(ulyssesResult_t result) {
  switch (result) {
    case ulyssesSuccess:
      return "no error";
    case ulyssesUnhandledCudaError:
      return "unhandled CUDA error";
    case ulyssesSystemError:
      return "system error";
    case ulyssesInternalError:
      return "internal error";
    case ulyssesInvalidArgument:
      return "invalid argument";
    case ulyssesInvalidUsage:
      return "invalid usage";
    case ulyssesRemoteError:
      return "remote error: another rank has failed, aborted or gone";
    case ulyssesInProgress:
      return "in progress";
    case ulyssesTimeout:
      return "timeout: a rank did not make the call in time";
    case ulyssesMismatch:
      return "mismatch: the ranks disagree on the call";
    case ulyssesOutOfMemory:
      return "out of memory, or the window cap is reached";
    case ulyssesNotSupported:
      return "not supported";
  }
  return "unknown result code";
}

ulyssesResult_t ulyssesGetVersion(int* version) {
  return ulysses::guarded([&]() -> ulysses::Status {
    if (version == nullptr) return {ulyssesInvalidArgument, "version is NULL"};
    *version = ULYSSES_VERSION_CODE;
    return {};
  });
}

}  // extern "C"
