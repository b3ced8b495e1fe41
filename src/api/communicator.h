// A communicator: who the ranks are, what they share, and how a call runs from its contract to its last byte.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "api/config.h"
#include "api/recorder.h"
#include "base/parameters.h"
#include "bootstrap/agreement.h"
#include "bootstrap/bootstrap.h"
#include "plan/contract.h"
#include "plan/schedule.h"
#include "transport/device.h"
#include "transport/host.h"
#include "transport/nccl.h"
#include "transport/transport.h"
#include "window/registrar.h"

namespace ulysses {

// One collective call as its entry point describes it.
// What calls of one schedule need on device memory: the policy's facts, and what the first of them made.
struct OnDevice {
  plan::PolicyFacts policy;
  std::shared_ptr<DeviceTransport::Prepared> fused;
  std::shared_ptr<NcclTransport::Prepared> nccl;
};

struct Call {
  Operation operation{};
  Contract::Geometry geometry;
  Status local;                        // what is wrong with it on this rank
  const Schedule* schedule = nullptr;  // what moves; null where nothing does or `local` failed
  const void* const* in = nullptr;     // [operand]
  void* const* out = nullptr;
  ulyssesStream_t stream = nullptr;  // device memory
  OnDevice* held = nullptr;          // device memory: of the schedule, where it is not one of the communicator's own
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Collective over the ranks that share `addresses`. All ranks get the same outcome. `local`: what is wrong with the
  // call on this rank already.
  static Result<std::shared_ptr<Communicator>> create(int rank, int nranks, const Allgather& addresses,
                                                      const Config& config, Status local = {},
                                                      std::unique_ptr<Fallback> fallback = nullptr,
                                                      ncclComm* adopted = nullptr);
  ~Communicator();

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  const Parameters& parameters() const { return parameters_; }
  void describe(ulyssesCommInfo_t& info);

  // Collective. Agrees on the call and does it.
  Status run(const Call& call);

  // Collective: blobs of all ranks, for a call whose contract has been agreed (plans, split).
  Status allgather(const Bytes& mine, std::vector<Bytes>& all);

  // A call that needs no communication: shown to the peers, not waited for, and part of what the next round agrees on.
  Status hit(Operation operation, const Contract::Geometry& geometry);
  // The next three are collective, for a call whose contract has been agreed. The first failing rank's status, on all:
  Status agreeLocal(const Status& mine);
  // Window bytes that every rank's cap has left beside its staging window; 0 where there are no windows.
  Status windowRoom(size_t* bytes);
  // A window of as much on every rank, given back by memFree().
  Status allocateWindow(size_t bytes, std::byte** base);

  Status memAlloc(void** ptr, size_t bytes);  // collective
  Status memFree(void* ptr);                  // local
  // Collective: the caller's own memory as a window, whose number comes out. `local`: what is wrong with the call
  // already.
  Status registerWindow(void* buff, size_t bytes, Status local, uint32_t* window);
  Status deregisterWindow(uint32_t window);  // local

  // Collective on this communicator; null for ULYSSES_SPLIT_NOCOLOR. `local`: what is wrong with the call already.
  Result<std::shared_ptr<Communicator>> split(int color, int key, const Config& config, Status local);
  const Config& config() const { return config_; }

  // Collective: a contiguous exchange or flat collective of one operand. `local`: what is wrong with it already.
  Status runEager(Operation operation, const Contract::Geometry& geometry, const void* in, void* out,
                  ulyssesStream_t stream, Status local);

  bool onDevice() const { return device_ >= 0; }
  int device() const { return device_; }  // -1 on host memory
  // What the policy has to know of this communicator.
  const plan::PolicyFacts& policyFacts() const { return policy_; }
  // What a schedule's executions on device memory need, and by which way they go, as all ranks agreed.
  struct Prepared {
    std::shared_ptr<DeviceTransport::Prepared> fused;
    std::shared_ptr<NcclTransport::Prepared> nccl;  // where it is set, this is the way
    std::string reason;                             // why it is not fused; "" where it is
  };
  // Collective, on device memory: what a plan's executions need; they share flags and staging for captured launches.
  Status prepareOnDevice(std::span<const DeviceTransport::Work> works, std::vector<Prepared>* prepared);
  // Collective, on device memory, once: flat collectives of at most `largestPayload` bytes per pair, the least of what the
  // ranks ask for, need no agreement from then on, and the first `works` that are prepared no memory. The outcome is the same
  // on all ranks; it says why where they can't be fused.
  Status reserveFlat(size_t* largestPayload, size_t works);
  // Local, after it; the same on all ranks: bytes that every rank has for every other. `reason`: why it is not fused.
  struct Flat {
    Schedule schedule;
    Contract::Geometry geometry;
    Prepared prepared;
  };
  Result<std::unique_ptr<Flat>> prepareFlat(Operation operation, size_t bytes);
  Status executeFlat(const Flat& flat, Operation operation, const void* in, void* out, ulyssesStream_t stream);

  // Local, on device memory: launches and waits for nothing.
  Status executeOnDevice(const Prepared& prepared, const Call& call);
  void describe(const Prepared& prepared, size_t largestPayload, ulyssesPlanInfo_t& info) const;

  uint64_t nextPlanNumber() { return nextPlan_++; }
  uint64_t nextParamNumber() { return nextParam_++; }
  size_t stagingChunkBytes() const { return StagingShape::of(stagingBytes_, nranks_).chunkBytes; }
  size_t stagingBytes() const { return stagingBytes_; }
  // Why an exchange will not be fused, as far as this rank can tell; "" where it will.
  std::string fallbackReason() const;

