// How all ranks of a communicator take the same step, or none does: rounds that every rank enters with a record and
// leaves with everybody's, and one outcome for all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/deadline.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"

namespace ulysses {

class ControlPage;

class Agreement {
 public:
  virtual ~Agreement() = default;

  // Collective. Shows `record` (and what was written to payloadArea()) to all ranks. On success everybody's record and
  // payload can be read until the round after the next begins. ulyssesTimeout and ulyssesRemoteError name the rank and
  // are sticky: every later call returns them again. ulyssesMismatch (a peer posted a hit where this rank waits) is not.
  virtual Status round(std::span<const std::byte> record, Deadline deadline) = 0;
  virtual const std::byte* record(int rank) const = 0;

  // Room for a small payload beside the next record; null where there is none.
  virtual std::byte* payloadArea() { return nullptr; }
  virtual size_t payloadCapacity() const { return 0; }
  virtual const std::byte* payload(int) const { return nullptr; }

  // A call that needs no communication: shown, not waited for. Fails where a peer found it to be the wrong call.
  virtual Status post() = 0;

  // The outcome that waits for this rank, without entering a call.
  virtual Status asyncError() = 0;

  // Wakes everybody who waits for this rank, now and later. Callable from any thread.
  virtual void abort() = 0;
  // This rank will make no more calls.
  virtual void depart() = 0;

  // For a loop between two rounds that found nothing to do: sleeps until rung, at most some milliseconds. `missing` is
  // the rank it waits for. Fails when the next round has failed, or ends it for all: deadline, death, abort.
  virtual Status idle(int missing, Deadline deadline) = 0;
  // Wakes rank `peer` if it sleeps in idle() or round().
  virtual void ring(int peer) = 0;
  virtual ControlPage* page() { return nullptr; }
};

// Over a shared page: the ranks are on one host. `firstRound` is 1 outside tests.
// `keep` holds the memory at `page`, ControlPage::bytes(nranks) of zeros.
std::unique_ptr<Agreement> makePageAgreement(int rank, int nranks, std::byte* page, std::shared_ptr<void> keep,
                                             ControlChannel& channel, uint64_t firstRound = 1);
// Over the control channel, where the ranks share no memory: its root decides.
std::unique_ptr<Agreement> makeWireAgreement(ControlChannel& channel);

}  // namespace ulysses
