#include "device/nccl.h"

#include <algorithm>
#include <optional>

#include "topology/library.h"

namespace ulysses::perf {

Result<std::unique_ptr<Nccl>> Nccl::open(Rank& rank, Device& device, int ranksPerDevice, std::string* why) {
  const std::optional<NcclLibrary> library = loadNccl();
  *why = ncclRefusal(rank.allgather(ncclFacts(library)), ranksPerDevice);
  if (!why->empty()) return std::unique_ptr<Nccl>();
  std::unique_ptr<Nccl> nccl(new Nccl(*library, device, rank.count()));
  NcclLibrary::UniqueId id{};
  ULYSSES_TRY(rank.agree(rank.first() ? nccl->status(library->ncclGetUniqueId(&id), "ncclGetUniqueId") : Status()));
  id = rank.allgather(id)[0];
  ULYSSES_TRY(rank.agree(
      nccl->status(library->ncclCommInitRank(&nccl->comm_, rank.count(), id, rank.id()), "ncclCommInitRank")));
  return nccl;
}

std::unique_ptr<NcclWindow> Nccl::window(Rank& rank, size_t bytes) {
  constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
  using Handle = struct ncclWindow_vidmem*;
  using Result = NcclLibrary::Result;
  Result (*allocate)(void**, size_t) = nullptr;
  Result (*release)(void*) = nullptr;
  Result (*enter)(ncclComm*, void*, size_t, Handle*, int) = nullptr;
  Result (*leave)(ncclComm*, Handle) = nullptr;
  void* const loaded = openLibrary({"libnccl.so.2"});
  lookUp(loaded, "ncclMemAlloc", allocate);
  lookUp(loaded, "ncclMemFree", release);
  lookUp(loaded, "ncclCommWindowRegister", enter);
  lookUp(loaded, "ncclCommWindowDeregister", leave);
  const auto everywhere = [&](bool good) {
    const auto all = rank.allgather(int{good});
    return std::find(all.begin(), all.end(), 0) == all.end();
  };
  void* data = nullptr;
  Handle handle = nullptr;
  const bool known = allocate && release && enter && leave;
  if (!everywhere(known && allocate(&data, bytes) == 0)) {
    if (data != nullptr) release(data);
    return nullptr;
  }
  // What is registered may be declined without an error: no handle then.
  if (!everywhere(enter(comm_, data, bytes, &handle, kSymmetric) == 0 && handle != nullptr)) {
    if (handle != nullptr) leave(comm_, handle);
    release(data);
    return nullptr;
  }
  return std::make_unique<NcclWindow>(static_cast<std::byte*>(data), [=, comm = comm_] {
    leave(comm, handle);
    release(data);
  });
}

Nccl::~Nccl() {
  if (comm_ != nullptr) (void)library_.ncclCommDestroy(comm_);
}

Status Nccl::status(NcclLibrary::Result result, const char* what) const {
  return result == 0 ? Status() : Status(ulyssesSystemError, std::string(what) + ": " + library_.textOf(result, comm_));
}

Status Nccl::allGather(const std::byte* in, std::byte* out, size_t bytes) {
  return status(library_.ncclAllGather(in, out, bytes, NcclLibrary::kBytes, comm_, device_.stream()), "ncclAllGather");
}

Status Nccl::allToAll(const std::byte* in, std::byte* out, size_t bytes, size_t planes) {
  ULYSSES_TRY(status(library_.ncclGroupStart(), "ncclGroupStart"));
  Status inside;
  const size_t planeBytes = bytes * static_cast<size_t>(nranks_);
  for (size_t p = 0; p < planes && inside.ok(); ++p) {
    const std::byte* from = in + p * planeBytes;
    std::byte* to = out + p * planeBytes;
    if (library_.ncclAlltoAll != nullptr) {
      inside =
          status(library_.ncclAlltoAll(from, to, bytes, NcclLibrary::kBytes, comm_, device_.stream()), "ncclAlltoAll");
      continue;
    }
    for (int r = 0; r < nranks_ && inside.ok(); ++r) {
      const size_t at = bytes * static_cast<size_t>(r);
      inside = status(library_.ncclSend(from + at, bytes, NcclLibrary::kBytes, r, comm_, device_.stream()), "ncclSend");
      if (inside.ok())
        inside = status(library_.ncclRecv(to + at, bytes, NcclLibrary::kBytes, r, comm_, device_.stream()), "ncclRecv");
    }
  }
  const Status ended = status(library_.ncclGroupEnd(), "ncclGroupEnd");
  return inside.ok() ? ended : inside;
}

}  // namespace ulysses::perf
