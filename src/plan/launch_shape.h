// How an exchange on device memory is launched: pure, and the same on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/policy.h"

namespace ulysses {

// Slots of 127104 bytes were 5 % slower than slots of 131072 (H200, 4 ranks, H=56 D=128 S=128000).
constexpr size_t kTileAlignment = size_t{4} << 10;

struct LaunchFacts {
  size_t largestPayload = 0;  // the most bytes any rank has for any other
  int nranks = 1;
  uint32_t ctas = 0;          // as many as the policy says
  uint32_t mostCtas = 1;      // that one rank's launch may have: what is resident together, and the callers' limits
  size_t inFlightBytes = 0;   // per pair, in all slots together
  size_t stagingLimit = 0;    // most bytes of staging
  size_t smallBytes = 0;      // payload per pair that the small path carries
  size_t lineBytes = 0;       // payload per pair for which there are lines
};

struct LaunchShape {
  bool small = false;  // all outputs by lines, sent before anything is known of the peers
  bool lines = false;  // plain outputs by lines: no slots
  uint32_t ctas = 1;
  size_t tileBytes = 0;     // of a staging slot; 0 with lines, or where the limit leaves no room for one
  size_t stagingBytes = 0;  // (nranks - 1) * ctas * slots * tileBytes
  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

LaunchShape launchShape(const LaunchFacts& facts);

// What there is for the launches of one schedule; the same on all ranks.
struct LaunchRoom {
  uint32_t ctas = 1;         // of a launch
  size_t windowBytes = 0;    // that may still be registered, the present staging of eager calls given back
  size_t besidesBytes = 0;   // of these, for flags and staging of launches that graphs record
  size_t chunkedBytes = 0;   // most staging where it goes in chunks
  size_t recordedBytes = 0;  // most staging of launches that graphs record
  size_t smallBytes = 0;     // payload per pair that the small path carries
  size_t lineBytes = 0;      // payload per pair for which there are lines
};
struct Launches {
  LaunchShape eager, recorded;
};
// By the policy's choice. What graphs record goes in chunks whatever the policy: the cap holds for both together. A choice
// that is not fused stages nothing; outputs in windows are launched all the same, as the policy says for them.
Launches launchesOf(const plan::PolicyFacts& facts, const plan::PolicyChoice& choice, size_t largestPayload,
                    const LaunchRoom& room);

// How many CTAs a launch may have where the ledgers of the GPUs have room for `available` more of every rank.
// A communicator has one reservation for its calls on streams, and one for what graphs replay beside them.
struct CtaShare {
  uint32_t ctas = 0;                         // of a launch: at most `wanted`
  uint32_t moreEager = 0, moreRecorded = 0;  // to reserve beyond what is held
  friend bool operator==(const CtaShare&, const CtaShare&) = default;
};
// Where nothing is held and nothing is left, it is all of `wanted` and nothing to reserve: launches must then not overlap
// those of others. The second reservation is for as many CTAs as a launch has, or is left as it is.
CtaShare shareCtas(uint32_t wanted, uint32_t heldEager, uint32_t heldRecorded, uint32_t available);

// The most CTAs for a communicator that reserves twice as many of the `available` ones, once and for all, and leaves some
// for those to come. 0: too few are left.
uint32_t modestShare(uint32_t available);

}  // namespace ulysses
