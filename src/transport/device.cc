// The fused path on device memory: what the kernels need is set up here, collectively; launches are local and wait for
// nothing.
#ifdef ULYSSES_HAVE_CUDA
#include "transport/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "base/cuda_support.h"
#include "base/format.h"
#include "base/log.h"
#include "base/test_hooks.h"
#include "bootstrap/control_page.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"
#include "device/exchange.h"
#include "device/flags.h"
#include "device/work_table.h"
#include "plan/contract_hash.h"
#include "plan/engine_course.h"
#include "plan/launch_shape.h"
#include "transport/chain.h"
#include "transport/cta_account.h"
#include "transport/launch_events.h"
#include "transport/table_room.h"
#include "transport/watcher.h"

namespace ulysses {
namespace {

constexpr uint32_t kTableRows = 1024;                  // windows a communicator may have at once
constexpr size_t kSmallBytes = size_t{16} << 10;       // per pair
constexpr size_t kMostLineBytes = size_t{256} << 10;   // per pair
constexpr size_t kStagingsInCap = 8;                   // every plan has its own, beside the one of eager calls
constexpr size_t kRecordedStaging = size_t{16} << 20;  // of all recorded eager calls: it can't grow under their graphs

}  // namespace

class DeviceTransport::Prepared {
 public:
  // One way to launch it. The contract covers all that has to be equal on all ranks; it is never 0.
  struct Launch {
    LaunchShape shape;
    uint64_t contract = 0;
    std::unique_ptr<plan::EngineCourse> engines;  // null where they can't move its bytes
    bool needsSlots() const { return !shape.small && !shape.lines; }  // for plain outputs
  };
  Launch eager, recorded;
  Info info;  // of the eager launch
  std::shared_ptr<void> table;
  uint32_t blocks = 0;
  int operands = 0;
  std::vector<size_t> inExtent, outExtent;
  std::vector<const void*> bound;  // of a plan, by operand: the output it is bound to, or null
  std::shared_ptr<Chain> chain;    // for launches under capture
};

namespace {

class CudaTransport final : public DeviceTransport {
 public:
  explicit CudaTransport(const Setup& setup) : s_(setup) {}

  ~CudaTransport() override {
    watcher_.stop();
    const DeviceGuard guard(s_.device);
    if (host_ != nullptr && events_.outstanding()) waitOrAbort();
    if (host_ != nullptr) (void)cudaFreeHost(host_);
    giveBackCtas();
    (void)cudaGetLastError();
  }

  Status setUp(Deadline deadline) {
    const DeviceGuard guard(s_.device);
    // Stage 1: what is this rank's alone.
    int resident = 0;
    Status status = guard.status().ok() ? local(&resident) : guard.status();
    if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Kernels);
    ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
    struct Facts {
      uint32_t resident, engines;
    };
    const Facts mine{static_cast<uint32_t>(resident), static_cast<uint32_t>(s_.engines)};
    std::vector<Facts> all;
    ULYSSES_TRY(gatherValues(mine, all, *s_.channel, deadline));
    residentCtas_ = mine.resident;
    engines_ = s_.engines;
    for (const Facts& theirs : all) {
      residentCtas_ = std::min(residentCtas_, theirs.resident);
      engines_ = std::min(engines_, static_cast<plan::EngineUse>(theirs.engines));
    }
    if (s_.nranks > 1) {
      ULYSSES_ASSIGN(ledger_, CtaAccount::open(s_.gpus[static_cast<size_t>(s_.rank)], *s_.channel, deadline));
    }
    // Stage 2: flags.
    ULYSSES_ASSIGN(main_, makeChain(lineLimit(), deadline));
    watcher_.start(s_.device, [this] { return lookAround(); }, [this](const Status& trouble) { end(trouble); });
    return {};
  }

