// The kernels of the fused exchange. The protocol is that of tests/model/handshake.pml with entries by parity: a rank
// that finds a difference may then leave at once, for no peer can overwrite an entry that a slow CTA has yet to read.
#pragma once

#include "device/copy.cuh"
#include "device/exchange.h"
#include "device/sync.cuh"

namespace ulysses::device {

constexpr uint32_t kCachedBlocks = 64;
constexpr uint64_t kLittleUnits = 16;  // per thread

// What a CTA knows of its launch.
struct CtaState {
  uint32_t epoch;
  WorkTable table;
  Block cached[kCachedBlocks];
  const Block* blocks;                    // of the table: cached where they fit
  uint64_t contract[kMaxRanks];           // as the peers announced it
  uint64_t in[kMaxOperands];              // this rank's inputs
  uint64_t out[kMaxRanks][kMaxOperands];  // outputs: own, and those of direct peers
  bool staged[kMaxRanks];                 // receivers that are sent to through slots
};

__device__ __forceinline__ Flags* flagsOf(const Exchange& x, int rank) {
  return reinterpret_cast<Flags*>(x.channel.flags[rank]);
}
__device__ __forceinline__ Line* linesOfSender(const Exchange& x, int receiver, int sender, uint32_t epoch) {
  const uint64_t perSender = linesPerSender(x.channel.lineBytes);
  char* lines = x.channel.flags[receiver] + flagsBytes(0, 0);
  return reinterpret_cast<Line*>(lines) + ((epoch & 1) * x.channel.nranks + sender) * perSender;
}

// Tells every rank, this one included, that its output may be written from now on, and where. One CTA does.
__device__ __forceinline__ void announce(const Exchange& x) {
  const uint32_t items = 1 + x.operands;
  if (threadIdx.x >= items * x.channel.nranks) return;
  const uint32_t epoch = loadRelaxed(&x.channel.epoch->value) + 1;
  for (uint32_t i = threadIdx.x; i < items * x.channel.nranks; i += blockDim.x) {
    const uint32_t item = i % items;
    storeLineRelease(&flagsOf(x, i / items)->entry[epoch & 1][x.channel.rank][item],
                     item == 0 ? x.contract : x.location[item - 1], epoch);
  }
}

// This launch's epoch, its entry, and the table.
__device__ __forceinline__ void enter(const Exchange& x, CtaState& cta) {
  const auto copy = [](void* to, const void* from, uint32_t bytes) {
    for (uint32_t i = threadIdx.x; i < bytes / sizeof(uint64_t); i += blockDim.x) {
      static_cast<uint64_t*>(to)[i] = static_cast<const uint64_t*>(from)[i];
    }
  };
  if (blockIdx.x == 0) announce(x);
  if (threadIdx.x == blockDim.x - 1) cta.epoch = loadRelaxed(&x.channel.epoch->value) + 1;
  copy(&cta.table, x.table, sizeof(WorkTable));
  const bool fits = x.blocks <= kCachedBlocks;
  if (fits) copy(cta.cached, x.table->blocks(), x.blocks * sizeof(Block));
  if (threadIdx.x == 0) cta.blocks = fits ? cta.cached : x.table->blocks();
  for (uint32_t i = threadIdx.x; i < x.operands; i += blockDim.x) {
    cta.in[i] = reinterpret_cast<uint64_t>(x.in[i]);
    cta.out[x.channel.rank][i] = reinterpret_cast<uint64_t>(x.out[i]);
  }
  __syncthreads();
}

// Every CTA does, once, anywhere behind enter(): the last one moves the epoch on for the next launch. Best while other
// warps wait for peers, as the fence and the ticket take as long as an entry does.
__device__ __forceinline__ void takeTicket(const Exchange& x, const CtaState& cta) {
  if (threadIdx.x != blockDim.x - 1) return;
  __threadfence();
  if (atomicInc(&x.channel.epoch->tickets, gridDim.x - 1) == gridDim.x - 1) {
    atomicExch(&x.channel.epoch->value, cta.epoch);
  }
}

__device__ __forceinline__ void reportError(const Channel& channel, uint32_t epoch, KernelError error, int rank) {
  volatile HostWords* host = channel.host;
  host->errorEpoch = epoch;
  host->errorRank = rank;
  __threadfence_system();
  host->error = static_cast<uint32_t>(error);
}

// Reads the entries of all ranks: contracts, and where the outputs lie. Only when all contracts are this rank's own, and
// no call is wrong on its rank (contract 0), may anything be stored.
__device__ __forceinline__ bool readEntries(const Exchange& x, CtaState& cta) {
  const int rank = x.channel.rank, nranks = x.channel.nranks;
  const uint32_t items = 1 + x.operands;
  bool arrived = true, agreed = true;
  for (uint32_t i = threadIdx.x; i < items * nranks; i += blockDim.x) {
    const int peer = i / items;
    const uint32_t item = i % items;
    const Line* entry = flagsOf(x, rank)->entry[cta.epoch & 1][peer];
    const auto came = [&](uint32_t which, uint64_t& value) {
      const Line line = loadLineAcquire(&entry[which]);
      value = payloadOf(line);
      return isOf(line, cta.epoch);
    };
    uint64_t value = kPlain;
    arrived &= await(x.channel.host, [&] {
      if (came(item, value)) return true;
      // A rank with another contract, or another wrong call, may have fewer operands: the location would never come.
      uint64_t contract;
      const bool other = item > 0 && came(0, contract) && (contract != x.contract || contract == 0);
      if (other) value = kPlain;
      return other;
    });
    if (item == 0) {
      agreed &= value == x.contract && value != 0;
      cta.contract[peer] = value;
      continue;
    }
    if (item == 1) cta.staged[peer] = value == kPlain;
    if (peer != rank && value != kPlain && arrived) {
      cta.out[peer][item - 1] = x.channel.windows[windowOf(value)].base[peer] + offsetOf(value);
    }
  }
  if (__syncthreads_and(arrived && agreed)) return true;
  if (!__syncthreads_and(arrived)) {
    if (threadIdx.x == 0) reportError(x.channel, cta.epoch, KernelError::Aborted, -1);
  } else if (blockIdx.x == 0 && threadIdx.x == 0) {
    int first = 1;
    while (first < nranks && cta.contract[first] == cta.contract[0]) ++first;
    // Where the call is wrong on every rank, every host knows.
    if (first < nranks) reportError(x.channel, cta.epoch, KernelError::Mismatch, cta.contract[0] == 0 ? 0 : first);
  }
  return false;
}

// The warps of a CTA that do one job of several, with a barrier of their own.
struct Crew {
  uint32_t job, barrier, lane, lanes;

