// The fused path on host memory: rows straight into the peers' windows, or out of their inputs where this rank can read
// those, or through staging windows in chunks.
#pragma once

#include "bootstrap/agreement.h"
#include "transport/peer_memory.h"
#include "transport/transport.h"
#include "window/registrar.h"

namespace ulysses {

constexpr size_t kStagingSlots = 3;

// Staging bytes that an exchange wants, and how they are cut: pure.
struct StagingShape {
  size_t chunkBytes = 0;  // what one sender may put into one slot

  // `bytes` of staging, shared by nranks senders; chunkBytes is 0 where they do not suffice.
  static StagingShape of(size_t bytes, int nranks);
  static size_t wantedBytes(int nranks, size_t limit);
  size_t offset(size_t slot, int sender, int nranks) const {
    return (slot * static_cast<size_t>(nranks) + static_cast<size_t>(sender)) * chunkBytes;
  }
};

class HostTransport {
 public:
  HostTransport(Agreement& agreement, Registrar& registrar, PeerMemory peers)
      : agreement_(agreement), registrar_(registrar), peers_(std::move(peers)) {}

  // Small payloads beside the record of the next round: all this rank has to send, by receiver, and what it gets out of the
  // peers' after the round. fitsInline() is the same on all ranks; fetchInline() has the peers' bytes on their way early.
  bool fitsInline(const Schedule& schedule) const;
  void packInline(const Schedule& schedule, const void* const in[]) const;
  void fetchInline(const Schedule& schedule) const;
  void unpackInline(const Transfer& transfer) const;

  // Other payloads: shows the peers where this rank's inputs lie, beside the record of the next round.
  void showInputs(const Schedule& schedule, const void* const in[]) const;
  // How bytes get from any rank to any other, outside windows; the same on all ranks.
  struct Ways {
    bool staged = false, fetched = false;
  };
  Ways waysOf(const Transfer& transfer) const;

  // Moves everything and returns when this rank's part of it is done: the caller ends the transfer by a round. `staging`
  // is the number of the staging window, 0 where nothing is staged. A failure is this rank's alone, to be told in that
  // round, unless it is the agreement's.
  Status exchange(const Transfer& transfer, uint32_t staging, size_t stagingBytes);

 private:
  Agreement& agreement_;
  Registrar& registrar_;
  const PeerMemory peers_;
};

}  // namespace ulysses
