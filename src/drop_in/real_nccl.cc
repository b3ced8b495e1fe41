#include "drop_in/real_nccl.h"

#include "topology/library.h"

namespace ulysses::drop_in {

const RealNccl& realNccl() {
  static const RealNccl real = [] {
    RealNccl found;
    // By its name and not as the next in the order of symbols: PyTorch's copy is out of sight there.
    void* library = openLibrary({"libnccl.so.2"});
    if (library == nullptr) return found;
    lookUp(library, "ncclCommInitRank", found.commInitRank);
    lookUp(library, "ncclCommInitRankConfig", found.commInitRankConfig);
    lookUp(library, "ncclCommInitRankScalable", found.commInitRankScalable);
    lookUp(library, "ncclCommInitAll", found.commInitAll);
    lookUp(library, "ncclCommSplit", found.commSplit);
    lookUp(library, "ncclCommShrink", found.commShrink);
    lookUp(library, "ncclCommRevoke", found.commRevoke);
    lookUp(library, "ncclCommFinalize", found.commFinalize);
    lookUp(library, "ncclCommDestroy", found.commDestroy);
    lookUp(library, "ncclCommAbort", found.commAbort);
    lookUp(library, "ncclCommGetAsyncError", found.commGetAsyncError);
    lookUp(library, "ncclAllGather", found.allGather);
    lookUp(library, "ncclAlltoAll", found.alltoAll);
    lookUp(library, "ncclSend", found.send);
    lookUp(library, "ncclRecv", found.recv);
    lookUp(library, "ncclGroupStart", found.groupStart);
    lookUp(library, "ncclGroupEnd", found.groupEnd);
    lookUp(library, "ncclGroupSimulateEnd", found.groupSimulateEnd);
    lookUp(library, "ncclCommCount", found.commCount);
    lookUp(library, "ncclCommUserRank", found.commUserRank);
    return found;
  }();
  return real;
}

}  // namespace ulysses::drop_in
