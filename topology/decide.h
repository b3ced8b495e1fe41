// One verdict from the facts of all ranks. Pure: every rank that holds the same facts comes to the same verdict, so it
// needs no agreement of its own.
#pragma once

#include "topology/facts.h"

#include <span>
#include <string>

namespace ulysses {

// What decided. It depends on the set of ranks alone, not on their order; the reason's text names ranks.
enum class Cause {
  None,            // fused
  NoRanks,         // nothing to decide
  MixedMemory,     // some ranks have a GPU and some have none, or device memory was asked for without one
  QueryFailed,     // a rank's driver gave no answer that the verdict needs
  SeveralHosts,    // fused paths stay on one host
  NotAddressable,  // some ordered pair of GPUs lacks load/store access over NVLink
};

struct Verdict {
  ulyssesResult_t code = ulyssesSuccess;  // ulyssesInvalidUsage: these ranks can't form a communicator
  ulyssesMemory_t memory = ulyssesMemoryHost;
  int nHosts = 0;
  bool singleHost = false;
  bool lsa = false;        // every rank can load from and store to every other rank's GPU memory, whatever the host
  int ranksPerDevice = 0;  // most ranks that share one GPU; 0 on host memory
  bool fusedOk = false;    // fused paths may be set up; sharing memory then proves it or not
  Cause cause = Cause::None;
  std::string reason;  // one sentence for the log and the info calls
};

// `requested` is what all ranks agreed to ask for: Auto takes device memory when every rank has a GPU and host memory
// when none has.
Verdict decide(std::span<const RankFacts> ranks, ulyssesMemory_t requested = ulyssesMemoryAuto);

// Why rank `from` can't load from and store to the GPU of rank `to`; empty where it can. Both have a GPU.
std::string whyNotAddressable(std::span<const RankFacts> ranks, size_t from, size_t to);

}  // namespace ulysses
