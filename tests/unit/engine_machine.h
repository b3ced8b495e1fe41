// Copy engines without an engine: the steps of all ranks together, over host memory, in any order that streams and
// flags allow.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "device/exchange.h"
#include "plan/copy_engine.h"
#include "unit/layout_reference.h"

namespace engine_test {

using namespace layout_test;
using namespace ulysses;
using namespace ulysses::plan;
using Do = EngineStep::Do;
using On = EngineStep::On;
using In = Place::In;

using Bytes = std::vector<uint8_t>;

// Memory with what has become of each byte.
struct Memory {
  Bytes bytes;
  std::vector<int> writes;   // how often
  std::vector<bool> unread;  // of staging: written, not read since
};

// All ranks of one exchange: their schedules, inputs and expected outputs (with canaries around the data).
struct Job {
  std::vector<Schedule> schedules;                   // [rank]
  std::vector<std::vector<Bytes>> inputs, expected;  // [rank][operand]
  std::vector<std::vector<Bytes>> blank;             // the outputs before
  std::vector<std::vector<size_t>> outBegin;         // where the tensor lies in the buffer
  std::vector<std::vector<size_t>> inBegin;
  std::vector<std::vector<size_t>> outBytes;  // of data, without canaries

  int nranks() const { return static_cast<int>(schedules.size()); }
  size_t operands() const { return schedules[0].operands; }
};

struct Tensor {
  OperandRequest request;
  ViewFamily in, out;
};

inline Job exchangeJob(const std::vector<Tensor>& tensors, int nranks) {
  std::vector<Operand> operands;
  std::vector<OperandStrides> strides;
  Job job;
  const auto n = static_cast<size_t>(nranks);
  job.inputs.resize(n);
  job.expected.resize(n);
  job.blank.resize(n);
  job.outBegin.resize(n);
  job.inBegin.resize(n);
  job.outBytes.resize(n);
  for (const Tensor& t : tensors) {
    operands.push_back(resolved(t.request, nranks));
    const Operand& o = operands.back();
    const Ownership ownership{owned(o.seq, nranks, t.request.seqSplits), owned(o.heads, nranks, t.request.headSplits)};
    strides.emplace_back();
    for (int r = 0; r < nranks; ++r) {
      const auto at = static_cast<size_t>(r);
      const LocalShape in = localShape(o, r, Side::In), out = localShape(o, r, Side::Out);
      const Buffer input = filled(o, ownership, r, Side::In, t.in(in), scrambled);
      const Buffer output = filled(o, ownership, r, Side::Out, t.out(out), scrambled),
                   blank = makeBuffer(out, t.out(out));
      strides.back().in.push_back(t.in(in).strides);
      strides.back().out.push_back(t.out(out).strides);
      job.inputs[at].push_back(input.bytes);
      job.inBegin[at].push_back(input.begin);
      job.expected[at].push_back(output.bytes);
      job.blank[at].push_back(blank.bytes);
      job.outBegin[at].push_back(output.begin);
      job.outBytes[at].push_back(dataBytes(out));
    }
  }
  for (int r = 0; r < nranks; ++r) job.schedules.push_back(exchangeSchedule(operands, strides, r));
  return job;
}

inline Job flatJob(bool gather, size_t bytes, int nranks) {
  Job job;
  const auto n = static_cast<size_t>(nranks);
  const auto value = [](size_t from, size_t to, size_t i) {
    return static_cast<uint8_t>(scrambled(from * 1000 + to * 100 + i));
  };
  for (size_t r = 0; r < n; ++r) {
    const int rank = static_cast<int>(r);
    job.schedules.push_back(gather ? allGatherSchedule(bytes, 1, rank, nranks)
                                   : allToAllSchedule(bytes, 1, rank, nranks));
    Bytes in, out;
    for (size_t p = 0; p < n; ++p) {
      for (size_t i = 0; i < bytes; ++i) {
        if (!gather || p == 0) in.push_back(value(r, gather ? 0 : p, i));
        out.push_back(value(p, gather ? 0 : r, i));
      }
    }
    job.inputs.push_back({in});
    job.expected.push_back({out});
    job.blank.push_back({Bytes(out.size(), 0xEE)});
    job.inBegin.push_back({0});
    job.outBegin.push_back({0});
    job.outBytes.push_back({out.size()});
  }
  return job;
}

// Runs the steps of all ranks, `epochs` times over, streams in an order that `random` picks.
class Machine {
 public:
  Machine(const Job& job, uint32_t plainRanks, size_t chunkBytes, unsigned seed, int epochs)
      : job_(job), chunkBytes_(chunkBytes), epochs_(epochs), random_(seed) {
    const auto n = static_cast<size_t>(job.nranks());
    for (size_t r = 0; r < n; ++r) {
      ranks_.emplace_back();
      Rank& rank = ranks_.back();
      std::vector<Location> places;
      for (size_t i = 0; i < job.operands(); ++i) {
        // Each output in a window of its own, or in one with a number that differs by rank.
        const Location window{64 * (r + 1) + i, static_cast<uint32_t>(1 + (i + r) % 5), 0};
        const bool plain = plainRanks >> r & 1;
        const Bytes& blank = job.blank[r][i];
        Memory memory;
        memory.bytes.assign(plain ? 0 : window.offset, 0xCC);
        rank.before.push_back(memory.bytes.size());
        memory.bytes.insert(memory.bytes.end(), blank.begin(), blank.end());
        memory.writes.assign(memory.bytes.size(), 0);
        rank.outputs.push_back(memory);
        if (!plain) rank.windows[window.window] = i;
        places.push_back(plain ? Location{} : Location{window.offset + job.outBegin[r][i], window.window, 0});
      }
      rank.staging.bytes.assign(device::stagingBytes(job.nranks(), 1, chunkBytes), 0xDD);
      rank.staging.unread.assign(rank.staging.bytes.size(), false);
      rank.landed.assign(n, 0);
      rank.credit.assign(n, 0);
      rank.delivered.assign(n, 0);
      places_.push_back(places);
    }
    for (size_t r = 0; r < n; ++r) ranks_[r].steps = engineSteps(job.schedules[r], places_, chunkBytes);
  }

