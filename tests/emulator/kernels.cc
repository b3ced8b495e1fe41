// What the kernels do, on the thread of a stream: the same handshakes through the same flags (device/exchange.cuh),
// with one thread in place of all CTAs, which goes from one to another.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "device/cast.h"
#include "device/copy.h"
#include "device/exchange.h"
#include "device/flags.h"
#include "device/staging_copy.h"
#include "emulator/runtime.h"
#include "gpu/support/pattern.h"
#include "gpu/support/stale.h"

namespace ulysses::device {
namespace {

struct PlainMemory {
  static Word load(uint64_t address) {
    Word word;
    std::memcpy(&word, reinterpret_cast<const void*>(address), 16);
    return word;
  }
  static void store(uint64_t address, const Word& word) { std::memcpy(reinterpret_cast<void*>(address), &word, 16); }
  static void copyNarrow(uint64_t dst, uint64_t src, uint32_t bytes) {
    std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
  }
};

void copyAll(const Block* blocks, const Stream& stream, const Tile& tile, const Place& src, const Place& dst) {
  copyTile<4, PlainMemory>(blocks + stream.firstBlock, stream.blocks, tile, src, dst, 0, 1);
}

uint64_t load(const uint64_t* flag) {
  return std::atomic_ref(*const_cast<uint64_t*>(flag)).load(std::memory_order_acquire);
}
void store(uint64_t* flag, uint64_t value) {
  std::atomic_ref(*flag).store(value, std::memory_order_release);
}
uint64_t flagValue(uint32_t epoch, uint32_t count) {
  return static_cast<uint64_t>(epoch) << 32 | count;
}
bool reached(const uint64_t* flag, uint64_t value) {
  return static_cast<int64_t>(load(flag) - value) >= 0;
}

void storeLine(Line* line, uint64_t payload, uint32_t epoch) {
  auto* words = reinterpret_cast<uint64_t*>(line);
  store(&words[0], static_cast<uint64_t>(epoch) << 32 | static_cast<uint32_t>(payload));
  store(&words[1], static_cast<uint64_t>(epoch) << 32 | payload >> 32);
}
bool loadLine(const Line* line, uint32_t epoch, uint64_t& payload) {
  const auto* words = reinterpret_cast<const uint64_t*>(line);
  const uint64_t low = load(&words[0]), high = load(&words[1]);
  payload = high << 32 | static_cast<uint32_t>(low);
  return low >> 32 == epoch && high >> 32 == epoch;
}

const WorkTable kNoTable{};

// What a kernel is about to use. A GPU ends the process, too, but does not say so well what it was.
void expectReached(int gpu, const void* ptr, const char* what) {
  if (emulator::reaches(gpu, ptr)) return;
  std::fprintf(stderr, "emulated GPU %d: %s at %p can't be reached\n", gpu, what, ptr);
  std::abort();
}
void expectReached(int gpu, uint64_t address, const char* what) {
  expectReached(gpu, reinterpret_cast<const void*>(address), what);
}

// Spins until arrived(); false when the host aborts.
template <class Arrived>
bool await(const Channel& channel, const Arrived& arrived) {
  for (int spins = 0; !arrived(); ++spins) {
    if (std::atomic_ref(channel.host->abort).load() != 0) return false;
    spins < 100 ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

void reportError(const Channel& channel, uint32_t epoch, KernelError error, int by) {
  channel.host->errorEpoch = epoch;
  channel.host->errorRank = by;
  std::atomic_ref(channel.host->error).store(static_cast<uint32_t>(error));
}

class Launch {
 public:
  Launch(const Exchange& exchange, int gpu)
      : x(exchange),
        gpu(gpu),
        table(exchange.table != nullptr ? *exchange.table : kNoTable),
        blocks(table.blocks()),
        rank(x.channel.rank),
        nranks(x.channel.nranks) {
    for (int p = 0; p < nranks; ++p) expectReached(gpu, x.channel.flags[p], "flags");
    expectReached(gpu, x.channel.epoch, "the epoch");
    expectReached(gpu, x.channel.host, "the host's words");
    if (exchange.table != nullptr) expectReached(gpu, exchange.table, "the table");
  }

  // Entry alone, of a launch whose bytes copy engines move.
  void enter(uint64_t made) {
    announce();
    readEntries();
    uint32_t senders = 0;
    for (int p = 0; p < nranks; ++p)
      if (p != rank && contract[p] == made) senders |= 1u << p;
    x.channel.epoch->senders = senders;
  }

  void run(bool small) {
    announce();
    for (int i = 0; i < x.operands; ++i) {
      in[i] = reinterpret_cast<uint64_t>(x.in[i]);
      out[rank][i] = reinterpret_cast<uint64_t>(x.out[i]);
    }
    const bool lines = !small && x.tileBytes == 0;
    for (int p = 0; p < nranks && small && x.contract != 0; ++p) sendLines(p);
    if (!readEntries()) return;
    copyTo(rank);
    for (int p = 0; p < nranks && lines; ++p) staged[p] ? sendLines(p) : sendDirectly(p);
    const bool all = small || (lines && staged[rank]) ? receiveLines() : lines ? awaitAll() : runChunks();
    if (!all) reportError(KernelError::Aborted, -1);
  }

 private:
  void announce() {
    epoch = x.channel.epoch->value + 1;
    for (int p = 0; p < nranks; ++p)
      for (int item = 0; item <= x.operands; ++item)
        storeLine(&flagsOf(p)->entry[epoch & 1][rank][item], item == 0 ? x.contract : x.location[item - 1], epoch);
    x.channel.epoch->value = epoch;
  }
  Flags* flagsOf(int r) const { return reinterpret_cast<Flags*>(x.channel.flags[r]); }
  Line* linesOfSender(int receiver, int sender) const {
    char* lines = x.channel.flags[receiver] + flagsBytes(0, 0);
    return reinterpret_cast<Line*>(lines) +
           ((epoch & 1) * static_cast<uint64_t>(nranks) + static_cast<uint64_t>(sender)) *
               linesPerSender(x.channel.lineBytes);
  }
  template <class Arrived>
  bool await(const Arrived& arrived) const {
    return device::await(x.channel, arrived);
  }
  void reportError(KernelError error, int by) const { device::reportError(x.channel, epoch, error, by); }

  bool readEntries() {
    bool agreed = true;
    for (int p = 0; p < nranks; ++p) {
      const Line* entry = flagsOf(rank)->entry[epoch & 1][p];
      if (!await([&] { return loadLine(&entry[0], epoch, contract[p]); }))
        return reportError(KernelError::Aborted, -1), false;
      agreed = agreed && contract[p] == x.contract && contract[p] != 0;
      if (contract[p] != x.contract || contract[p] == 0) continue;  // it may have fewer operands
      for (int i = 0; i < x.operands; ++i) {
        uint64_t location = kPlain;
        if (!await([&] { return loadLine(&entry[1 + i], epoch, location); }))
          return reportError(KernelError::Aborted, -1), false;
        if (i == 0) staged[p] = location == kPlain;
        if (p != rank && location != kPlain)
          out[p][i] = x.channel.windows[windowOf(location)].base[p] + offsetOf(location);
        if (p != rank && location != kPlain && table.send[p].bytes != 0) expectReached(gpu, out[p][i], "an output");
      }
    }
    if (agreed) return true;
    int first = 1;
    while (first < nranks && contract[first] == contract[0]) ++first;
    if (first < nranks) reportError(KernelError::Mismatch, contract[0] == 0 ? 0 : first);
    return false;
  }

  void copyTo(int peer) {
    copyAll(blocks, table.send[peer], {0, table.send[peer].bytes}, placeOf(in), placeOf(out[peer]));
  }

  void sendDirectly(int peer) {
    if (peer == rank) return;
    copyTo(peer);
    for (uint32_t cta = 0; cta < x.ctas; ++cta) store(&flagsOf(peer)->landed[rank][cta], flagValue(epoch, kAllLanded));
  }

  // A peer's chunks for or from one CTA; true when something was done.
  struct Job {
    int peer;
    uint32_t cta;
    uint64_t next = 0, chunks = 0;
    bool push = false, over = false;
  };
  bool advance(Job& j) {
    const Stream& stream = j.push ? table.send[j.peer] : table.recv[j.peer];
    if (j.next == j.chunks) {
      if (j.push) store(&flagsOf(j.peer)->landed[rank][j.cta], flagValue(epoch, kAllLanded));
      return j.over = true;
    }
    const auto done = static_cast<uint32_t>(j.next + 1);
    if (j.push && j.next >= kSlots && !reached(&flagsOf(rank)->credit[j.peer][j.cta], flagValue(epoch, done - kSlots)))
      return false;
    if (!j.push && !reached(&flagsOf(rank)->landed[j.peer][j.cta], flagValue(epoch, done))) return false;
    const Tile tile = tileOf(stream.bytes, x.tileBytes, j.next, j.cta, x.ctas);
    const int receiver = j.push ? j.peer : rank, sender = j.push ? rank : j.peer;
    const Place slot = slotPlace(reinterpret_cast<uint64_t>(x.channel.staging[receiver]) +
                                     slotOffset(receiver, sender, j.cta, x.ctas, j.next, x.tileBytes),
                                 tile.begin);
    copyAll(blocks, stream, tile, j.push ? placeOf(in) : slot, j.push ? slot : placeOf(out[rank]));
    ++j.next;
    if (j.push && j.next < j.chunks) store(&flagsOf(j.peer)->landed[rank][j.cta], flagValue(epoch, done));
    if (!j.push && j.next - 1 + kSlots < j.chunks) store(&flagsOf(j.peer)->credit[rank][j.cta], flagValue(epoch, done));
    return true;
  }

  bool runChunks() {
    std::vector<Job> jobs;
    for (int p = 0; p < nranks; ++p) {
      if (p == rank) continue;
      if (staged[p] && table.send[p].bytes != 0) expectReached(gpu, x.channel.staging[p], "staging");
      for (uint32_t cta = 0; cta < x.ctas; ++cta) {
        if (staged[rank])
          jobs.push_back({p, cta, 0, chunksOf(table.recv[p].bytes, x.tileBytes, cta, x.ctas), false, false});
        if (staged[p])
          jobs.push_back({p, cta, 0, chunksOf(table.send[p].bytes, x.tileBytes, cta, x.ctas), true, false});
      }
      if (!staged[p]) sendDirectly(p);
    }
    const auto step = [&] {
      bool all = true, some = false;
      for (Job& j : jobs) {
        if (j.over) continue;
        some = advance(j) || some;
        all = all && j.over;
      }
      return all || some;
    };
    const auto left = [&] {
      for (const Job& j : jobs)
        if (!j.over) return true;
      return false;
    };
    while (left())
      if (!await(step)) return false;
    return awaitAll();
  }
  bool awaitAll() {
    for (int p = 0; p < nranks; ++p)
      for (uint32_t cta = 0; cta < x.ctas && p != rank; ++cta)
        if (!await([&] { return reached(&flagsOf(rank)->landed[p][cta], flagValue(epoch, kAllLanded)); })) return false;
    return true;
  }

  // A stream as it is sent, one byte after the other.
  void sendLines(int p) {
    const Stream& stream = table.send[p];
    if (p == rank) return;
    std::vector<uint64_t> payload((stream.bytes + 31) / 8);
    copyAll(blocks, stream, {0, stream.bytes}, placeOf(in), slotPlace(reinterpret_cast<uint64_t>(payload.data()), 0));
    for (uint64_t line = 0; line < linesOf(stream.bytes); ++line)
      storeLine(linesOfSender(p, rank) + line, payload[line], epoch);
  }
  bool receiveLines() {
    for (int p = 0; p < nranks; ++p) {
      const Stream& stream = table.recv[p];
      if (p == rank) continue;
      std::vector<uint64_t> payload((stream.bytes + 31) / 8);
      for (uint64_t line = 0; line < linesOf(stream.bytes); ++line)
        if (!await([&] { return loadLine(linesOfSender(rank, p) + line, epoch, payload[line]); })) return false;
      copyAll(blocks, stream, {0, stream.bytes}, slotPlace(reinterpret_cast<uint64_t>(payload.data()), 0),
              placeOf(out[rank]));
    }
    return true;
  }

  const Exchange& x;
  const int gpu;
  const WorkTable& table;
  const Block* blocks;
  const int rank, nranks;
  uint32_t epoch = 0;
  uint64_t contract[kMaxRanks] = {};
  uint64_t in[kMaxOperands] = {}, out[kMaxRanks][kMaxOperands] = {};
  bool staged[kMaxRanks] = {};
};

}  // namespace

int loadKernels() {
  return 0;
}
int residentCtas(int* ctas) {
  *ctas = 132;
  return 0;
}
int launchExchange(const Exchange& exchange, CUstream_st* stream) {
  return emulator::launch(stream, [exchange, gpu = emulator::currentGpu()] { Launch(exchange, gpu).run(false); });
}
int launchSmallExchange(const Exchange& exchange, CUstream_st* stream) {
  return emulator::launch(stream, [exchange, gpu = emulator::currentGpu()] { Launch(exchange, gpu).run(true); });
}

int loadFlagKernels() {
  return 0;
}
int launchEntry(const Exchange& x, uint64_t contract, CUstream_st* stream) {
  return emulator::launch(stream, [x, contract, gpu = emulator::currentGpu()] { Launch(x, gpu).enter(contract); });
}
int launchRaise(const Channel& channel, Flag flag, int peer, uint32_t count, CUstream_st* stream) {
  return emulator::launch(stream, [=, gpu = emulator::currentGpu()] {
    expectReached(gpu, channel.flags[peer], "a peer's flags");
    auto* flags = reinterpret_cast<Flags*>(channel.flags[peer]);
    store(flag == Flag::Landed ? &flags->landed[channel.rank][0] : &flags->credit[channel.rank][0],
          flagValue(channel.epoch->value, count));
  });
}
int launchAwait(const Channel& channel, Flag flag, int peer, uint32_t count, CUstream_st* stream) {
  return emulator::launch(stream, [=] {
    auto* flags = reinterpret_cast<Flags*>(channel.flags[channel.rank]);
    const uint32_t epoch = channel.epoch->value;
    for (int from = 0; from < channel.nranks; ++from) {
      if ((peer >= 0 && peer != from) || (channel.epoch->senders >> from & 1) == 0) continue;
      const uint64_t* word = flag == Flag::Landed ? &flags->landed[from][0] : &flags->credit[from][0];
      if (!await(channel, [&] { return reached(word, flagValue(epoch, count)); }))
        return reportError(channel, epoch, KernelError::Aborted, -1);
    }
  });
}

int loadStagingCopy() {
  return 0;
}
int launchStagingCopy(const StagedCopy& copy, CUstream_st* stream) {
  if (copy.count == 0) return 0;
  return emulator::launch(stream, [copy] {
    for (uint32_t part = 0; part < copy.count; ++part)
      for (uint32_t cta = 0; cta < copy.ctas; ++cta)
        copyStaged<4, PlainMemory>(copy, copy.parts[part], copy.in, copy.out, cta, 0, 1);
  });
}

int loadCast() {
  return 0;
}
int launchCast(const void* in, void* out, size_t count, bool toBfloat16, CUstream_st* stream) {
  return emulator::launch(stream, [=] {
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = static_cast<const uint32_t*>(in)[i];
      static_cast<uint16_t*>(out)[i] = toBfloat16 ? bfloat16Of(bits) : float16Of(bits);
    }
  });
}

}  // namespace ulysses::device

namespace ulysses::testing {
namespace {

template <class Visit>
void forEachUnit(const PlanePart& part, uint64_t seed, const Visit& visit) {
  for (uint64_t i = 0; i < part.tokens * part.units; ++i) {
    const uint64_t unit = (part.firstToken + i / part.units) * part.unitsOfToken + part.firstUnit + i % part.units;
    visit(i, (unit + seed) * 0x9E3779B97F4A7C15ull);
  }
}

}  // namespace

void fill(void* data, const PlanePart& part, uint64_t seed, cudaStream_t stream) {
  emulator::launch(stream, [=] {
    auto* words = static_cast<uint64_t*>(data);
    forEachUnit(part, seed, [&](uint64_t i, uint64_t mixed) { words[2 * i] = mixed, words[2 * i + 1] = ~mixed; });
  });
}
void countWrong(const void* data, const PlanePart& part, uint64_t seed, unsigned long long* wrong,
                cudaStream_t stream) {
  emulator::launch(stream, [=] {
    const auto* words = static_cast<const uint64_t*>(data);
    forEachUnit(part, seed,
                [&](uint64_t i, uint64_t mixed) { *wrong += words[2 * i] != mixed || words[2 * i + 1] != ~mixed; });
  });
}

void countStale(const device::Channel& channel, int peer, const uint32_t* data, uint64_t words, uint32_t expected,
                unsigned long long* stale, cudaStream_t stream) {
  emulator::launch(stream, [=] {
    const auto* flags = reinterpret_cast<const device::Flags*>(channel.flags[channel.rank]);
    const uint64_t value = device::flagValue(channel.epoch->value, device::kAllLanded);
    *stale += device::await(channel, [&] { return device::reached(&flags->landed[peer][0], value); }) ? 0 : 1;
    // From the end, where a copy that is still under way has not been.
    for (uint64_t i = words; i-- > 0;) *stale += std::atomic_ref(const_cast<uint32_t&>(data[i])).load() != expected;
  });
}

}  // namespace ulysses::testing