  // Shares the CTA's warps among `jobs`, at most one per warp.
  __device__ __forceinline__ static Crew of(uint32_t jobs) {
    const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const uint32_t job = ((warp + 1) * jobs - 1) / warps;  // its warps: [job * warps / jobs, (job + 1) * warps / jobs)
    const uint32_t first = job * warps / jobs, end = (job + 1) * warps / jobs;
    return {job, 1 + job, threadIdx.x - first * 32, (end - first) * 32};
  }

  __device__ __forceinline__ bool leads() const { return lane == 0; }
  // Waits for the whole crew; whether all said yes.
  __device__ __forceinline__ bool all(bool yes) const {
    uint32_t result;
    asm volatile(
        "{\n .reg .pred mine, everyone;\n setp.ne.u32 mine, %1, 0;\n"
        " barrier.cta.red.and.pred everyone, %2, %3, mine;\n selp.u32 %0, 1, 0, everyone;\n}"
        : "=r"(result)
        : "r"(static_cast<uint32_t>(yes)), "r"(barrier), "r"(lanes)
        : "memory");
    return result != 0;
  }
};

// One launch of one CTA, direct or staged by receiver. Every CTA has its own lane to every peer: it waits for no other
// CTA of its rank.
template <int kInFlight, class Memory>
struct Lanes {
  const Exchange& x;
  CtaState& cta;
  const int rank = x.channel.rank, nranks = x.channel.nranks;

