// A communicator of Ulysses beside one of NCCL's, and what of the latter's calls it takes.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "api/communicator.h"

namespace ulysses::drop_in {

struct Counters {
  std::atomic<uint64_t> communicators{0}, allGathers{0}, alltoalls{0}, passed{0};
  std::mutex mutex;
  std::string reason;  // of the last call that was passed on

  void pass(const std::string& why);
};
Counters& processCounters();

class Attachment {
 public:
  // Collective over the ranks of `nccl`, whose calls wait. Where it can't be had, on all ranks alike, everything is
  // passed on.
  static std::shared_ptr<Attachment> make(ncclComm* nccl);
  // Passes everything on.
  static std::shared_ptr<Attachment> none() { return std::shared_ptr<Attachment>(new Attachment); }
  // Lets what is under way come to its end. Local.
  ~Attachment();

  // Local; the ranks of a correct program all get the same.
  struct Taken {
    bool taken = false;                        // else the call is NCCL's
    const Communicator::Flat* flat = nullptr;  // to be launched
    int error = 0;                             // NCCL's result code, where it can't be
  };
  Taken take(Operation operation, size_t count, int type);
  // Launches it and waits for nothing. NCCL's result code.
  int launch(const Communicator::Flat& flat, Operation operation, const void* in, void* out, ulyssesStream_t stream);

  int asyncError();  // NCCL's result code
  void abort();
  void depart();  // the process ends
  Counters& counters() { return counters_; }

 private:
  Attachment() = default;
  Status connect(ncclComm* nccl, int nranks);
  void pass(const std::string& why);

  std::shared_ptr<Communicator> comm_;  // null: everything is passed on
  int nranks_ = 0, rank_ = 0;
  size_t mostBytes_ = 0;
  bool aborted_ = false;
  std::map<std::pair<Operation, size_t>, std::unique_ptr<Communicator::Flat>> flats_;  // by bytes per pair
  Counters counters_;
};

// By NCCL's handle.
std::shared_ptr<Attachment> attachmentOf(const ncclComm* nccl);
void keep(const ncclComm* nccl, std::shared_ptr<Attachment> attachment);
std::shared_ptr<Attachment> forget(const ncclComm* nccl);

}  // namespace ulysses::drop_in
