#ifdef ULYSSES_HAVE_CUDA
// Device memory as windows that NCCL registers. It has a communicator of its own for them, which sends nothing: the one
// of the fallback may be aborted at any time, and the windows with it, while kernels write them.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/cuda_support.h"
#include "base/format.h"
#include "base/log.h"
#include "base/test_hooks.h"
#include "bootstrap/control_page.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"
#include "topology/nccl_library.h"
#include "window/arena.h"
#include "window/choice.h"
#include "window/ipc.h"
#include "window/provider.h"

namespace ulysses {
namespace {

constexpr int kPatienceMs = 60000;  // with NCCL, within a call's own deadline

bool endsCommunicator(const Status& status) {
  return status.code() == ulyssesTimeout || status.code() == ulyssesRemoteError;
}

// NCCL's communicator for windows. What is collective in NCCL waits for ranks that failed before they came, for ever:
// so it does not block here, and a rank that fails tells the others by the control page.
class NcclSession {
 public:
  NcclSession(const NcclLibrary& nccl, int device, ControlPage& page, ControlChannel& channel)
      : nccl_(nccl), device_(device), page_(page), channel_(channel) {}

  // Local, also where peers have left or an operation of NCCL's is stuck.
  ~NcclSession() {
    const DeviceGuard guard(device_);
    if (comm_ != nullptr) (void)nccl_.ncclCommAbort(comm_);
    for (void* memory : litter_) (void)nccl_.ncclMemFree(memory);
    (void)cudaGetLastError();
  }

  // Collective. Finds out too whether NCCL calls all ranks one LSA team.
  Status connect(Deadline deadline) {
    const DeviceGuard guard(device_);
    NcclLibrary::UniqueId mine{};
    Status status = hooks::injectedFailure(hooks::Stage::NcclId);
    if (status.ok()) status = guard.status();
    if (status.ok() && channel_.rank() == 0) status = check(nccl_.ncclGetUniqueId(&mine), "ncclGetUniqueId");
    ULYSSES_TRY(agreeStage(channel_, status, deadline));
    std::vector<NcclLibrary::UniqueId> ids;
    ULYSSES_TRY(gatherValues(mine, ids, channel_, deadline));
    ULYSSES_TRY(together("ncclCommInitRankConfig", hooks::Stage::NcclComm, deadline, [&] {
      NcclLibrary::Config config;
      config.blocking = 0;
      return nccl_.ncclCommInitRankConfig(&comm_, channel_.nranks(), ids[0], channel_.rank(), &config);
    }));
    std::vector<NcclLibrary::Team> teams;
    ULYSSES_TRY(gatherValues(nccl_.ncclTeamLsa(comm_), teams, channel_, deadline));
    if (const std::string reason = whyNotOneTeam(teams); !reason.empty()) return Status(ulyssesNotSupported, reason);
    ULYSSES_LOG(Info, device_, "rank {} of {}: windows by NCCL {}, whose LSA team has all ranks", channel_.rank(),
                channel_.nranks(), ncclVersionText(nccl_.version));
    return {};
  }

  // `bytes`: wanted, and then what there is. That may be 512 MB for a few, where NCCL could multicast.
  Status allocate(size_t* bytes, void** memory) const {
    ULYSSES_TRY(check(nccl_.ncclMemAlloc(memory, *bytes), "ncclMemAlloc", ulyssesOutOfMemory));
    ULYSSES_ASSIGN(*bytes, allocationBytes(*memory));
    return {};
  }

  // Collective; `memory` has `bytes` on all ranks. Once it has failed, nothing more can be registered.
  Status enroll(void* memory, size_t bytes, NcclLibrary::Window* window, Deadline deadline) {
    ULYSSES_TRY(together("ncclCommWindowRegister", hooks::Stage::NcclRegister, deadline,
                         [&] { return nccl_.ncclCommWindowRegister(comm_, memory, bytes, &registered_, 0); }));
    *window = std::exchange(registered_, nullptr);
    return {};
  }

  Status address(NcclLibrary::Window window, int rank, void** peer) const {
    // NCCL says nothing where it has registered nothing.
    if (window == nullptr) return Status(ulyssesNotSupported, "NCCL registers no symmetric memory here");
    ULYSSES_TRY(check(nccl_.ncclGetLsaDevicePointer(window, 0, rank, peer), "ncclGetLsaDevicePointer"));
    if (*peer != nullptr) return {};
    return Status(ulyssesNotSupported, formatText("NCCL maps no window of rank {} here", rank));
  }

