// The shared page through which the ranks of one host agree: what lies where. The protocol is in page_agreement.cc and
// in tests/model/agreement.pml.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/checked.h"

namespace ulysses {

constexpr size_t kCacheLine = 64;

// A decision word: which round it speaks of and what was decided, changed by compare-and-swap only, so that a deadline
// that passes as the last rank arrives gives one outcome. A round is open as long as the word of its parity speaks of
// another. Sequence numbers are compared for equality alone.
class Decision {
 public:
  enum State : uint64_t { Complete = 1, Failed = 2 };
  enum Kind : uint64_t { None = 0, TimedOut, Died, Aborted, Departed, PostedInstead };

  explicit Decision(uint64_t word) : word_(word) {}
  static Decision complete(uint64_t k) { return Decision(tag(k) | Complete << 16); }
  static Decision failed(uint64_t k, int rank, Kind kind) {
    return Decision(tag(k) | Failed << 16 | kind << 12 | static_cast<uint64_t>(rank));
  }

  uint64_t word() const { return word_; }
  bool speaksOf(uint64_t k) const { return (word_ & kTagMask) == tag(k) && state() != 0; }
  State state() const { return static_cast<State>(word_ >> 16 & 3); }
  Kind kind() const { return static_cast<Kind>(word_ >> 12 & 15); }
  int rank() const { return static_cast<int>(word_ & 0xfff); }

 private:
  static constexpr int kTagShift = 18;
  static constexpr uint64_t kTagMask = ~uint64_t{0} << kTagShift;
  static uint64_t tag(uint64_t k) { return k << kTagShift; }
  uint64_t word_;
};

// What a rank shows of itself: the last round whose outcome it observed, and the hits posted since.
class Lane {
 public:
  explicit Lane(uint64_t word) : word_(word) {}
  Lane(uint64_t observed, uint32_t hits) : word_(observed << 32 | hits) {}
  uint64_t word() const { return word_; }
  bool observed(uint64_t k) const { return word_ >> 32 == (k & 0xffffffffu); }
  uint32_t hits() const { return static_cast<uint32_t>(word_); }

 private:
  uint64_t word_;
};

class ControlPage {
 public:
  static constexpr int kMaxRanks = 1024;
  static constexpr size_t kRecordBytes = 2048;
  static constexpr size_t kPayloadBytes = 32768;
  // Of records and payloads. A rank may read those of round k while a peer, whom a mismatch has let past k + 1, writes its
  // own of k + 2.
  static constexpr uint64_t kSlots = 3;

  // One per parity. The posts of the first ranks share the decision's cache line: a small communicator decides in one.
  struct Round {
    std::atomic<uint64_t> decision;
    std::atomic<uint64_t> posted[1];  // nranks of them
  };
  struct alignas(kCacheLine) Rank {
    std::atomic<uint64_t> lane;
    std::atomic<uint32_t> departed;
    alignas(kCacheLine) std::atomic<uint32_t> doorbell;  // what a sleeping rank waits on
    std::atomic<uint32_t> sleeping;
    std::atomic<uint64_t> launches;  // of kernels, outside graphs
    std::atomic<uint32_t> ctas;      // that the communicator holds for it in the ledger of its GPU
    std::atomic<uint32_t> ncclFailed;  // number of the operation that NCCL's windows failed in there
  };
  // Staged chunks between one sender and one receiver, counted for ever.
  struct alignas(kCacheLine) Chunks {
    std::atomic<uint32_t> ready;                          // written by the sender
    alignas(kCacheLine) std::atomic<uint32_t> consumed;  // written by the receiver
  };

  ControlPage(std::byte* base, int nranks)
      : base_(base),
        nranks_(static_cast<size_t>(nranks)),
        roundBytes_(alignUp((1 + nranks_) * sizeof(std::atomic<uint64_t>), kCacheLine)),
        ranksOffset_(kCacheLine + 2 * roundBytes_),
        chunksOffset_(ranksOffset_ + nranks_ * sizeof(Rank)),
        slotsOffset_(alignUp(chunksOffset_ + nranks_ * nranks_ * sizeof(Chunks), 4096)) {}

  static size_t bytes(int nranks) {
    const ControlPage page(nullptr, nranks);
    return page.slotsOffset_ + kSlots * page.nranks_ * kSlotBytes;
  }

  std::atomic<uint32_t>& aborted() const { return *at<std::atomic<uint32_t>>(0); }  // rank + 1 of who aborted
  Round& round(uint64_t k) const { return *at<Round>(kCacheLine + (k & 1) * roundBytes_); }
  Rank& rank(int r) const { return *at<Rank>(ranksOffset_ + static_cast<size_t>(r) * sizeof(Rank)); }
  Chunks& chunks(int sender, int receiver) const {
    return *at<Chunks>(chunksOffset_ +
                       (static_cast<size_t>(sender) * nranks_ + static_cast<size_t>(receiver)) * sizeof(Chunks));
  }
  std::byte* record(uint64_t k, int r) const {
    return base_ + slotsOffset_ + (k % kSlots * nranks_ + static_cast<size_t>(r)) * kSlotBytes;
  }
  std::byte* payload(uint64_t k, int r) const { return record(k, r) + kRecordBytes; }

 private:
  static constexpr size_t kSlotBytes = kRecordBytes + kPayloadBytes;
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  std::byte* base_;
  size_t nranks_, roundBytes_, ranksOffset_, chunksOffset_, slotsOffset_;
};

}  // namespace ulysses