  // "" or what went wrong.
  std::string run() {
    for (;;) {
      std::vector<std::pair<size_t, On>> ready;
      bool over = true;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        over = over && ranks_[r].epoch == epochs_;
        for (const On on : {On::Caller, On::Copies})
          if (mayRun(r, on)) ready.emplace_back(r, on);
      }
      if (over) return check();
      if (ready.empty()) return "everybody waits";
      const auto [r, on] = ready[random_() % ready.size()];
      runNext(r, on);
      if (!problem_.empty()) return problem_ + " on rank " + std::to_string(r);
    }
  }

  const std::vector<EngineStep>& steps(int rank) const { return ranks_[static_cast<size_t>(rank)].steps; }

 private:
  struct Rank {
    std::vector<EngineStep> steps;
    size_t next[2] = {0, 0};  // of each stream: the step it looks at
    int epoch = 0;            // launches that are over
    int entered = 0;
    bool forked = false;
    std::vector<Memory> outputs;         // [operand]
    std::vector<size_t> before;          // [operand]: bytes of the window before the output's buffer
    std::map<uint32_t, size_t> windows;  // number -> operand
    Memory staging;
    std::vector<uint64_t> landed, credit;  // [peer], as in device/exchange.h
    std::vector<size_t> delivered;         // [receiver], in this epoch
  };

  static uint64_t flag(int epoch, uint32_t count) { return static_cast<uint64_t>(epoch) << 32 | count; }

  // The step a stream is at, or null when it has come to its end.
  const EngineStep* stepOf(Rank& rank, On on) {
    size_t& next = rank.next[on == On::Copies];
    while (next < rank.steps.size() && rank.steps[next].stream != on) ++next;
    return next < rank.steps.size() ? &rank.steps[next] : nullptr;
  }