  // Writes the flight recorder; null: to a file of its own, whose name is logged. Any thread.
  Status dump(const char* path) const;
  void dumpOnce(std::string_view why);  // on the first failure that ends the communicator, unless ULYSSES_DUMP_DIR=off

  Status finalize();
  Status asyncError();
  void abort();   // from any thread
  void drain();   // local: waits for this rank's launches on streams
  void depart();  // local: no more calls will come from this rank

 private:
  // The calls of one communicator come from one thread at a time. A second one waits, and is told.
  class Entry;

  Communicator(int rank, int nranks) : rank_(rank), nranks_(nranks) {}
  Status perform(const Call& call);
  Status performOnDevice(const Call& call);
  OnDevice* heldFor(const Call& call);
  Status launchMessages(NcclTransport::Prepared& prepared, const Call& call);
  Status moveByNccl(const Call& call, OnDevice& held, const std::string& reason, Deadline deadline);
  // "" where they are fused; `contracts` are of all ranks.
  std::string whyNotFused(const Judgement& judgement, std::span<const Contract* const> contracts) const;
  std::string ncclRefusal() const;  // "" where NCCL can be the fallback; the same on all ranks
  // Collective: why a plan made now will not be fused, the same on all ranks; "" where it will.
  Status agreeWhyNotFused(std::string* reason, bool* fusedOnly, Deadline deadline);
  // On device memory: in a group a call returns when its data is there, unless the stream records it.
  Status waitInGroup(ulyssesStream_t stream);
  // Collective, the contract agreed: makes a window known to the kernels, or undoes it.
  Status publish(uint32_t window);
  Status releaseWindow(uint32_t window);  // local
  Status launchPlanned(const Prepared& prepared, const Call& call, Status local);
  Status chooseMemory(uint32_t requested, Deadline deadline);
  Result<std::unique_ptr<WindowProvider>> chooseProvider(Deadline deadline);  // collective
  Status setUpDevice(size_t capBytes, Deadline deadline);
  Status setUp(const Allgather& addresses, Status local);
  Status shareControlPage(Deadline deadline);
  Deadline callDeadline() const { return Deadline::roughlyAfterMs(timeoutMs_); }

  Status runEntered(const Call& call);
  Status runAlone(const Call& call);
  // The schedule of a contiguous call, kept for the next of the same shape.
  Result<const Schedule*> schedule(Operation operation, const Contract::Geometry& geometry);
  // `small`: payloads lie beside the records.
  Status agree(const Call& call, Contract& mine, Judgement* judgement, Deadline deadline, bool small = false);
  Status move(const Call& call, const Judgement& judgement, bool small, Deadline deadline);
  Status moveFused(const Transfer& transfer, bool mayFail);  // mayFail: the same on all ranks
  // Sees to a staging window that this transfer can use; pure in the contracts. Sets `reason` where there is none.
  // Memory that could not be had is a failure of this transfer alone, the same on all ranks: the next one tries again.
  Status ensureStaging(const Transfer& transfer, std::string* reason);
  Status moveByFallback(const Transfer& transfer, const std::string& reason);
  Status refuseFallback(const std::string& reason) const;  // where a rank accepts the fused path alone
  uint32_t ineligibleBits() const;
  void noteCall(bool fused, const char* path, std::string_view reason);

  const int rank_, nranks_;
  Parameters parameters_;
  Config config_;
  int timeoutMs_ = 0;
  size_t stagingLimit_ = 0;  // the smallest of all ranks
  uint32_t maxCtas_ = 0;     // likewise; 0: no limit
  uint64_t firstRound_ = 1;

  std::unique_ptr<ControlChannel> channel_;
  std::unique_ptr<Agreement> agreement_;
  std::unique_ptr<Registrar> registrar_;  // null where memory cannot be shared
  std::unique_ptr<HostTransport> host_;
  std::unique_ptr<DeviceTransport> transport_;  // of device memory; null where it cannot be fused
  std::unique_ptr<NcclTransport> nccl_;         // device memory's fallback; null on host memory and for one rank
  ncclComm* adopted_ = nullptr;                 // the caller's NCCL communicator
  int device_ = -1, ranksPerDevice_ = 0;
  std::vector<std::string> gpus_;  // of all ranks, on device memory
  plan::PolicyFacts policy_;
  bool lsa_ = false;
  std::string noWindows_;  // agreed: why there is no fused path at all
  std::unique_ptr<Fallback> fallback_;

  std::unique_ptr<FlightRecorder> recorder_;
  std::atomic<bool> dumped_{false};

  std::mutex calls_;
  std::atomic<int> callers_{0};  // threads in calls or waiting for one
  bool finalized_ = false;
  std::vector<const Contract*> contracts_;  // of the last round
  uint32_t staging_ = 0;                    // window number
  size_t stagingBytes_ = 0;
  uint64_t nextPlan_ = 1, nextParam_ = 0;
  uint64_t hits_ = 0, hitsHash_ = 0;  // since the last round

  struct CachedSchedule {
    Operation operation;
    Contract::Geometry geometry;
    std::unique_ptr<const Schedule> schedule;
    OnDevice device;
  };
  std::vector<CachedSchedule> schedules_;  // most recently used first

  std::atomic<uint64_t> fusedCalls_{0}, fallbackCalls_{0};
  std::atomic<const char*> lastPath_{""};
  std::mutex reasonMutex_;
  std::string lastReason_;  // changed by the calling thread alone, under the mutex
};

}  // namespace ulysses