  Status prepare(std::span<const Work> works, Capture capture, std::vector<std::shared_ptr<Prepared>>* out,
                 Deadline deadline) override {
    const DeviceGuard guard(s_.device);
    // The policy first, then what it may have: CTAs and window bytes, which the ranks agree on.
    std::vector<plan::PolicyChoice> choices;
    uint32_t wanted = 1;
    for (const Work& work : works) {
      choices.push_back(choosePolicy(work.policy));
      const LaunchRoom all{ctaLimit(), s_.registrar->capBytes(), 0, chunkedLimit(), 0, kSmallBytes, lineLimit()};
      wanted = std::max(wanted, launchesOf(work.policy, choices.back(), work.schedule->largestPayload, all).eager.ctas);
    }
    LaunchRoom room;
    room.smallBytes = kSmallBytes;
    room.lineBytes = lineLimit();
    room.chunkedBytes = chunkedLimit();
    ULYSSES_TRY(agreeRoom(wanted, Share::Wanted, &room, deadline));
    // Recorded eager calls share one chain, whose staging is made once: graphs hold its address.
    const bool shared = capture == Capture::Shared, made = shared && recorded_ && recorded_->stagingBytes() != 0;
    room.recordedBytes =
        made ? recorded_->stagingBytes()
             : std::min({room.chunkedBytes, room.windowBytes / 2, shared ? kRecordedStaging : SIZE_MAX});
    // A plan's own chain has lines for what the plan sends, the shared one for all that may come.
    size_t lineBytes = shared ? lineLimit() : kSmallBytes;
    for (const Work& work : works)
      if (work.schedule->largestPayload <= lineLimit()) lineBytes = std::max(lineBytes, work.schedule->largestPayload);
    room.besidesBytes = made ? 0 : device::flagsBytes(s_.nranks, lineBytes) + room.recordedBytes;

    Status status = guard.status();
    if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Tables);
    size_t staging = 0, recordedStaging = 0;
    for (size_t i = 0; i < works.size(); ++i) {
      auto prepared = std::make_shared<Prepared>();
      shape(works[i], choices[i], room, prepared.get());
      if (status.ok()) status = upload(*works[i].schedule, *prepared);
      if (status.ok()) status = bind(works[i], *prepared);
      if (status.ok() && prepared->info.refusal.empty() && prepared->eager.needsSlots() &&
          prepared->eager.shape.tileBytes == 0)
        status = Status(ulyssesOutOfMemory,
                        formatText("{} bytes of window that may be used for staging (ULYSSES_STAGING, and "
                                   "what the window cap has left) leave no room for {} ranks",
                                   room.windowBytes, s_.nranks));
      staging = std::max(staging, prepared->eager.shape.stagingBytes);
      recordedStaging = std::max(recordedStaging, prepared->recorded.shape.stagingBytes);
      out->push_back(std::move(prepared));
    }
    ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
    ULYSSES_TRY(ensureStaging(*main_, staging, deadline));
    std::shared_ptr<Chain> chain = shared ? recorded_ : nullptr;
    if (!chain) {
      ULYSSES_ASSIGN(chain, makeChain(lineBytes, deadline));
      if (shared) recorded_ = chain;
    }
    if (shared && recordedStaging != 0) recordedStaging = room.recordedBytes;
    ULYSSES_TRY(ensureStaging(*chain, recordedStaging, deadline));
    for (size_t i = 0; i < works.size(); ++i) {
      (*out)[i]->chain = chain;
      ULYSSES_TRY(setEngineCourses(works[i], capture, *(*out)[i], deadline));
    }
    return {};
  }

