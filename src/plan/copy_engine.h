// An exchange by copy engines: which copies, from where to where and in which order, and when it is worth it. Pure.
// What runs the steps (transport/copy_engine.h) makes one call of CUDA of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layout/block_copy.h"
#include "plan/schedule.h"
#include "window/registrar.h"

namespace ulysses::plan {

// One call: `slices` times `rows` rows of `rowBytes` bytes. On either side rows lie `pitch` bytes apart and slices
// `sliceRows` rows. One slice is a 2-D copy, one row a plain one.
struct PitchedCopy {
  struct Side {
    size_t offset = 0, pitch = 0, sliceRows = 0;
    friend bool operator==(const Side&, const Side&) = default;
  };
  size_t rowBytes = 0, rows = 1, slices = 1;
  Side src, dst;

  size_t bytes() const { return rowBytes * rows * slices; }
  friend bool operator==(const PitchedCopy&, const PitchedCopy&) = default;
};

// What CUDA takes as a pitch (cudaDevAttrMaxPitch of every GPU so far). Rows further apart are copies of their own.
inline constexpr size_t kMaxPitch = 0x7fffffff;

// The same bytes in few calls.
std::vector<PitchedCopy> pitchedCopies(std::span<const layout::BlockCopy> copies);

// Where one end of a copy lies.
struct Place {
  enum class In {
    Input,    // this rank's, of operand `number`
    Output,   // this rank's, of operand `number`
    Window,   // window `number` of `rank`
    Staging,  // of `rank`
  };
  In in = In::Input;
  int rank = 0;
  uint32_t number = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

// The steps of one stream run one after the other. What the two streams have of each other is Fork and Join, and what
// the ranks have are flags, with the meaning they have in device/exchange.h (as of CTA 0).
struct EngineStep {
  enum class Do {
    Enter,        // announce this rank's entry, and wait for everybody's
    Fork,         // the copies' stream goes on from here
    Copy,         // to a peer, out of a slot, or of the own share
    Announce,     // to `peer`: `count` chunks of this rank's have landed
    AwaitCredit,  // `peer` has copied `count` chunks out
    AwaitChunks,  // `count` chunks of `peer` have landed
    GiveCredit,   // to `peer`: `count` of its chunks have been copied out
    Join,         // the caller's stream waits for the copies'
    Leave,        // everything from every peer has landed
  };
  enum class On { Caller, Copies };  // stream
  Do what = Do::Copy;
  On stream = On::Caller;
  int peer = -1;  // the other rank; of a copy of the own share this rank itself
  uint32_t count = 0;
  Place from, to;
  PitchedCopy copy;
};

// Everything rank schedule.rank does. `outputs` says where each rank's outputs lie, [rank][operand]; a rank that has a
// plain one among those it gets bytes for is sent to through slots of `chunkBytes` bytes, as device/work.h lays them
// out for one CTA. Each rank begins with another peer.
std::vector<EngineStep> engineSteps(const Schedule& schedule, std::span<const std::vector<Location>> outputs,
                                    size_t chunkBytes);

// Whether a rank is sent to through slots.
bool isStaged(const Schedule& schedule, int rank, std::span<const Location> outputs);

// Most calls that it takes any rank to send to any other directly. The same on all ranks.
size_t mostEngineCalls(const Schedule& schedule);

// How ULYSSES_PATH stands to it; of several ranks the first in this order counts.
enum class EngineUse : uint32_t { Off, Auto, Forced };
EngineUse engineUse(const std::string& path);

// What the hosts know of where outputs lie. Known: in windows, on every rank. Plain: on some rank it is known not to.
// Unknown: on some rank they do not know. All but the first go through staging.
enum class EngineOutputs { Known, Plain, Unknown };

// The same on all ranks.
struct EngineFacts {
  EngineUse use = EngineUse::Auto;
  bool distinctGpus = false;
  size_t largestPayload = 0, shortestRow = 0, calls = 0;  // of any pair of ranks
  EngineOutputs outputs = EngineOutputs::Known;
  size_t chunkBytes = 0;  // of a staging slot; 0: there is no staging
};
struct EngineVerdict {
  bool chosen = false;
  std::string reason;
};
EngineVerdict judgeEngine(const EngineFacts& facts);

}  // namespace ulysses::plan
