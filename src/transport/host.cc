#include "transport/host.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "bootstrap/control_page.h"
#include "transport/host_copy.h"

namespace ulysses {
namespace {

constexpr size_t kChunkBytes = 256u << 10;      // stays in the cache between sender and receiver
constexpr size_t kInlineBytes = 16u << 10;      // beside the contract: one round instead of two
constexpr size_t kTileBytes = 32u << 10;        // of one peer's share, when rows go to all peers in turn
constexpr size_t kStreamMinBytes = 2u << 20;   // what a cache holds is better left in it

const std::byte* bytes(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* bytes(void* p) { return static_cast<std::byte*>(p); }

// Copies bytes [begin, end) of the payload of all operands together, to (pack) or from (unpack) `payload`, which holds
// that range alone.
template <class Pick, class Copy>
void forPayloadRange(const std::vector<Share>& shares, size_t begin, size_t end, Pick map, Copy copy) {
  size_t base = 0;
  for (size_t i = 0; i < shares.size() && base < end; ++i) {
    const layout::PayloadMap& m = map(shares[i]);
    const size_t from = std::max(begin, base), to = std::min(end, base + m.bytes());
    if (from < to) m.forEachPiece(from - base, to - base, [&](const layout::BlockCopy& piece) { copy(i, base, piece); });
    base += m.bytes();
  }
}

void packRange(const std::vector<Share>& shares, const void* const in[], size_t begin, size_t end, std::byte* payload) {
  forPayloadRange(
      shares, begin, end, [](const Share& s) -> const layout::PayloadMap& { return s.pack; },
      [&](size_t operand, size_t base, layout::BlockCopy piece) {
        piece.dstOffset = piece.dstOffset + base - begin;
        copyBlock(piece, bytes(in[operand]), payload, Store::Cached);
      });
}

void unpackRange(const std::vector<Share>& shares, const std::byte* payload, size_t begin, size_t end,
                 void* const out[], Store store) {
  forPayloadRange(
      shares, begin, end, [](const Share& s) -> const layout::PayloadMap& { return s.unpack; },
      [&](size_t operand, size_t base, layout::BlockCopy piece) {
        piece.srcOffset = piece.srcOffset + base - begin;
        copyBlock(piece, payload, bytes(out[operand]), store);
      });
}

// One rank's part of one transfer: whatever can move moves, in any order, until all has.
class Exchange {
 public:
  Exchange(const Transfer& transfer, Agreement& agreement, Registrar& registrar, const PeerMemory& peers,
           uint32_t staging, StagingShape shape)
      : t_(transfer),
        s_(transfer.schedule),
        agreement_(agreement),
        registrar_(registrar),
        peers_(peers),
        page_(*agreement.page()),
        staging_(staging),
        shape_(shape),
        sent_(static_cast<size_t>(s_.nranks)),
        taken_(static_cast<size_t>(s_.nranks)),
        store_(s_.largestSend >= kStreamMinBytes ? Store::Streaming : Store::Cached) {
    for (int p = 0; p < s_.nranks; ++p) {
      if (p == s_.rank) continue;
      sentBase_.push_back(page_.chunks(s_.rank, p).ready.load(std::memory_order_relaxed));
      takenBase_.push_back(page_.chunks(p, s_.rank).consumed.load(std::memory_order_relaxed));
    }
  }

  Status run() {
    const std::vector<int> receivers = stagedReceivers();
    const bool receiving = of(s_.rank).anyPlainOutput();
    bool ownDone = sendDirect(receivers.empty());
    const Status fetched = fetch();  // where it fails, others still wait for what is staged to them
    for (;;) {
      bool progress = false;
      int missing = -1;
      if (receiving) progress |= receive(missing);
      progress |= s_.broadcast ? sendToAll(receivers, missing) : send(receivers, missing);
      if (!progress && !ownDone) {  // the own share fills the first idle moment
        copyOwn();
        ownDone = progress = true;
      }
      if (progress) continue;
      if (missing < 0) break;
      ULYSSES_TRY(agreement_.idle(missing, t_.deadline));
    }
    storeFence();
    return fetched;
  }

 private:
  const Contract& of(int rank) const { return *t_.contracts[static_cast<size_t>(rank)]; }
  // Whether what rank `sender` has for `receiver` is neither written nor staged by the one, but fetched by the other.
  bool fetches(int receiver, int sender) const {
    return of(receiver).anyPlainOutput() && peers_.fetches(receiver, sender, s_.shortestRow);
  }

  const std::vector<Share>& shares(int peer) const { return s_.shares[static_cast<size_t>(peer)]; }
  size_t chunks(size_t payloadBytes) const { return shape_.chunkBytes == 0 ? 0 : ceilDiv(payloadBytes, shape_.chunkBytes); }
  size_t index(int peer) const { return static_cast<size_t>(peer < s_.rank ? peer : peer - 1); }

  // Tile by tile, and in each tile peers in turn: what a tile reads lies on the same pages for all of them. The next rank
  // comes first, so that not all write to the same one. The own share goes along where nothing is staged; says if so.
  bool sendDirect(bool withOwn) const {
    std::vector<int> peers;
    for (int i = 1; i <= s_.nranks; ++i) {
      const int p = (s_.rank + i) % s_.nranks;
      if (p == s_.rank ? withOwn : !of(p).anyPlainOutput()) peers.push_back(p);
    }
    for (size_t o = 0; o < s_.operands && !peers.empty(); ++o) {
      for (size_t tile = 0; tile < s_.largestPayload; tile += kTileBytes) {
        for (const int p : peers) {
          const layout::PayloadMap& direct = shares(p)[o].direct;
          if (tile >= direct.bytes()) continue;
          std::byte* out = p == s_.rank ? bytes(t_.out[o]) : registrar_.address(p, of(p).out[o]);
          direct.forEachPiece(tile, std::min(tile + kTileBytes, direct.bytes()),
                              [&](const layout::BlockCopy& c) { copyUnlessInPlace(c, bytes(t_.in[o]), out); });
        }
      }
    }
    return withOwn;
  }

  // All that this rank gets out of inputs that it can read.
  Status fetch() const {
    for (int i = 1; i < s_.nranks; ++i) {
      const int p = (s_.rank + s_.nranks - i) % s_.nranks;
      if (!fetches(s_.rank, p)) continue;
      for (size_t o = 0; o < s_.operands; ++o) {
        uint64_t src = 0;
        std::memcpy(&src, agreement_.payload(p) + o * sizeof src, sizeof src);
        ULYSSES_TRY(peers_.fetch(p, s_.copies(p, s_.rank, o), src, bytes(t_.out[o]), store_));
      }
    }
    return {};
  }

  std::vector<int> stagedReceivers() const {
    std::vector<int> receivers;
    for (int i = 1; i < s_.nranks; ++i) {
      const int p = (s_.rank + i) % s_.nranks;
      if (of(p).anyPlainOutput() && !fetches(p, s_.rank) && s_.sendBytes[static_cast<size_t>(p)] > 0)
        receivers.push_back(p);
    }
    return receivers;
  }

  // One chunk to every receiver that has a free slot.
  bool send(const std::vector<int>& receivers, int& missing) {
    bool progress = false;
    for (int p : receivers) {
      const size_t total = s_.sendBytes[static_cast<size_t>(p)];
      size_t& k = sent_[static_cast<size_t>(p)];
      if (k == chunks(total)) continue;
      if (!slotIsFree(p, k)) {
        missing = p;
        continue;
      }
      packChunk(p, k, p);
      announce(p, ++k);
      progress = true;
    }
    return progress;
  }

  // What all get is packed once, into this rank's own window, where they read it.
  bool sendToAll(const std::vector<int>& receivers, int& missing) {
    if (receivers.empty()) return false;
    const int any = receivers.front();
    size_t& k = sent_[static_cast<size_t>(any)];
    if (k == chunks(s_.sendBytes[static_cast<size_t>(any)])) return false;
    for (int p : receivers) {
      if (slotIsFree(p, k)) continue;
      missing = p;
      return false;
    }
    packChunk(any, k, s_.rank);
    ++k;
    for (int p : receivers) announce(p, k);
    return true;
  }

  bool slotIsFree(int receiver, size_t k) const {
    const uint32_t consumed = page_.chunks(s_.rank, receiver).consumed.load(std::memory_order_acquire);
    return static_cast<uint32_t>(k) - (consumed - sentBase_[index(receiver)]) < kStagingSlots;
  }

  void packChunk(int receiver, size_t k, int windowOf) const {
    const size_t begin = k * shape_.chunkBytes;
    const size_t end = std::min(s_.sendBytes[static_cast<size_t>(receiver)], begin + shape_.chunkBytes);
    packRange(shares(receiver), t_.in, begin, end, slot(windowOf, k, s_.rank));
  }

  void announce(int receiver, size_t k) {
    page_.chunks(s_.rank, receiver).ready.store(sentBase_[index(receiver)] + static_cast<uint32_t>(k),
                                                std::memory_order_release);
    agreement_.ring(receiver);
  }

  std::byte* slot(int windowOf, size_t k, int sender) const {
    return registrar_.base(windowOf, staging_) + shape_.offset(k % kStagingSlots, sender, s_.nranks);
  }

  // One chunk of every sender that has one ready.
  bool receive(int& missing) {
    bool progress = false;
    for (int i = 1; i < s_.nranks; ++i) {
      const int p = (s_.rank + s_.nranks - i) % s_.nranks;
      const size_t total = s_.recvBytes[static_cast<size_t>(p)];
      size_t& k = taken_[static_cast<size_t>(p)];
      if (k == chunks(total) || fetches(s_.rank, p)) continue;
      ControlPage::Chunks& flags = page_.chunks(p, s_.rank);
      const uint32_t ready = flags.ready.load(std::memory_order_acquire) - takenBase_[index(p)];
      if (ready == static_cast<uint32_t>(k)) {
        missing = p;
        continue;
      }
      const size_t begin = k * shape_.chunkBytes, end = std::min(total, begin + shape_.chunkBytes);
      unpackRange(shares(p), slot(s_.broadcast ? p : s_.rank, k, p), begin, end, t_.out, store_);
      flags.consumed.store(takenBase_[index(p)] + static_cast<uint32_t>(++k), std::memory_order_release);
      agreement_.ring(p);
      progress = true;
    }
    return progress;
  }

  void copyOwn() const {
    for (size_t o = 0; o < s_.operands; ++o)
      for (const layout::BlockCopy& c : shares(s_.rank)[o].direct.copies())
        copyUnlessInPlace(c, bytes(t_.in[o]), bytes(t_.out[o]));
  }

  void copyUnlessInPlace(const layout::BlockCopy& c, const std::byte* src, std::byte* dst) const {
    if (src + c.srcOffset != dst + c.dstOffset) copyBlock(c, src, dst, store_);
  }

  const Transfer& t_;
  const Schedule& s_;
  Agreement& agreement_;
  Registrar& registrar_;
  const PeerMemory& peers_;
  ControlPage& page_;
  const uint32_t staging_;
  const StagingShape shape_;
  std::vector<size_t> sent_, taken_;              // chunks so far, by peer
  std::vector<uint32_t> sentBase_, takenBase_;    // the counters at the start
  const Store store_;
};

}  // namespace

StagingShape StagingShape::of(size_t stagingBytes, int nranks) {
  const size_t share = stagingBytes / (kStagingSlots * static_cast<size_t>(nranks));
  return {share / kCacheLine * kCacheLine};
}

size_t StagingShape::wantedBytes(int nranks, size_t limit) {
  return std::min(limit, kStagingSlots * static_cast<size_t>(nranks) * kChunkBytes);
}

bool HostTransport::fitsInline(const Schedule& schedule) const {
  return schedule.largestPacked() <= std::min(kInlineBytes, agreement_.payloadCapacity());
}

void HostTransport::packInline(const Schedule& schedule, const void* const in[]) const {
  std::byte* at = agreement_.payloadArea();
  for (int p = 0; p < schedule.nranks; ++p) {
    const size_t n = schedule.sendBytes[static_cast<size_t>(p)];
    packRange(schedule.shares[static_cast<size_t>(p)], in, 0, n, at);
    if (schedule.broadcast) return;
    at += n;
  }
}

void HostTransport::fetchInline(const Schedule& schedule) const {
  constexpr size_t kMost = 1024;  // of one peer: what the judgement of the contracts takes time for
  for (int p = 0; p < schedule.nranks; ++p) {
    if (p == schedule.rank) continue;
    const std::byte* payload = agreement_.payload(p) + schedule.recvOffset[static_cast<size_t>(p)];
    for (size_t at = 0; at < std::min(kMost, schedule.recvBytes[static_cast<size_t>(p)]); at += kCacheLine)
      __builtin_prefetch(payload + at);
  }
}

void HostTransport::unpackInline(const Transfer& transfer) const {
  const Schedule& s = transfer.schedule;
  for (int p = 0; p < s.nranks; ++p) {
    const std::byte* payload = agreement_.payload(p) + s.recvOffset[static_cast<size_t>(p)];
    unpackRange(s.shares[static_cast<size_t>(p)], payload, 0, s.recvBytes[static_cast<size_t>(p)], transfer.out,
                Store::Cached);
  }
}

void HostTransport::showInputs(const Schedule& schedule, const void* const in[]) const {
  for (size_t o = 0; o < schedule.operands; ++o) {
    const auto address = reinterpret_cast<uint64_t>(in[o]);
    std::memcpy(agreement_.payloadArea() + o * sizeof address, &address, sizeof address);
  }
}

HostTransport::Ways HostTransport::waysOf(const Transfer& transfer) const {
  const Schedule& s = transfer.schedule;
  Ways ways;
  for (int receiver = 0; receiver < s.nranks; ++receiver) {
    if (!transfer.contracts[static_cast<size_t>(receiver)]->anyPlainOutput()) continue;
    for (int sender = 0; sender < s.nranks; ++sender)
      if (sender != receiver) (peers_.fetches(receiver, sender, s.shortestRow) ? ways.fetched : ways.staged) = true;
  }
  return ways;
}

Status HostTransport::exchange(const Transfer& transfer, uint32_t staging, size_t stagingBytes) {
  const StagingShape shape = StagingShape::of(stagingBytes, transfer.schedule.nranks);
  return Exchange(transfer, agreement_, registrar_, peers_, staging, shape).run();
}

}  // namespace ulysses