  Status reserve(const plan::PolicyFacts& policy, size_t largestPayload, size_t works, Deadline deadline) override {
    const DeviceGuard guard(s_.device);
    const plan::PolicyChoice choice = choosePolicy(policy);
    const LaunchRoom all{ctaLimit(), s_.registrar->capBytes(), 0, chunkedLimit(), 0, kSmallBytes, lineLimit()};
    LaunchRoom room = all;
    ULYSSES_TRY(agreeRoom(launchesOf(policy, choice, largestPayload, all).eager.ctas, Share::Modest, &room, deadline));
    if (room.ctas == 0 || room.ctas > std::min(heldEager_, heldRecorded_))
      return Status(ulyssesNotSupported, "other communicators have the CTAs that the GPU holds together");
    room.recordedBytes = std::min({room.chunkedBytes, room.windowBytes / 2, kRecordedStaging});
    room.besidesBytes = device::flagsBytes(s_.nranks, lineLimit()) + room.recordedBytes;
    // What a payload stages does not only grow with it: tiles are rounded, and a small one has fewer CTAs.
    size_t eager = 0, recorded = 0;
    for (size_t payload = largestPayload; payload != 0; payload /= 2) {
      const Launches launches = launchesOf(policy, choice, payload, room);
      eager = std::max(eager, launches.eager.stagingBytes);
      recorded = std::max(recorded, launches.recorded.stagingBytes);
    }
    Status status = guard.status();
    if (status.ok()) status = tables_.reserve(works, s_.nranks);
    ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
    ULYSSES_TRY(ensureStaging(*main_, eager, deadline));
    ULYSSES_ASSIGN(recorded_, makeChain(lineLimit(), deadline));
    ULYSSES_TRY(ensureStaging(*recorded_, recorded, deadline));
    room.windowBytes = eager;
    room.besidesBytes = 0;
    room.recordedBytes = recorded;
    reserved_ = room;
    return {};
  }

  Result<std::shared_ptr<Prepared>> prepareAlone(const Work& work) override {
    const DeviceGuard guard(s_.device);
    ULYSSES_TRY(guard.status());
    if (!reserved_) return Status(ulyssesInternalError, "nothing has been reserved for work of one's own");
    auto prepared = std::make_shared<Prepared>();
    shape(work, choosePolicy(work.policy), *reserved_, prepared.get());
    for (const Prepared::Launch* launch : {&prepared->eager, &prepared->recorded})
      if (prepared->info.refusal.empty() && launch->needsSlots() && launch->shape.tileBytes == 0)
        prepared->info.refusal = "the window cap leaves no room for staging";
    ULYSSES_TRY(upload(*work.schedule, *prepared, &tables_));
    ULYSSES_TRY(bind(work, *prepared));
    prepared->chain = recorded_;
    return prepared;
  }