  __device__ __forceinline__ uint32_t chunks(const Stream& stream) const {
    return static_cast<uint32_t>(chunksOf(stream.bytes, x.tileBytes, blockIdx.x, gridDim.x));
  }
  __device__ __forceinline__ void copyPart(const Stream& stream, const Tile& tile, const Place& src, const Place& dst,
                                           uint32_t lane, uint32_t lanes) {
    copyTile<kInFlight, Memory>(cta.blocks + stream.firstBlock, stream.blocks, tile, src, dst, lane, lanes);
  }
  __device__ __forceinline__ bool awaitFlag(const Crew& crew, const uint64_t* flag, uint32_t count) {
    const uint64_t value = flagValue(cta.epoch, count);
    return crew.all(!crew.leads() || await(x.channel.host, [&] { return reached(flag, value); }));
  }

  // A direct peer's stream, or the own share, with `lanes` lanes of every CTA.
  __device__ __forceinline__ void copyWhole(int peer, uint32_t lane, uint32_t lanes) {
    const Stream& stream = cta.table.send[peer];
    copyPart(stream, {0, stream.bytes}, placeOf(cta.in), placeOf(cta.out[peer]), blockIdx.x * lanes + lane,
             gridDim.x * lanes);
  }

  // Everything that needs no slot, the own share included. Where there is little, each peer has warps of its own, so
  // that latencies do not add up; else all warps go from peer to peer, each rank starting at another.
  __device__ __forceinline__ void copyDirect() {
    uint32_t n = 0;
    uint64_t bytes = 0;
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer != rank && cta.staged[peer]) continue;
      ++n;
      bytes += cta.table.send[peer].bytes;
    }
    const bool little = bytes <= kLittleUnits * kUnit * gridDim.x * blockDim.x && n <= blockDim.x / 32;
    const Crew crew = little ? Crew::of(n) : Crew{0, 0, threadIdx.x, blockDim.x};
    uint32_t job = 0;
    for (int step = 1; step <= nranks; ++step) {
      const int peer = (rank + step) % nranks;
      if (peer != rank && cta.staged[peer]) continue;
      if (!little || job++ == crew.job) copyWhole(peer, crew.lane, crew.lanes);
    }
  }

  // This CTA's chunks for a staged peer, each as soon as its slot is free.
  __device__ bool push(int peer, const Crew& crew) {
    const Stream& stream = cta.table.send[peer];
    const uint32_t n = chunks(stream);
    uint64_t* landed = &flagsOf(x, peer)->landed[rank][blockIdx.x];
    for (uint32_t k = 0; k < n; ++k) {
      if (k >= kSlots && !awaitFlag(crew, &flagsOf(x, rank)->credit[peer][blockIdx.x], k - kSlots + 1)) return false;
      const Tile tile = tileOf(stream.bytes, x.tileBytes, k, blockIdx.x, gridDim.x);
      const uint64_t slot = reinterpret_cast<uint64_t>(x.channel.staging[peer]) +
                            slotOffset(peer, rank, blockIdx.x, gridDim.x, k, x.tileBytes);
      copyPart(stream, tile, placeOf(cta.in), slotPlace(slot, tile.begin), crew.lane, crew.lanes);
      crew.all(true);
      if (crew.leads() && k + 1 < n) storeRelease(landed, flagValue(cta.epoch, k + 1));
    }
    if (crew.leads()) storeRelease(landed, flagValue(cta.epoch, kAllLanded));
    return true;
  }

  // A peer's chunks for this CTA from their slots to this rank's output.
  __device__ bool drain(int peer, const Crew& crew) {
    const Stream& stream = cta.table.recv[peer];
    const uint32_t n = chunks(stream);
    for (uint32_t k = 0; k < n; ++k) {
      if (!awaitFlag(crew, &flagsOf(x, rank)->landed[peer][blockIdx.x], k + 1)) return false;
      const Tile tile = tileOf(stream.bytes, x.tileBytes, k, blockIdx.x, gridDim.x);
      const uint64_t slot = reinterpret_cast<uint64_t>(x.channel.staging[rank]) +
                            slotOffset(rank, peer, blockIdx.x, gridDim.x, k, x.tileBytes);
      copyPart(stream, tile, slotPlace(slot, tile.begin), placeOf(cta.out[rank]), crew.lane, crew.lanes);
      crew.all(true);
      if (crew.leads() && k + kSlots < n) {
        storeRelease(&flagsOf(x, peer)->credit[rank][blockIdx.x], flagValue(cta.epoch, k + 1));
      }
    }
    return true;
  }

  // Pushes and drains run beside each other, so chunk k + 1 is on its way while chunk k is copied out.
  __device__ __forceinline__ bool runStaged() {
    const int drains = cta.staged[rank] ? nranks - 1 : 0;
    int pushes = 0;
    for (int peer = 0; peer < nranks; ++peer) pushes += peer != rank && cta.staged[peer];
    if (pushes + drains == 0) return true;
    const Crew crew = Crew::of(pushes + drains);
    const int job = crew.job;
    if (job < drains) return drain((rank + nranks - 1 - job) % nranks, crew);
    int peer = rank;
    for (int left = job - drains; left >= 0; left -= cta.staged[peer]) peer = (peer + 1) % nranks;
    return push(peer, crew);
  }

  // Threads of the first warp speak for one peer each.
  __device__ __forceinline__ bool speaksForPeer() const {
    return threadIdx.x < static_cast<uint32_t>(nranks) && static_cast<int>(threadIdx.x) != rank;
  }
  // To direct peers: this CTA's share has landed.
  __device__ __forceinline__ void announceDirect() {
    if (speaksForPeer() && !cta.staged[threadIdx.x])
      storeRelease(&flagsOf(x, threadIdx.x)->landed[rank][blockIdx.x], flagValue(cta.epoch, kAllLanded));
  }
  // Everything from every peer's CTA of this number.
  __device__ __forceinline__ bool awaitAll() {
    if (!speaksForPeer()) return true;
    const uint64_t* landed = &flagsOf(x, rank)->landed[threadIdx.x][blockIdx.x];
    return await(x.channel.host, [&] { return reached(landed, flagValue(cta.epoch, kAllLanded)); });
  }

  __device__ __forceinline__ void run() {
    copyDirect();
    __syncthreads();
    announceDirect();
    takeTicket(x, cta);
    if (!runStaged() || !awaitAll()) reportError(x.channel, cta.epoch, KernelError::Aborted, -1);
  }
};