  bool mayRun(size_t r, On on) {
    Rank& rank = ranks_[r];
    if (rank.epoch == epochs_) return false;
    const EngineStep* step = stepOf(rank, on);
    if (step == nullptr || (on == On::Copies && !rank.forked)) return false;
    const int epoch = rank.epoch + 1;
    const auto peer = static_cast<size_t>(std::max(step->peer, 0));
    switch (step->what) {
      case Do::Enter:
        rank.entered = epoch;
        return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& p) { return p.entered >= epoch; });
      case Do::AwaitCredit:
        return rank.credit[peer] >= flag(epoch, step->count);
      case Do::AwaitChunks:
        return rank.landed[peer] >= flag(epoch, step->count);
      case Do::Join:
        return stepOf(rank, On::Copies) == nullptr;
      case Do::Leave:
        for (size_t p = 0; p < ranks_.size(); ++p)
          if (p != r && rank.landed[p] < flag(epoch, device::kAllLanded)) return false;
        return true;
      default:
        return true;
    }
  }

  void runNext(size_t r, On on) {
    Rank& rank = ranks_[r];
    const EngineStep& step = *stepOf(rank, on);
    ++rank.next[on == On::Copies];
    const int epoch = rank.epoch + 1;
    const auto peer = static_cast<size_t>(std::max(step.peer, 0));
    switch (step.what) {
      case Do::Enter:
        std::fill(rank.delivered.begin(), rank.delivered.end(), 0);
        break;
      case Do::Fork:
        rank.forked = true;
        break;
      case Do::Copy:
        copy(r, step);
        break;
      case Do::Announce: {
        const size_t all = job_.schedules[r].sendBytes[peer], done = rank.delivered[peer];
        if (done != (step.count == device::kAllLanded ? all : step.count * chunkBytes_))
          problem_ = "announced too early";
        raise(ranks_[peer].landed[r], flag(epoch, step.count));
        break;
      }
      case Do::GiveCredit:
        raise(ranks_[peer].credit[r], flag(epoch, step.count));
        break;
      case Do::Leave:
        rank.epoch = epoch;
        rank.forked = false;
        rank.next[0] = rank.next[1] = 0;
        break;
      default:
        break;
    }
  }

  void raise(uint64_t& word, uint64_t value) {
    if (value <= word) problem_ = "a flag that does not grow";
    word = value;
  }

  struct Bits {
    const uint8_t* bytes = nullptr;
    Memory* memory = nullptr;
    size_t begin = 0, size = 0;
  };
  Bits bitsOf(size_t r, const Place& place) {
    Rank& rank = ranks_[static_cast<size_t>(place.rank)];
    const auto at = static_cast<size_t>(place.rank);
    switch (place.in) {
      case In::Input:
        if (at != r) problem_ = "reads another rank's input";
        return {job_.inputs[at][place.number].data(), nullptr, job_.inBegin[at][place.number],
                job_.inputs[at][place.number].size()};
      case In::Output: {
        if (at != r) problem_ = "writes another rank's output by its pointer";
        Memory& m = rank.outputs[place.number];
        return {m.bytes.data(), &m, rank.before[place.number] + job_.outBegin[at][place.number], m.bytes.size()};
      }
      case In::Window: {
        Memory& m = rank.outputs[rank.windows.at(place.number)];
        return {m.bytes.data(), &m, 0, m.bytes.size()};
      }
      case In::Staging:
        return {rank.staging.bytes.data(), &rank.staging, 0, rank.staging.bytes.size()};
    }
    return {};
  }

  void copy(size_t r, const EngineStep& step) {
    const PitchedCopy& c = step.copy;
    const Bits from = bitsOf(r, step.from), to = bitsOf(r, step.to);
    const auto peer = static_cast<size_t>(step.peer);
    if (to.memory == nullptr) problem_ = "writes an input";
    if (c.bytes() == 0) problem_ = "a copy of nothing";
    for (const PitchedCopy::Side& side : {c.src, c.dst}) {
      if (side.pitch < c.rowBytes || side.pitch > kMaxPitch) problem_ = "a pitch that CUDA refuses";
      if (c.slices > 1 && side.sliceRows < c.rows) problem_ = "slices that overlap";
    }
    if (step.stream == On::Copies) {
      const Rank& receiver = ranks_[peer];
      if (peer == r || step.to.rank != step.peer) problem_ = "not to the peer";
      if (receiver.entered < ranks_[r].epoch + 1) problem_ = "a copy to a peer that has not entered";
      if (receiver.epoch > ranks_[r].epoch) problem_ = "a copy to a peer that has left";
      ranks_[r].delivered[peer] += c.bytes();
    }
    for (size_t slice = 0; slice < c.slices && problem_.empty(); ++slice)
      for (size_t row = 0; row < c.rows; ++row) {
        const size_t src = from.begin + c.src.offset + (slice * c.src.sliceRows + row) * c.src.pitch;
        const size_t dst = to.begin + c.dst.offset + (slice * c.dst.sliceRows + row) * c.dst.pitch;
        if (src + c.rowBytes > from.size || dst + c.rowBytes > to.size) {
          problem_ = "out of bounds";
          return;
        }
        for (size_t i = 0; i < c.rowBytes; ++i) copyByte(from, src + i, to, dst + i);
      }
  }

  void copyByte(const Bits& from, size_t src, const Bits& to, size_t dst) {
    if (from.memory != nullptr) {  // staging
      if (!from.memory->unread[src]) problem_ = "reads what has not been written";
      from.memory->unread[src] = false;
    }
    if (to.memory->unread.empty()) {
      ++to.memory->writes[dst];
    } else {
      if (to.memory->unread[dst]) problem_ = "writes a slot that has not been read";
      to.memory->unread[dst] = true;
    }
    to.memory->bytes[dst] = from.bytes[src];
  }

  std::string check() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const std::vector<bool>& unread = ranks_[r].staging.unread;
      if (std::find(unread.begin(), unread.end(), true) != unread.end()) return "something was left in a slot";
      for (size_t i = 0; i < job_.operands(); ++i) {
        const Memory& m = ranks_[r].outputs[i];
        const auto before = static_cast<std::ptrdiff_t>(ranks_[r].before[i]);
        if (Bytes(m.bytes.begin() + before, m.bytes.end()) != job_.expected[r][i])
          return "wrong bytes on rank " + std::to_string(r);
        if (std::count(m.bytes.begin(), m.bytes.begin() + before, 0xCC) != before) return "wrote before the output";
        size_t written = 0;
        for (const int n : m.writes) {
          if (n != 0 && n != epochs_) return "a byte not written once";
          written += n != 0;
        }
        if (written != job_.outBytes[r][i]) return "not all of the output, or more";
      }
    }
    return "";
  }

  const Job& job_;
  const size_t chunkBytes_;
  const int epochs_;
  std::mt19937 random_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Location>> places_;
  std::string problem_;
};