  Status launch(Prepared& p, bool valid, const void* const in[], void* const out[], ulyssesStream_t stream,
                std::span<const Contract* const> contracts) override {
    const LaunchGuard guard(s_.device);
    ULYSSES_TRY(guard.status());
    const bool recording = isCapturing(stream);
    Chain& chain = recording ? *p.chain : *main_;
    const Prepared::Launch& launch = recording ? p.recorded : p.eager;
    if (launch.shape.stagingBytes > chain.stagingBytes())  // the same on all ranks
      return Status(ulyssesOutOfMemory,
                    formatText("{} bytes of staging are needed; they were given up for more, which could "
                               "not be had",
                               launch.shape.stagingBytes));
    if (launch.engines && !contracts.empty()) launch.engines->follow(contracts);
    const plan::EngineCourse* engines =
        launch.engines && launch.engines->verdict().chosen ? launch.engines.get() : nullptr;

    device::Exchange x{};
    x.channel = chain.channel();
    x.table = static_cast<const device::WorkTable*>(p.table.get());
    x.blocks = p.blocks;
    x.operands = p.operands;
    x.ctas = launch.shape.ctas;
    // Where the limit leaves no room for slots, all outputs are in windows.
    x.tileBytes = launch.needsSlots() ? std::max<uint64_t>(launch.shape.tileBytes, device::kUnit) : 0;
    uint64_t number = 0;
    if (!recording) {
      ULYSSES_ASSIGN(number, events_.chain(stream));
    }
    Status refused = valid ? checkBound(p, out) : Status();
    valid = valid && refused.ok();
    bool plain = false;
    for (int i = 0; i < p.operands && valid; ++i) {
      const auto at = static_cast<size_t>(i);
      x.in[i] = in[i];
      x.out[i] = out[i];
      const Location l = s_.registrar->locate(out[i], p.outExtent[at]);
      x.location[i] = device::windowLocation(l.window, l.offset);
      plain = plain || l.plain();
      if (recording) continue;
      for (const uint32_t window : {l.window, s_.registrar->locate(in[i], p.inExtent[at]).window})
        if (window < kTableRows) lastUse_[window] = number;
    }
    if (valid && plain && engines == nullptr && launch.needsSlots() && launch.shape.tileBytes == 0) {
      refused =
          p.info.refusal.empty()
              ? Status(ulyssesInvalidUsage,
                       "the window cap leaves no room for staging of its own to what graphs record: "
                       "record exchanges into windows, or raise the cap")
              : Status(ulyssesNotSupported, formatText("not fused ({}), and this communicator has no fallback; outputs "
                                                       "in windows (ulyssesMemAlloc) need no staging",
                                                       p.info.refusal));
    }
    valid = valid && refused.ok();
    if (plain) std::fill_n(x.location, p.operands, device::kPlain);  // in all or in none
    lastPath_ = engines != nullptr ? "copy-engine" : plain ? "staged" : "direct";

    // A wrong call is launched all the same, as one that nobody may take part in: the peers find out on the device.
    const uint64_t contract = engines != nullptr ? engines->contract() : launch.contract;
    x.contract = valid ? contract : 0;
    if (engines != nullptr) {
      const auto base = [this](int rank, uint32_t window) { return s_.registrar->base(rank, window); };
      ULYSSES_TRY(chain.engine()->launch(x, contract, engines->steps(), base, stream));
    } else {
      const int error = launch.shape.small ? device::launchSmallExchange(x, stream) : device::launchExchange(x, stream);
      ULYSSES_TRY(cudaStatus(static_cast<cudaError_t>(error), "launch of the exchange"));
    }
    if (recording) return refused;
    launchedMs_.store(nowMs(), std::memory_order_relaxed);
    ULYSSES_TRY(events_.launched(number, stream));
    s_.agreement->page()->rank(s_.rank).launches.fetch_add(1, std::memory_order_release);
    return refused;
  }

  const char* lastPath() const override { return lastPath_; }

  Status publishWindow(uint32_t window, Deadline deadline) override {
    const DeviceGuard guard(s_.device);
    Status status = guard.status();
    if (status.ok() && window >= kTableRows)
      status = Status(ulyssesOutOfMemory, formatText("more than {} windows of device memory at once", kTableRows - 1));
    if (status.ok()) {
      device::WindowRow row{};
      for (int r = 0; r < s_.nranks; ++r) row.base[r] = reinterpret_cast<uint64_t>(s_.registrar->base(r, window));
      status = uploadNow(static_cast<device::WindowRow*>(windows_.get()) + window, &row, sizeof row);
    }
    if (window < kTableRows) lastUse_[window] = 0;
    return agreeStage(*s_.channel, status, deadline);
  }

  bool inUse(uint32_t window) override {
    const DeviceGuard guard(s_.device);
    return window < kTableRows && lastUse_[window] != 0 && !events_.over(lastUse_[window]);
  }

  Status takeError() override {
    if (ended_.load(std::memory_order_acquire)) {
      const std::lock_guard lock(stickyMutex_);
      return sticky_;
    }
    const auto* words = static_cast<volatile device::HostWords*>(host_);
    if (words->error != static_cast<uint32_t>(device::KernelError::Mismatch)) return {};
    const int rank = words->errorRank;
    static_cast<volatile device::HostWords*>(host_)->error = 0;
    return Status(ulyssesMismatch,
                  formatText("an earlier exchange was launched by rank {} with wrong arguments, or with "
                             "another contract than by the ranks before it: nothing was stored on any rank",
                             rank));
  }