template <int kInFlight, class Memory>
__global__ void __launch_bounds__(kThreads, 1) exchangeKernel(const __grid_constant__ Exchange x) {
  __shared__ CtaState cta;
  enter(x, cta);
  if (!readEntries(x, cta)) return takeTicket(x, cta);
  Lanes<kInFlight, Memory>{x, cta}.run();
}

// Payload by lines. They need no permission: this parity's were last written two epochs ago, and this rank has
// been through the epoch between, which took the peer's entry of that epoch and so the end of its kernel before.

// A lane takes two lines at a time, a unit of payload: units never reach over two blocks.
//
// Calls visit(address, first, bytes) for what unit `unit` of a stream is made of on one side, `first` counting its bytes:
// once where one aligned access does, else by 8 bytes or byte by byte.
template <class Visit>
__device__ __forceinline__ void visitUnit(const Block* blocks, uint32_t n, uint32_t unit, const uint64_t* operands,
                                          Side Block::*sideOf, const Visit& visit) {
  const uint64_t at = unit * kUnit;
  const Block& block = blocks[blockAt(blocks, n, at)];
  if (at < block.begin) return;  // between two blocks
  const Side& side = block.*sideOf;
  const uint64_t base = operands[block.operand], left = block.bytes() - (at - block.begin);
  const uint32_t first = static_cast<uint32_t>(at - block.begin), rowBytes = static_cast<uint32_t>(block.rowBytes),
                 rows = static_cast<uint32_t>(block.rows);
  uint32_t row = first / rowBytes, column = first % rowBytes, count = row / rows;
  row %= rows;
  uint64_t address = base + side.offset + count * side.step + row * side.pitch + column;
  const uint64_t all = base | side.offset | side.pitch | side.step | block.rowBytes;
  if (all % kUnit == 0) {
    visit(address, 0, static_cast<uint32_t>(kUnit));
    return;
  }
  const uint32_t bytes = all % kLineBytes == 0 ? static_cast<uint32_t>(kLineBytes) : 1;
  for (uint32_t i = 0; i < kUnit && i < left; i += bytes) {
    visit(address, i, bytes);
    address += bytes;
    if ((column += bytes) < rowBytes) continue;
    column = 0;
    address += side.pitch - rowBytes;
    if (++row < rows) continue;
    row = 0;
    address += side.step - rows * side.pitch;
  }
}

