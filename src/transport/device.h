// The fused path on device memory as the core sees it. device.cc needs CUDA; device_absent.cc stands for it elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/agreement.h"
#include "bootstrap/bootstrap.h"
#include "plan/contract.h"
#include "plan/copy_engine.h"
#include "plan/policy.h"
#include "plan/schedule.h"
#include "window/registrar.h"

namespace ulysses {

// The calling thread's CUDA device; -1 where there is none, or no CUDA in this build.
int currentCudaDevice();
void setCurrentCudaDevice(int device);

// Whether the stream records a graph.
bool isCapturing(ulyssesStream_t stream);

// One rank alone: the block copies on the stream. Capturable.
Status copyOnDevice(const Schedule& schedule, const void* const in[], void* const out[], ulyssesStream_t stream);
Status synchroniseStream(ulyssesStream_t stream);

class DeviceTransport {
 public:
  // A schedule in the form kernels take it, with its launch shape. Made collectively, used locally.
  class Prepared;

  struct Setup {
    int rank, nranks, device;
    std::vector<std::string> gpus;  // of all ranks, by physical identity
    int ranksPerDevice;
    plan::EngineUse engines;  // as this rank's ULYSSES_PATH has it
    uint32_t maxCtas;         // the smallest limit of all ranks; 0: none
    size_t stagingLimit;      // the smallest of all ranks
    int timeoutMs;
    ControlChannel* channel;
    Registrar* registrar;
    Agreement* agreement;
  };

  // Collective: flags and tables, kernels loaded. The outcome is agreed.
  static Result<std::unique_ptr<DeviceTransport>> create(const Setup& setup, Deadline deadline);
  virtual ~DeviceTransport() = default;

  // What is to be prepared. The identity is the same on all ranks and tells calls apart.
  struct Work {
    const Schedule* schedule;
    uint64_t identity;
    plan::PolicyFacts policy;
    void* const* boundOut = nullptr;  // of a plan, this rank's: null, or by operand the output or null
  };
  // Flags and staging for launches under capture, so that replays of a graph may run beside other calls: a plan's own,
  // or those that all recorded eager calls of the communicator share.
  enum class Capture { Own, Shared };
  // Collective; the outcome is agreed.
  virtual Status prepare(std::span<const Work> works, Capture capture, std::vector<std::shared_ptr<Prepared>>* prepared,
                         Deadline deadline) = 0;

  // Collective, once: what launches of at most `largestPayload` bytes per pair need, so that prepareAlone() asks nobody, and
  // for the first `works` not for memory either, as long as they have a block for every pair.
  virtual Status reserve(const plan::PolicyFacts& policy, size_t largestPayload, size_t works, Deadline deadline) = 0;
  // Local; after reserve(), whose payload it keeps to. Peers that prepare the same work have the same contract.
  virtual Result<std::shared_ptr<Prepared>> prepareAlone(const Work& work) = 0;

  // Local; waits for nothing. `valid`: else this rank's call is wrong, and no rank may store anything. `contracts`: of
  // all ranks, where the call has been agreed on; they tell copy engines where the outputs lie.
  virtual Status launch(Prepared& prepared, bool valid, const void* const in[], void* const out[],
                        ulyssesStream_t stream, std::span<const Contract* const> contracts = {}) = 0;

  // How the last launch moves its bytes: direct (to this rank), staged or copy-engine.
  virtual const char* lastPath() const = 0;

  // Collective: a new window's place is made known to the kernels.
  virtual Status publishWindow(uint32_t window, Deadline deadline) = 0;
  // Local: whether a launch on a stream that has this window among its buffers may not be over.
  virtual bool inUse(uint32_t window) = 0;

  // What an earlier launch found: a contract that differs, a rank that died or never came. The first is forgotten.
  virtual Status takeError() = 0;
  virtual void abort() = 0;
  // Local: waits for what is on streams, outside of graphs.
  virtual void drain() = 0;

  struct Info {
    uint32_t ctas = 0;
    uint64_t tileBytes = 0;
    size_t stagingBytes = 0;
    std::string reason;    // of the policy
    std::string refusal;   // why plain outputs are not fused; "" where they are
    bool engines = false;  // copy engines move the bytes: of a plan, which knows before its executions
  };
  virtual const Info& infoOf(const Prepared& prepared) const = 0;
};

}  // namespace ulysses