  // Local, but in one order on all ranks: what is registered next lies where this was.
  void giveBack(void* memory, NcclLibrary::Window window) {
    const DeviceGuard guard(device_);
    if (broken_) {
      if (memory != nullptr) litter_.push_back(memory);
      return;
    }
    if (window != nullptr) (void)settled(nccl_.ncclCommWindowDeregister(comm_, window), Deadline::afterMs(kPatienceMs));
    if (memory != nullptr) (void)nccl_.ncclMemFree(memory);
    (void)cudaGetLastError();
  }

 private:
  Status check(NcclLibrary::Result result, const char* what, ulyssesResult_t code = ulyssesSystemError) const {
    if (result == 0) return {};
    (void)cudaGetLastError();
    return Status(code, formatText("{}: {}", what, nccl_.textOf(result, comm_)));
  }

  // Collective: one operation of NCCL's on all ranks, and its agreed outcome.
  template <class Call>
  Status together(const char* what, hooks::Stage stage, Deadline deadline, const Call& call) {
    ++step_;
    Status status = hooks::injectedFailure(stage);
    if (status.ok()) {
      const int left = deadline.remainingMs();
      const NcclLibrary::Result result =
          settled(call(), Deadline::afterMs(left < 0 ? kPatienceMs : std::min(left / 2, kPatienceMs)));
      // A rank whose peer has failed leaves the word to that peer.
      if (result != NcclLibrary::kInProgress)
        status = check(result, what);
      else if (failedElsewhere() == 0)
        status = Status(ulyssesSystemError, formatText("{} was not over in time", what));
    }
    if (!status.ok()) page_.rank(channel_.rank()).ncclFailed.store(step_, std::memory_order_release);
    status = agreeStage(channel_, status, deadline);
    broken_ = broken_ || !status.ok();
    return status;
  }

  // kInProgress where it will not be over.
  NcclLibrary::Result settled(NcclLibrary::Result result, Deadline deadline) const {
    while (result == NcclLibrary::kInProgress && !deadline.passed() && failedElsewhere() == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (const NcclLibrary::Result asked = nccl_.ncclCommGetAsyncError(comm_, &result); asked != 0) return asked;
    }
    return result;
  }

  // Rank + 1 of one that has failed in this operation, or has died.
  int failedElsewhere() const {
    for (int r = 0; r < channel_.nranks(); ++r)
      if (r != channel_.rank() &&
          (page_.rank(r).ncclFailed.load(std::memory_order_acquire) == step_ || channel_.dead(r)))
        return r + 1;
    return 0;
  }