__device__ __forceinline__ void sendUnit(const Exchange& x, const CtaState& cta, int peer, uint32_t unit) {
  const Stream& stream = cta.table.send[peer];
  Word payload{0, 0};
  visitUnit(cta.blocks + stream.firstBlock, stream.blocks, unit, cta.in, &Block::src,
            [&](uint64_t address, uint32_t first, uint32_t bytes) {
              uint64_t& half = first < kLineBytes ? payload.low : payload.high;
              if (bytes == kUnit)
                payload = *reinterpret_cast<const Word*>(address);
              else if (bytes == kLineBytes)
                half = *reinterpret_cast<const uint64_t*>(address);
              else
                half |= static_cast<uint64_t>(*reinterpret_cast<const uint8_t*>(address)) << (8 * (first % kLineBytes));
            });
  Line* lines = linesOfSender(x, peer, x.channel.rank, cta.epoch) + 2 * unit;
  storeLine(&lines[0], payload.low, cta.epoch);
  storeLine(&lines[1], payload.high, cta.epoch);
}

__device__ __forceinline__ void placeUnit(const Exchange& x, const CtaState& cta, int peer, uint32_t unit,
                                          const Word& payload) {
  const Stream& stream = cta.table.recv[peer];
  visitUnit(cta.blocks + stream.firstBlock, stream.blocks, unit, cta.out[x.channel.rank], &Block::dst,
            [&](uint64_t address, uint32_t first, uint32_t bytes) {
              const uint64_t half = first < kLineBytes ? payload.low : payload.high;
              if (bytes == kUnit)
                *reinterpret_cast<Word*>(address) = payload;
              else if (bytes == kLineBytes)
                *reinterpret_cast<uint64_t*>(address) = half;
              else
                *reinterpret_cast<uint8_t*>(address) = static_cast<uint8_t>(half >> (8 * (first % kLineBytes)));
            });
}

// Unit `index` of the streams of `peers` one after the other, the next rank's first: whose it is, and which of that
// stream. Peers are bits by rank, never this rank's own.
struct UnitOf {
  int peer;
  uint32_t unit;
};
__device__ __forceinline__ uint32_t unitsOf(const Stream& stream) {
  return static_cast<uint32_t>((stream.bytes + kUnit - 1) / kUnit);
}
__device__ __forceinline__ UnitOf findUnit(const Stream* streams, uint32_t peers, int rank, int nranks, uint32_t index) {
  int peer = rank;
  for (int step = 1; step < nranks; ++step) {
    peer = peer + 1 == nranks ? 0 : peer + 1;
    if ((peers >> peer & 1) == 0) continue;
    const uint32_t units = unitsOf(streams[peer]);
    if (index < units) break;
    index -= units;
  }
  return {peer, index};
}
__device__ __forceinline__ uint32_t countUnits(const Stream* streams, uint32_t peers, int nranks) {
  uint32_t units = 0;
  for (int peer = 0; peer < nranks; ++peer) units += (peers >> peer & 1) != 0 ? unitsOf(streams[peer]) : 0;
  return units;
}
__device__ __forceinline__ uint32_t everyPeer(const Exchange& x) {
  return ((1u << x.channel.nranks) - 1) & ~(1u << x.channel.rank);
}

__device__ __forceinline__ void sendLines(const Exchange& x, const CtaState& cta, uint32_t peers) {
  if (peers == 0) return;
  const int rank = x.channel.rank, nranks = x.channel.nranks;
  const uint32_t lane = blockIdx.x * blockDim.x + threadIdx.x, lanes = gridDim.x * blockDim.x;
  const uint32_t sends = countUnits(cta.table.send, peers, nranks);
  for (uint32_t i = lane; i < sends; i += lanes) {
    const UnitOf found = findUnit(cta.table.send, peers, rank, nranks, i);
    sendUnit(x, cta, found.peer, found.unit);
  }
}

