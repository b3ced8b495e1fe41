#ifdef ULYSSES_HAVE_CUDA
// Device memory as windows that NCCL registers. It has a communicator of its own for them, which sends nothing: the one
// of the fallback may be aborted at any time, and the windows with it, while kernels write them.
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/checked.h"
#include "base/cuda_support.h"
#include "base/format.h"
#include "base/log.h"
#include "base/test_hooks.h"
#include "bootstrap/control_page.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"
#include "topology/nccl_library.h"
#include "window/choice.h"
#include "window/provider.h"

namespace ulysses {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;  // NCCL maps as much on every rank as on this one
constexpr int kPatienceMs = 60000;                // with NCCL, within a call's own deadline

Status endedBy(const Status& status) {
  return status.code() == ulyssesTimeout || status.code() == ulyssesRemoteError ? status : Status();
}

// NCCL's communicator for windows. What is collective in NCCL waits for ranks that failed before they came, for ever: so
// it does not block here, and a rank that fails tells the others by the control page.
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
    NcclLibrary::UniqueId mine{};
    Status status = hooks::injectedFailure(hooks::Stage::NcclId);
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

  Status allocate(size_t bytes, void** memory) const {
    ULYSSES_TRY(check(nccl_.ncclMemAlloc(memory, bytes), "ncclMemAlloc", ulyssesOutOfMemory));
    return clearNow(*memory, bytes);
  }

  // Collective; `memory` has `bytes` on all ranks. `window` lives as long as this. Once it has failed, nothing more can
  // be registered.
  Status enroll(void* memory, size_t bytes, NcclLibrary::Window* window, Deadline deadline) {
    return together("ncclCommWindowRegister", hooks::Stage::NcclRegister, deadline,
                    [&] { return nccl_.ncclCommWindowRegister(comm_, memory, bytes, window, 0); });
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
  bool broken_ = false;        // an operation of NCCL's may still be going on
  std::vector<void*> litter_;  // memory that it may use
};

// Memory of this rank and, once registered, the peers' as mapped here.
struct NcclWindow {
  explicit NcclWindow(std::shared_ptr<NcclSession> of) : session(std::move(of)) {}
  ~NcclWindow() { session->giveBack(memory, window); }
  NcclWindow(const NcclWindow&) = delete;
  NcclWindow& operator=(const NcclWindow&) = delete;

  const std::shared_ptr<NcclSession> session;
  void* memory = nullptr;
  NcclLibrary::Window window = nullptr;
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
      ULYSSES_LOG(Info, device_, "rank {} of {}: no more windows by NCCL: {}", channel.rank(), channel.nranks(),
                  unable.message());
      session_.reset();
    }
    return ipc_->allocate(bytes, channel, parts, deadline);
  }

  Status adopts() const override { return ipc_->adopts(); }
  Status adopt(void* ptr, size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline) override {
    return ipc_->adopt(ptr, bytes, channel, parts, deadline);
  }

 private:
  // Collective; `bytes` is the same on all ranks. `unable`: agreed, why NCCL gives no window at all.
  Status byNccl(size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline, Status* unable) {
    parts.clear();
    const DeviceGuard guard(device_);
    auto window = std::make_shared<NcclWindow>(session_);
    std::vector<WindowPart> opened;
    // Undone on all ranks before any goes on: unmapping may wait for kernels, and those of the fallback for all ranks.
    const auto undone = [&](Status failed) {
      opened.clear();
      window.reset();
      (void)agreeStage(channel, {}, deadline);
      return failed;
    };
    Status status = hooks::injectedFailure(hooks::Stage::Allocate);
    if (status.ok()) status = guard.status();
    if (status.ok() && bytes > SIZE_MAX - kGranularity) status = Status(ulyssesOutOfMemory, "the size does not fit 64 bits");
    const size_t reserved = status.ok() ? alignUp(bytes, kGranularity) : 0;
    if (status.ok()) status = session_->allocate(reserved, &window->memory);
    status = agreeStage(channel, status, deadline);
    if (!status.ok()) return undone(std::move(status));

    status = session_->enroll(window->memory, reserved, &window->window, deadline);
    if (status.ok()) status = agreeStage(channel, openAll(channel, window, bytes, opened), deadline);
    if (!status.ok()) {
      if (endedBy(status).ok()) *unable = status;
      return undone(std::move(status));
    }
    status = agreeStage(channel, hooks::injectedFailure(hooks::Stage::Open), deadline);
    if (!status.ok()) return undone(std::move(status));
    parts = std::move(opened);
    return {};
  }

  // This rank's own is where it was allocated: NCCL has mapped it a second time for the team.
  Status openAll(ControlChannel& channel, const std::shared_ptr<NcclWindow>& window, size_t bytes,
                 std::vector<WindowPart>& parts) const {
    ULYSSES_TRY(hooks::injectedFailure(hooks::Stage::NcclAddress));
    for (int r = 0; r < channel.nranks(); ++r) {
      void* base = nullptr;
      ULYSSES_TRY(session_->address(window->window, r, &base));
      parts.push_back({static_cast<std::byte*>(r == channel.rank() ? window->memory : base), bytes, window});
    }
    return {};
  }

  std::shared_ptr<NcclSession> session_;  // null once it has failed: its windows keep it
  const int device_;
  const std::unique_ptr<WindowProvider> ipc_;
};

}  // namespace

Result<std::unique_ptr<WindowProvider>> makeNcclProvider(const NcclLibrary& nccl, int device, ControlPage& page,
                                                         ControlChannel& channel, Deadline deadline) {
  auto session = std::make_shared<NcclSession>(nccl, device, page, channel);
  const Status connected = session->connect(deadline);
  if (!connected.ok()) {
    session.reset();
    // As in allocate(): what NCCL frees may wait for the device.
    if (endedBy(connected).ok()) ULYSSES_TRY(agreeStage(channel, {}, deadline));
    return connected;
  }
  return std::unique_ptr<WindowProvider>(std::make_unique<NcclProvider>(std::move(session), device));
}

}  // namespace ulysses
#endif
