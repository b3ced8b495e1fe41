// C entry points: persistent parameters (DESIGN section 7), which this version declares and does not offer yet.
#include "api/handles.h"

using namespace ulysses;

namespace {
ulyssesResult_t absent() {
  return guarded([] { return Status(ulyssesNotSupported, "persistent parameters are not part of this version"); });
}
}  // namespace

extern "C" {

ulyssesResult_t ulyssesParamCommCreate(ulyssesParamComm_t*, ulyssesComm_t, const ulyssesParamConfig_t*) { return absent(); }
ulyssesResult_t ulyssesParamGroupAdd(ulyssesParamComm_t, int, const ulyssesParamDesc_t[], int*) { return absent(); }
ulyssesResult_t ulyssesParamCommit(ulyssesParamComm_t) { return absent(); }
ulyssesResult_t ulyssesParamAcquire(ulyssesParamComm_t, int, void*[], ulyssesStream_t) { return absent(); }
ulyssesResult_t ulyssesParamRelease(ulyssesParamComm_t, int, ulyssesStream_t) { return absent(); }
ulyssesResult_t ulyssesParamPrefetch(ulyssesParamComm_t, int, ulyssesStream_t) { return absent(); }
ulyssesResult_t ulyssesParamPublish(ulyssesParamComm_t, int, ulyssesStream_t) { return absent(); }
ulyssesResult_t ulyssesParamReshard(ulyssesParamComm_t, int, ulyssesStream_t) { return absent(); }
ulyssesResult_t ulyssesParamSetBudget(ulyssesParamComm_t, size_t) { return absent(); }
ulyssesResult_t ulyssesParamGetStats(ulyssesParamComm_t, ulyssesParamStats_t*) { return absent(); }
ulyssesResult_t ulyssesParamCommDestroy(ulyssesParamComm_t) { return absent(); }

}  // extern "C"