// Everything from every peer; false when the host aborts.
template <int kInFlight>
__device__ __forceinline__ bool receiveLines(const Exchange& x, const CtaState& cta) {
  const int rank = x.channel.rank, nranks = x.channel.nranks;
  const uint32_t lane = blockIdx.x * blockDim.x + threadIdx.x, lanes = gridDim.x * blockDim.x, peers = everyPeer(x);
  const uint32_t receives = countUnits(cta.table.recv, peers, nranks);
  for (uint32_t i = lane; i < receives; i += kInFlight * lanes) {
    UnitOf found[kInFlight]{};
    Line lines[kInFlight][2];
    // Of the last unit, the second line may be nothing's: it is sent all the same.
    const auto load = [&](int j) {
      const Line* from = linesOfSender(x, rank, found[j].peer, cta.epoch) + 2 * found[j].unit;
      lines[j][0] = loadLine(&from[0]);
      lines[j][1] = loadLine(&from[1]);
    };
    ULYSSES_UNROLL
    for (int j = 0; j < kInFlight; ++j) {
      if (i + j * lanes >= receives) continue;
      found[j] = findUnit(cta.table.recv, peers, rank, nranks, i + j * lanes);
      load(j);
    }
    ULYSSES_UNROLL
    for (int j = 0; j < kInFlight; ++j) {
      if (i + j * lanes >= receives) continue;
      const bool arrived = await(x.channel.host, [&] {
        if (isOf(lines[j][0], cta.epoch) && isOf(lines[j][1], cta.epoch)) return true;
        load(j);
        return false;
      });
      if (!arrived) return false;
      placeUnit(x, cta, found[j].peer, found[j].unit, {payloadOf(lines[j][0]), payloadOf(lines[j][1])});
    }
  }
  return true;
}

template <int kInFlight, class Memory>
__global__ void __launch_bounds__(kThreads, 1) smallExchangeKernel(const __grid_constant__ Exchange x) {
  __shared__ CtaState cta;
  enter(x, cta);
  if (x.contract != 0) sendLines(x, cta, everyPeer(x));  // a wrong call's inputs are not read
  if (!readEntries(x, cta)) return takeTicket(x, cta);
  // From the last lane on: the first ones are busy with lines.
  const uint32_t lane = blockIdx.x * blockDim.x + threadIdx.x, lanes = gridDim.x * blockDim.x;
  const Stream& own = cta.table.send[x.channel.rank];
  copyTile<kInFlight, Memory>(cta.blocks + own.firstBlock, own.blocks, {0, own.bytes}, placeOf(cta.in),
                              placeOf(cta.out[x.channel.rank]), lanes - 1 - lane, lanes);
  takeTicket(x, cta);
  if (!receiveLines<kInFlight / 2>(x, cta)) reportError(x.channel, cta.epoch, KernelError::Aborted, -1);
}

// Direct where a receiver announces it, as exchangeKernel; else by lines, which saves the handshakes of slots. Lines
// follow the entries here: what is sent directly would otherwise have been sent twice.
template <int kInFlight, class Memory>
__global__ void __launch_bounds__(kThreads, 1) lineExchangeKernel(const __grid_constant__ Exchange x) {
  __shared__ CtaState cta;
  enter(x, cta);
  if (!readEntries(x, cta)) return takeTicket(x, cta);
  uint32_t staged = 0;
  for (int peer = 0; peer < x.channel.nranks; ++peer) staged |= (cta.staged[peer] ? 1u : 0u) << peer;
  sendLines(x, cta, staged & everyPeer(x));
  Lanes<kInFlight, Memory> lanes{x, cta};
  lanes.copyDirect();
  __syncthreads();
  lanes.announceDirect();
  takeTicket(x, cta);
  const bool arrived = cta.staged[x.channel.rank] ? receiveLines<kInFlight / 2>(x, cta) : lanes.awaitAll();
  if (!arrived) reportError(x.channel, cta.epoch, KernelError::Aborted, -1);
}

}  // namespace ulysses::device