// What the order of one rank's steps owes to CUDA and to the protocol, whatever the others do.
inline std::string checkOrder(const std::vector<EngineStep>& steps, int rank, int nranks) {
  const auto at = [&](size_t i) { return steps[i].what; };
  const size_t n = steps.size();
  if (n < 4 || at(0) != Do::Enter || at(1) != Do::Fork || at(n - 2) != Do::Join || at(n - 1) != Do::Leave)
    return "the frame";
  std::set<int> announced;
  std::vector<int> firsts;
  for (size_t i = 2; i < n - 2; ++i) {
    const EngineStep& s = steps[i];
    const bool sends = s.what == Do::Announce || s.what == Do::AwaitCredit || (s.what == Do::Copy && s.to.rank != rank);
    if (s.what == Do::Enter || s.what == Do::Fork || s.what == Do::Join || s.what == Do::Leave) return "a frame within";
    if (sends != (s.stream == On::Copies)) return "a step on the wrong stream";
    if (s.peer < 0 || s.peer >= nranks || (s.peer == rank && s.what != Do::Copy)) return "a bad peer";
    if (!sends) continue;
    if (announced.count(s.peer) != 0) return "something behind the last announcement";
    if (std::find(firsts.begin(), firsts.end(), s.peer) == firsts.end()) firsts.push_back(s.peer);
    if (s.what == Do::Announce && s.count == device::kAllLanded) announced.insert(s.peer);
  }
  if (static_cast<int>(announced.size()) != nranks - 1) return "a peer that nobody signals";
  for (int i = 1; i < nranks; ++i)
    if (firsts[static_cast<size_t>(i - 1)] != (rank + i) % nranks) return "peers not rotated by rank";
  return "";
}

inline std::string checkJob(const Job& job, size_t chunkBytes, int epochs = 2) {
  const uint32_t everyone = (1u << job.nranks()) - 1;
  for (const uint32_t plain : {0u, everyone, 0x5u & everyone})
    for (unsigned seed = 1; seed <= 3; ++seed) {
      Machine machine(job, plain, chunkBytes, seed, epochs);
      for (int r = 0; r < job.nranks(); ++r)
        if (const std::string wrong = checkOrder(machine.steps(r), r, job.nranks()); !wrong.empty())
          return wrong + " of rank " + std::to_string(r);
      if (const std::string wrong = machine.run(); !wrong.empty())
        return wrong + ", plain " + std::to_string(plain) + ", chunks of " + std::to_string(chunkBytes);
    }
  return "";
}

}  // namespace engine_test
