// How ranks find each other and what they keep between them: allgather of small blobs and of file descriptors, and a
// lifeline per rank. No globals; every wait has a deadline and names the missing rank.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"

namespace ulysses {

using Bytes = std::vector<std::byte>;

// An allgather of equal blocks, used only to exchange addresses: the caller's own, MPI's, the rendezvous', a parent
// communicator's. `recv` takes nranks blocks in rank order.
using Allgather = std::function<Status(const void* send, void* recv, size_t bytes)>;

// Starts a rendezvous in this process (a listening socket and a thread that serves it once) and returns its id: address
// and a 128-bit secret.
Result<ulyssesUniqueId> startRendezvous();

// This rank's end of the rendezvous. A wrong rank, a rank twice or differing nranks is ulyssesInvalidArgument on all; a
// rank that does not come is ulyssesTimeout naming it. May be called until the function object is destroyed.
Result<Allgather> joinRendezvous(const ulyssesUniqueId& id, int rank, int nranks, Deadline deadline);

// Allgather among threads of one process, for CommInitAll: element r of the result is rank r's end.
std::vector<Allgather> inProcessAllgather(int nranks, Deadline deadline);

// The caller's allgather: a nonzero return is ulyssesRemoteError.
Allgather callerAllgather(const ulyssesOob_t& oob);

class ControlChannel;
// Allgather of equal blocks over a channel that outlives the function object.
Allgather channelAllgather(ControlChannel& channel, Deadline deadline);

// The library's own connections. Collective calls are made in one order on all ranks, from one thread at a time.
class ControlChannel {
 public:
  // Collective; uses `addresses` equally often on all ranks and keeps nothing of it. `local`: why this rank cannot take
  // part after all; then none does. `nranks` is right in any case, `rank` when `local` is ok.
  static Result<std::unique_ptr<ControlChannel>> open(int rank, int nranks, const Allgather& addresses,
                                                      Deadline deadline, const Status& local = {});
  virtual ~ControlChannel() = default;

  virtual int rank() const = 0;
  virtual int nranks() const = 0;

  // Number of distinct hosts (hostIdentity()) among the ranks, and whether file descriptors can be passed among all.
  virtual int nHosts() const = 0;
  virtual bool passesFds() const = 0;

  // Blobs may differ in length; at most kMaxBlobBytes each. Collective.
  static constexpr size_t kMaxBlobBytes = 1u << 20;
  virtual Status allgather(const Bytes& mine, std::vector<Bytes>& all, Deadline deadline) = 0;

  // Descriptors of this host's ranks; at most 8 each, counts may differ; the caller owns what it gets (its own among
  // them, duplicated). ulyssesNotSupported where !passesFds(). Collective.
  virtual Status allgatherFds(std::span<const int> mine, std::vector<std::vector<UniqueFd>>& all,
                              Deadline deadline) = 0;

  // A descriptor that becomes readable (or hangs up) when rank r's process has died; -1 for this rank, for ranks of
  // this process, and where nothing is known. Owned by the channel. Where !passesFds() it is the connection itself,
  // known on rank 0 for all ranks and on the others for rank 0: there only POLLRDHUP and POLLHUP tell a death, since
  // control messages make it readable too.
  virtual int lifeline(int r) const = 0;

  // The right look at lifeline(r): true when that process has died or has left the channel; waits for nothing and
  // consumes nothing. Any thread.
  virtual bool dead(int r) const = 0;
};

}  // namespace ulysses
