// The fallback on device memory as the core sees it: messages through NCCL, which is loaded at run time. nccl.cc needs
// CUDA; device_absent.cc stands for it elsewhere.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/agreement.h"
#include "bootstrap/bootstrap.h"
#include "plan/schedule.h"
#include "transport/device.h"

struct ncclComm;

namespace ulysses {

class NcclTransport {
 public:
  // A schedule as messages, with its tables. Made collectively, used locally.
  class Prepared;

  struct Setup {
    int rank, nranks, device;
    int ranksPerDevice;
    size_t stagingLimit;  // the same on all ranks
    int timeoutMs;
    ControlChannel* channel;
    Agreement* agreement;
    ncclComm* adopted;  // the caller's communicator, or null: one is made when it is first needed
  };

  // Collective: whether NCCL takes these ranks is found and agreed; nothing is made yet.
  static Result<std::unique_ptr<NcclTransport>> create(const Setup& setup, Deadline deadline);
  virtual ~NcclTransport() = default;

  virtual int version() const = 0;  // NCCL_VERSION_CODE; 0: no NCCL on this rank
  // Why NCCL can't serve, the same on all ranks; "" where it can, as far as is known.
  virtual const std::string& refusal() const = 0;

  // Collective; the outcome is agreed. Makes NCCL's communicator where there is none yet.
  virtual Status prepare(std::span<const Schedule* const> schedules, DeviceTransport::Capture capture,
                         std::vector<std::shared_ptr<Prepared>>* prepared, Deadline deadline) = 0;

  // Local; waits for nothing. Nothing on the device tells the peers of a call that is wrong on one rank: the caller
  // aborts then.
  virtual Status launch(Prepared& prepared, const void* const in[], void* const out[], ulyssesStream_t stream) = 0;
  // Whether the last launch outside a graph may not be over.
  virtual bool busy() = 0;

  // A rank that died or never came; stays.
  virtual Status takeError() = 0;
  virtual void abort() = 0;

  struct Info {
    size_t stagingBytes = 0, chunkBytes = 0;  // of the pairs' payloads, a round
    int rounds = 0;
  };
  virtual Info infoOf(const Prepared& prepared) const = 0;
};

// What an NCCL communicator of the caller's says of itself, and an allgather over it. Local.
struct NcclRanks {
  int rank = 0, nranks = 0, device = -1;
  Allgather allgather;  // collective; waits
};
Result<NcclRanks> ncclRanks(ncclComm* comm);

}  // namespace ulysses