  const NcclLibrary nccl_;
  const int device_;
  ControlPage& page_;
  ControlChannel& channel_;
  ncclComm* comm_ = nullptr;
  uint32_t step_ = 0;
  bool broken_ = false;                       // an operation of NCCL's may still be going on
  NcclLibrary::Window registered_ = nullptr;  // where it writes
  std::vector<void*> litter_;                 // memory that it may use
};

// Registered memory, of one size on all ranks, that windows are parts of.
struct Slab {
  explicit Slab(std::shared_ptr<NcclSession> of) : session(std::move(of)) {}
  ~Slab() { session->giveBack(memory, registered); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  const std::shared_ptr<NcclSession> session;
  void* memory = nullptr;
  size_t bytes = 0;
  NcclLibrary::Window registered = nullptr;
  std::vector<std::byte*> bases;  // of all ranks; this one's own where it was allocated, which NCCL has mapped twice
  std::optional<Arena> arena;
};

// A window's part of it.
class Room {
 public:
  Room(std::shared_ptr<Slab> slab, size_t offset) : slab_(std::move(slab)), offset_(offset) {}
  ~Room() { slab_->arena->giveBack(offset_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  std::byte* base(int rank) const { return slab_->bases[static_cast<size_t>(rank)] + offset_; }

 private:
  const std::shared_ptr<Slab> slab_;
  const size_t offset_;
};

class NcclProvider final : public WindowProvider {
 public:
  NcclProvider(std::shared_ptr<NcclSession> session, int device)
      : session_(std::move(session)), device_(device), ipc_(makeDeviceProvider(device)) {}

  const char* name() const override { return session_ ? "nccl" : ipc_->name(); }
  bool unmapsAnytime() const override { return false; }
  bool symmetric() const override { return session_ != nullptr; }

  Status allocate(size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline) override {
    if (session_ && bytes > 0) {
      Status unable;
      const Status made = byNccl(bytes, channel, parts, deadline, &unable);
      if (unable.ok()) return made;
      // NCCL may want more memory than there is where CUDA does not.
      const bool forGood = unable.code() != ulyssesOutOfMemory;
      ULYSSES_LOG(Info, device_, "rank {} of {}: {} by NCCL: {}", channel.rank(), channel.nranks(),
                  forGood ? "no more windows" : "no window", unable.message());
      if (forGood) session_.reset();
    }
    return ipc_->allocate(bytes, channel, parts, deadline);
  }

  Status adopts() const override { return ipc_->adopts(); }
  Status adopt(void* ptr, size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts,
               Deadline deadline) override {
    return ipc_->adopt(ptr, bytes, channel, parts, deadline);
  }

 private:
  // Collective; `bytes` is the same on all ranks. `unable`: agreed, why NCCL gives no window, nor any more unless it is
  // ulyssesOutOfMemory.
  Status byNccl(size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline,
                Status* unable) {
    parts.clear();
    const DeviceGuard guard(device_);
    std::shared_ptr<Slab> slab;
    std::shared_ptr<Room> room = roomFor(bytes);
    // Undone on all ranks before any goes on: unmapping may wait for kernels, and those of the fallback for all ranks.
    const auto undone = [&](Status failed) {
      room.reset();
      slab.reset();
      (void)agreeStage(channel, {}, deadline);
      return failed;
    };
    Status status = hooks::injectedFailure(hooks::Stage::Allocate);
    if (status.ok()) status = guard.status();
    if (!room) {
      status = agreeStage(channel, status, deadline);
      if (!status.ok()) return undone(std::move(status));
      slab = std::make_shared<Slab>(session_);
      slab->bytes = bytes;
      status = agreeStage(channel, session_->allocate(&slab->bytes, &slab->memory), deadline);
      if (status.ok()) status = enroll(*slab, channel, deadline);
      if (!status.ok()) {
        if (!endsCommunicator(status)) *unable = status;
        return undone(std::move(status));
      }
      slabs_.push_back(slab);
      room = roomFor(bytes);
    }
    // New memory holds zeros, as host windows do: flags rely on it. Nobody else uses it, on any rank.
    if (status.ok()) status = clearNow(room->base(channel.rank()), bytes);
    if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Open);
    status = agreeStage(channel, status, deadline);
    if (!status.ok()) return undone(std::move(status));
    for (int r = 0; r < channel.nranks(); ++r) parts.push_back({room->base(r), bytes, room});
    return {};
  }

  // The same on all ranks: in the first slab that has it.
  std::shared_ptr<Room> roomFor(size_t bytes) {
    std::erase_if(slabs_, [](const std::weak_ptr<Slab>& slab) { return slab.expired(); });
    for (const std::weak_ptr<Slab>& weak : slabs_) {
      std::shared_ptr<Slab> slab = weak.lock();
      if (const std::optional<size_t> offset = slab->arena->take(bytes))
        return std::make_shared<Room>(std::move(slab), *offset);
    }
    return nullptr;
  }

  // Collective; the outcome is agreed.
  Status enroll(Slab& slab, ControlChannel& channel, Deadline deadline) const {
    std::vector<uint64_t> sizes;
    ULYSSES_TRY(gatherValues<uint64_t>(slab.bytes, sizes, channel, deadline));
    for (size_t r = 1; r < sizes.size(); ++r)
      if (sizes[r] != sizes[0])
        return Status(ulyssesNotSupported,
                      formatText("NCCL allocates {} bytes on rank 0 and {} on rank {}", sizes[0], sizes[r], r));
    ULYSSES_TRY(session_->enroll(slab.memory, slab.bytes, &slab.registered, deadline));
    ULYSSES_TRY(agreeStage(channel, openAll(slab, channel), deadline));
    slab.arena.emplace(slab.bytes);
    return {};
  }
  Status openAll(Slab& slab, const ControlChannel& channel) const {
    ULYSSES_TRY(hooks::injectedFailure(hooks::Stage::NcclAddress));
    for (int r = 0; r < channel.nranks(); ++r) {
      void* base = nullptr;
      ULYSSES_TRY(session_->address(slab.registered, r, &base));
      slab.bases.push_back(static_cast<std::byte*>(r == channel.rank() ? slab.memory : base));
    }
    return {};
  }

  std::shared_ptr<NcclSession> session_;  // null once it has failed: its windows keep it
  const int device_;
  const std::unique_ptr<WindowProvider> ipc_;
  std::vector<std::weak_ptr<Slab>> slabs_;  // as old as they come, on all ranks
};

}  // namespace

Result<std::unique_ptr<WindowProvider>> makeNcclProvider(const NcclLibrary& nccl, int device, ControlPage& page,
                                                         ControlChannel& channel, Deadline deadline) {
  auto session = std::make_shared<NcclSession>(nccl, device, page, channel);
  const Status connected = session->connect(deadline);
  if (!connected.ok()) {
    session.reset();
    // As in allocate(): what NCCL frees may wait for the device.
    if (!endsCommunicator(connected)) ULYSSES_TRY(agreeStage(channel, {}, deadline));
    return connected;
  }
  return std::unique_ptr<WindowProvider>(std::make_unique<NcclProvider>(std::move(session), device));
}

}  // namespace ulysses
#endif