  void abort() override {
    if (host_ != nullptr) static_cast<volatile device::HostWords*>(host_)->abort = 1;
  }

  void drain() override {
    const DeviceGuard guard(s_.device);
    (void)events_.wait();
  }

  const Info& infoOf(const Prepared& prepared) const override { return prepared.info; }

 private:
  Status local(int* resident) {
    ULYSSES_CUDA(static_cast<cudaError_t>(device::loadKernels()));
    ULYSSES_CUDA(static_cast<cudaError_t>(device::loadFlagKernels()));
    ULYSSES_CUDA(static_cast<cudaError_t>(device::residentCtas(resident)));
    void* words = nullptr;
    ULYSSES_CUDA(cudaHostAlloc(&words, sizeof(device::HostWords), cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(words, 0, sizeof(device::HostWords));
    host_ = static_cast<device::HostWords*>(words);
    void* mapped = nullptr;
    ULYSSES_CUDA(cudaHostGetDevicePointer(&mapped, words, 0));
    hostOnDevice_ = static_cast<device::HostWords*>(mapped);
    ULYSSES_ASSIGN(windows_, deviceBuffer(kTableRows * sizeof(device::WindowRow)));
    return events_.create();
  }

  // Collective.
  Result<std::shared_ptr<Chain>> makeChain(size_t lineBytes, Deadline deadline) {
    return Chain::make({s_.rank, s_.nranks, lineBytes, distinctGpus() && engines_ != plan::EngineUse::Off,
                        hostOnDevice_, static_cast<const device::WindowRow*>(windows_.get()), s_.channel, s_.registrar},
                       deadline);
  }
  // Collective. Every rank has launched all that came before.
  Status ensureStaging(Chain& chain, size_t bytes, Deadline deadline) {
    return chain.ensureStaging(
        bytes, [this] { return events_.wait(); }, deadline);
  }

  bool distinctGpus() const { return s_.ranksPerDevice == 1 || hooks::enginesOnSharedGpus(); }

  // Takes over what a plan is bound to on this rank.
  Status bind(const Work& work, Prepared& p) const {
    p.bound.assign(static_cast<size_t>(p.operands), nullptr);
    for (size_t i = 0; i < p.bound.size() && work.boundOut != nullptr; ++i) {
      p.bound[i] = work.boundOut[i];
      if (p.bound[i] != nullptr && p.outExtent[i] != 0 && s_.registrar->locate(p.bound[i], p.outExtent[i]).plain())
        return Status(ulyssesInvalidArgument, formatText("operand {}: boundOut is {}, where no window has {} bytes", i,
                                                         p.bound[i], p.outExtent[i]));
    }
    return {};
  }
  static Status checkBound(const Prepared& p, void* const out[]) {
    for (size_t i = 0; i < p.bound.size(); ++i)
      if (p.bound[i] != nullptr && out[i] != p.bound[i])
        return Status(
            ulyssesInvalidArgument,
            formatText("operand {}: the output is {}, and the plan is bound to {} (boundOut)", i, out[i], p.bound[i]));
    return {};
  }

  // Collective. An eager call's outputs are in its contracts; those of a plan are agreed on here.
  Status setEngineCourses(const Work& work, Capture capture, Prepared& p, Deadline deadline) {
    plan::EngineFacts facts = plan::engineFacts(*work.schedule, engines_, distinctGpus());
    if (!judgeEngine(facts).chosen) return {};
    const auto schedule = std::make_shared<const Schedule>(*work.schedule);
    for (Prepared::Launch* launch : {&p.eager, &p.recorded}) {
      facts.chunkBytes = launch->shape.tileBytes * launch->shape.ctas;  // in the staging that the kernels have
      launch->engines = std::make_unique<plan::EngineCourse>(schedule, facts, work.identity);
    }
    if (capture == Capture::Shared) return {};
    struct Places {
      Location of[device::kMaxOperands];
    } mine{};
    for (size_t i = 0; i < p.bound.size(); ++i)
      if (p.bound[i] != nullptr) mine.of[i] = s_.registrar->locate(p.bound[i], p.outExtent[i]);
    std::vector<Places> all;
    ULYSSES_TRY(gatherValues(mine, all, *s_.channel, deadline));
    std::vector<std::vector<Location>> outputs;
    for (const Places& theirs : all) outputs.emplace_back(theirs.of, theirs.of + p.operands);
    p.recorded.engines->bind(outputs);
    p.eager.engines->bind(std::move(outputs));
    const plan::EngineVerdict& verdict = p.eager.engines->verdict();
    p.info.reason = verdict.chosen ? verdict.reason : p.info.reason + "; " + verdict.reason;
    if (!verdict.chosen) return {};
    p.info.engines = true;
    p.info.tileBytes *= p.info.ctas;
    p.info.ctas = 1;
    return {};
  }

  // Collective. Takes CTAs out of the ledgers, all ranks or none.
  enum class Share { Wanted, Modest };
  Status agreeRoom(uint32_t wanted, Share kind, LaunchRoom* room, Deadline deadline) {
    struct Has {
      uint64_t windowBytes;
      uint32_t ctas, reserved;
    };
    constexpr int kTries = 4;  // another communicator on the GPU may take them between look and reservation
    CtaShare share;
    bool all = false;
    for (int i = 0; i < kTries && !all; ++i) {
      Bytes blob(sizeof(Has));
      std::vector<Bytes> blobs;
      const auto tell = [&](uint32_t ctas, bool reserved, Has* least) -> Status {
        const Has mine{s_.registrar->freeBytes() + main_->stagingBytes(), ctas, reserved};
        std::memcpy(blob.data(), &mine, sizeof mine);
        ULYSSES_TRY(s_.channel->allgather(blob, blobs, deadline));
        *least = mine;
        for (const Bytes& b : blobs) {
          Has theirs{};
          std::memcpy(&theirs, b.data(), std::min(b.size(), sizeof theirs));
          *least = {std::min(least->windowBytes, theirs.windowBytes), std::min(least->ctas, theirs.ctas),
                    std::min(least->reserved, theirs.reserved)};
        }
        return {};
      };
      Has least{};
      ULYSSES_TRY(tell(ledger_->available(residentCtas_) / static_cast<uint32_t>(s_.ranksPerDevice), false, &least));
      room->windowBytes = least.windowBytes;
      share = shareCtas(kind == Share::Modest ? std::min(wanted, modestShare(least.ctas)) : wanted, heldEager_,
                        heldRecorded_, least.ctas);
      const uint32_t more = share.moreEager + share.moreRecorded;
      if (more == 0) break;
      const bool mine = ledger_->reserve(more, residentCtas_);
      if (mine) noteCtas(more);
      (void)hooks::injectedFailure(hooks::Stage::Reserved);
      const Status told = tell(0, mine, &least);
      all = told.ok() && least.reserved != 0;
      if (mine && !all) {
        noteCtas(0);
        ledger_->giveBack(more);
      }
      ULYSSES_TRY(told);
      if (!all) share.moreEager = share.moreRecorded = 0;
    }
    heldEager_ += share.moreEager;
    heldRecorded_ += share.moreRecorded;
    room->ctas = share.ctas;
    if (kind == Share::Modest) return {};
    if (share.ctas > heldEager_ && !std::exchange(crowded_, true))
      ULYSSES_LOG(
          Warn, s_.device,
          "rank {} of {}: {} CTAs of a launch are not resident beside those of the other communicators "
          "on this GPU ({} fit): launch the exchanges of all of them in one order on all ranks, each behind the one "
          "before",
          s_.rank, s_.nranks, share.ctas, residentCtas_);
    if (share.ctas > heldRecorded_)
      ULYSSES_LOG(Info, s_.device,
                  "rank {} of {}: {} CTAs of what graphs record are not resident beside other calls: replay "
                  "graphs in one order with them",
                  s_.rank, s_.nranks, share.ctas);
    return {};
  }

  // Where the others find what this rank has in the ledgers, should it die: never more than is there.
  void noteCtas(uint32_t more) { s_.agreement->page()->rank(s_.rank).ctas.store(heldEager_ + heldRecorded_ + more); }
  // Also what ranks that have died can't give back themselves: whoever comes first does it.
  void giveBackCtas() {
    if (!ledger_) return;
    ControlPage& page = *s_.agreement->page();
    for (int r = 0; r < s_.nranks; ++r) {
      const bool died = s_.gpus[static_cast<size_t>(r)] == s_.gpus[static_cast<size_t>(s_.rank)] &&
                        s_.channel->lifeline(r) >= 0 && s_.channel->dead(r);
      if (r != s_.rank && !died) continue;
      if (const uint32_t ctas = page.rank(r).ctas.exchange(0); ctas != 0) ledger_->giveBack(ctas);
    }
  }

  uint32_t ctaLimit() const {
    uint32_t most = std::max<uint32_t>(1, residentCtas_ / static_cast<uint32_t>(s_.ranksPerDevice));
    most = std::min<uint32_t>(most, device::kMaxCtas);
    return s_.maxCtas != 0 ? std::min(most, s_.maxCtas) : most;
  }

  // Payload per pair that goes by lines: at most a small part of the cap is for them.
  size_t lineLimit() const {
    constexpr size_t kPartOfCap = 64;
    const size_t ofUnits = device::linesBytes(s_.nranks, device::kUnit);  // for a unit of every pair
    return std::clamp(s_.registrar->capBytes() / kPartOfCap / ofUnits * device::kUnit, kSmallBytes, kMostLineBytes);
  }

  // Chunks keep within a part of the cap, so that several plans find room.
  size_t chunkedLimit() const { return std::min(s_.stagingLimit, s_.registrar->capBytes() / kStagingsInCap); }

  // Pure in what the ranks agree on.
  static void shape(const Work& work, const plan::PolicyChoice& choice, const LaunchRoom& room, Prepared* p) {
    const Launches launches = launchesOf(work.policy, choice, work.schedule->largestPayload, room);
    p->eager = {launches.eager, contractOf(work.identity, launches.eager)};
    p->recorded = {launches.recorded, contractOf(work.identity, launches.recorded)};
    const LaunchShape& shape = launches.eager;
    p->info = {shape.ctas, shape.tileBytes, shape.stagingBytes, choice.reason, ""};
    if (choice.fused && static_cast<int>(shape.ctas) != choice.ctas)
      p->info.reason += formatText("; launched with {}", shape.ctas);
    if (!choice.fused && p->eager.needsSlots()) p->info.refusal = choice.reason;
  }

  // Over what must be equal on all ranks.
  static uint64_t contractOf(uint64_t identity, const LaunchShape& shape) {
    return contractHash({identity, shape.ctas, shape.tileBytes, shape.small, shape.lines});
  }

  static Status upload(const Schedule& schedule, Prepared& prepared, TableRoom* room = nullptr) {
    if (schedule.operands > static_cast<size_t>(device::kMaxOperands))
      return Status(ulyssesNotSupported, formatText("{} operands; on device memory a plan has at most {}",
                                                    schedule.operands, device::kMaxOperands));
    const std::vector<unsigned char> table = device::makeWorkTable(
        schedule.rank, schedule.nranks, static_cast<int>(schedule.operands),
        [&](int from, int to, int operand) { return schedule.copies(from, to, static_cast<size_t>(operand)); });
    prepared.operands = static_cast<int>(schedule.operands);
    prepared.inExtent = schedule.inExtent;
    prepared.outExtent = schedule.outExtent;
    prepared.blocks = device::blockCount(table);
    if (room != nullptr && room->fits(table)) return room->upload(table, &prepared.table);
    ULYSSES_ASSIGN(prepared.table, deviceBuffer(table.size()));
    return uploadNow(prepared.table.get(), table.data(), table.size());
  }

  void waitOrAbort() {
    const int64_t end = nowMs() + 2000;
    while (events_.outstanding() && nowMs() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (events_.outstanding()) abort();
    (void)events_.wait();
  }

  // Ends kernels that wait for a rank that has died, or has not launched before the deadline.
  void end(const Status& trouble) {
    {
      const std::lock_guard lock(stickyMutex_);
      sticky_ = trouble;
    }
    ended_.store(true, std::memory_order_release);
    abort();
    ULYSSES_LOG(Warn, s_.device, "rank {} of {}: {}", s_.rank, s_.nranks, trouble.message());
  }

  Status lookAround() {
    const bool busy = events_.outstanding();
    ControlPage& page = *s_.agreement->page();
    if (const int by = static_cast<int>(page.aborted().load()); by != 0)
      return Status(ulyssesRemoteError, formatText("rank {} aborted the communicator", by - 1));
    const uint64_t mine = page.rank(s_.rank).launches.load();
    Status destroyed;  // mostly of one that has seen another's death
    for (int r = 0; r < s_.nranks; ++r) {
      if (r == s_.rank) continue;
      const bool behind = page.rank(r).launches.load(std::memory_order_acquire) < mine;
      if (page.rank(r).departed.load() != 0) {
        if (busy && behind && destroyed.ok())
          destroyed = Status(ulyssesRemoteError, formatText("rank {} has destroyed its communicator", r));
      } else if (s_.channel->dead(r)) {
        return Status(ulyssesRemoteError, formatText("the process of rank {} has died", r));
      } else if (busy && behind && s_.timeoutMs >= 0 && nowMs() - launchedMs_.load() > s_.timeoutMs) {
        return Status(ulyssesTimeout, formatText("rank {} did not launch the exchange before the deadline", r));
      }
    }
    return destroyed;
  }

  const Setup s_;
  uint32_t residentCtas_ = 1;
  device::HostWords* host_ = nullptr;
  device::HostWords* hostOnDevice_ = nullptr;
  DeviceBuffer windows_;
  std::unique_ptr<CtaAccount> ledger_;         // null for one rank alone
  uint32_t heldEager_ = 0, heldRecorded_ = 0;  // CTAs of this rank in it
  bool crowded_ = false;
  plan::EngineUse engines_ = plan::EngineUse::Off;  // the first of all ranks
  std::shared_ptr<Chain> main_;
  std::shared_ptr<Chain> recorded_;  // of eager calls in graphs
  std::optional<LaunchRoom> reserved_;
  TableRoom tables_;

  LaunchEvents events_;
  std::array<uint64_t, kTableRows> lastUse_{};  // by window: the last launch that has it among its buffers
  const char* lastPath_ = "";
  std::atomic<int64_t> launchedMs_{0};

  std::mutex stickyMutex_;
  Status sticky_;
  std::atomic<bool> ended_{false};  // sticky_ is set, and stays
  Watcher watcher_;
};

}  // namespace

Result<std::unique_ptr<DeviceTransport>> DeviceTransport::create(const Setup& setup, Deadline deadline) {
  auto transport = std::make_unique<CudaTransport>(setup);
  ULYSSES_TRY(transport->setUp(deadline));
  return std::unique_ptr<DeviceTransport>(std::move(transport));
}

}  // namespace ulysses
#endif
