// The rounds of messages of a fallback, run for all ranks on the host: what is sent is what is received, and what comes
// out is the exchange.
#include <cstring>
#include <string>
#include <vector>

#include "device/staging_copy.h"
#include "plan/messages.h"
#include "support/catch.h"
#include "unit/layout_reference.h"

namespace {

using namespace ulysses;
using namespace layout_test;

struct PlainMemory {
  static device::Word load(uint64_t address) {
    device::Word word;
    std::memcpy(&word, reinterpret_cast<const void*>(address), 16);
    return word;
  }
  static void store(uint64_t address, const device::Word& word) {
    std::memcpy(reinterpret_cast<void*>(address), &word, 16);
  }
  static void copyNarrow(uint64_t dst, uint64_t src, uint32_t bytes) {
    std::memcpy(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
  }
};

struct Rank {
  Messages messages;
  std::vector<uint64_t> in, out;  // addresses, by operand
  std::vector<uint8_t> staging;

  uint64_t stagingAddress() { return (reinterpret_cast<uint64_t>(staging.data()) + 255) / 256 * 256; }
  uint8_t* addressOf(const Messages::End& end, bool sending) {
    const uint64_t base = end.staged ? stagingAddress() : (sending ? in : out)[end.operand];
    return reinterpret_cast<uint8_t*>(base + end.offset);
  }
  void copy(device::StagedWay way, const std::vector<Messages::Part>& parts) {
    constexpr uint32_t kCtas = 3, kLanes = 5;
    device::StagedCopy x{};
    x.way = way;
    x.blocks = messages.blocks.data();
    x.ctas = kCtas;
    x.staging = stagingAddress();
    for (const Messages::Part& p : parts) {
      const auto& streams = way == device::StagedWay::Unpack ? messages.recvs : messages.sends;
      const device::StagedPart part{streams[static_cast<size_t>(p.peer)], p.begin, p.end, p.staging};
      for (uint32_t cta = 0; cta < kCtas; ++cta)
        for (uint32_t lane = 0; lane < kLanes; ++lane)
          device::copyStaged<4, PlainMemory>(x, part, in.data(), out.data(), cta, lane, kLanes);
    }
  }
};

// Everything between all ranks; what is wrong, or "".
std::string deliver(std::vector<Rank>& ranks) {
  const size_t n = ranks.size(), rounds = ranks[0].messages.rounds.size();
  for (size_t r = 0; r < n; ++r) {
    Rank& rank = ranks[r];
    if (rank.messages.rounds.size() != rounds) return "ranks have different numbers of rounds";
    rank.staging.assign(rank.messages.stagingBytes + 512, 0xa5);
    const device::Stream own = rank.messages.sends[r];
    if (own.bytes != 0) rank.copy(device::StagedWay::Own, {{static_cast<int>(r), 0, own.bytes, 0}});
  }
  for (size_t k = 0; k < rounds; ++k) {
    for (Rank& rank : ranks) rank.copy(device::StagedWay::Pack, rank.messages.rounds[k].pack);
    for (size_t from = 0; from < n; ++from) {
      for (size_t to = 0; to < n; ++to) {
        std::vector<Messages::Message> sends, recvs;
        for (const auto& m : ranks[from].messages.rounds[k].sends)
          if (m.peer == static_cast<int>(to)) sends.push_back(m);
        for (const auto& m : ranks[to].messages.rounds[k].recvs)
          if (m.peer == static_cast<int>(from)) recvs.push_back(m);
        if (sends.size() != recvs.size()) return "a message has one end";
        for (size_t i = 0; i < sends.size(); ++i) {
          if (sends[i].bytes != recvs[i].bytes || sends[i].bytes == 0) return "the ends of a message differ";
          for (const auto* m : {&sends[i], &recvs[i]})
            if (m->end.staged && m->end.offset + m->bytes > ranks[m == &sends[i] ? from : to].messages.stagingBytes)
              return "beyond the staging";
          std::memcpy(ranks[to].addressOf(recvs[i].end, false), ranks[from].addressOf(sends[i].end, true),
                      sends[i].bytes);
        }
      }
    }
    for (Rank& rank : ranks) rank.copy(device::StagedWay::Unpack, rank.messages.rounds[k].unpack);
  }
  return "";
}

struct Case {
  std::vector<Operand> operands;
  std::vector<Ownership> ownerships;
  ViewFamily in, out;
};

std::string check(const Case& c, size_t limit, std::vector<Messages>* made = nullptr) {
  const int nranks = c.operands[0].nranks();
  std::vector<OperandStrides> strides;
  std::vector<std::vector<Buffer>> inputs(c.operands.size()), outputs(c.operands.size());
  for (size_t i = 0; i < c.operands.size(); ++i) {
    OperandStrides& s = strides.emplace_back();
    for (int r = 0; r < nranks; ++r) {
      const LocalShape in = localShape(c.operands[i], r, Side::In), out = localShape(c.operands[i], r, Side::Out);
      inputs[i].push_back(filled(c.operands[i], c.ownerships[i], r, Side::In, c.in(in), scrambled));
      outputs[i].push_back(makeBuffer(out, c.out(out)));
      s.in.push_back(inputs[i].back().strides);
      s.out.push_back(outputs[i].back().strides);
    }
  }
  std::vector<Rank> ranks(static_cast<size_t>(nranks));
  for (int r = 0; r < nranks; ++r) {
    Rank& rank = ranks[static_cast<size_t>(r)];
    rank.messages = makeMessages(exchangeSchedule(c.operands, strides, r), limit);
    for (size_t i = 0; i < c.operands.size(); ++i) {
      rank.in.push_back(reinterpret_cast<uint64_t>(inputs[i][static_cast<size_t>(r)].data()));
      rank.out.push_back(reinterpret_cast<uint64_t>(outputs[i][static_cast<size_t>(r)].data()));
    }
  }
  if (const std::string wrong = deliver(ranks); !wrong.empty()) return wrong;
  for (size_t i = 0; i < c.operands.size(); ++i)
    for (int r = 0; r < nranks; ++r) {
      const LocalShape out = localShape(c.operands[i], r, Side::Out);
      const Buffer expected = filled(c.operands[i], c.ownerships[i], r, Side::Out, c.out(out), scrambled);
      if (outputs[i][static_cast<size_t>(r)].bytes != expected.bytes)
        return "wrong bytes, or bytes beyond, at rank " + std::to_string(r);
    }
  if (made != nullptr)
    for (Rank& rank : ranks) made->push_back(rank.messages);
  return "";
}

Case oneOperand(const OperandRequest& r, int nranks, ViewFamily in, ViewFamily out) {
  return {{resolved(r, nranks)}, {{owned(r.seq, nranks, r.seqSplits), owned(r.heads, nranks, r.headSplits)}}, in, out};
}

constexpr size_t kLimits[] = {0, 3 * kLeastPart, size_t{1} << 30};

}  // namespace

TEST_CASE("messages: every small geometry, contiguous and strided") {
  const auto& families = viewFamilies();
  for (int nranks = 1; nranks <= 8; ++nranks)
    for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads})
      for (const size_t batch : {1, 3})
        for (const size_t seq : {2, 9})
          for (const size_t heads : {8, 11})
            for (size_t f = 0; f < families.size(); ++f) {
              const OperandRequest r = request(batch, seq, heads, 3, f % 2 == 0 ? 2 : 4, direction);
              INFO(nranks << " ranks, " << families[f].name << ", direction " << direction << ", " << batch << " "
                          << seq << " " << heads);
              CHECK(check(oneOperand(r, nranks, families[f].view, families[0].view), kLimits[1]) == "");
              CHECK(check(oneOperand(r, nranks, families[0].view, families[f].view), kLimits[2]) == "");
            }
}

TEST_CASE("messages: rounds through little staging cut rows, planes and operands anywhere") {
  const auto& families = viewFamilies();
  for (const int nranks : {2, 3, 4})
    for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads})
      for (const size_t f : {size_t{0}, size_t{3}, families.size() - 1})
        for (const size_t limit : kLimits) {
          Case c;
          c.in = families[f].view;
          c.out = families[0].view;
          for (const size_t heads : {size_t{12}, size_t{5}}) {
            const OperandRequest r = request(2, 57, heads, 17, 4, direction);
            c.operands.push_back(resolved(r, nranks));
            c.ownerships.push_back({owned(r.seq, nranks), owned(r.heads, nranks)});
          }
          INFO(nranks << " ranks, " << families[f].name << ", direction " << direction << ", limit " << limit);
          CHECK(check(c, limit) == "");
        }
}

TEST_CASE("messages: of contiguous operands one end of each pair is where it belongs, staging keeps its limit") {
  const ViewFamily contiguous = viewFamilies()[0].view;
  for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads}) {
    std::vector<Messages> made;
    constexpr size_t kLimit = 5 * kLeastPart;
    REQUIRE(check(oneOperand(request(3, 64, 8, 64, 2, direction), 4, contiguous, contiguous), kLimit, &made) == "");
    for (const Messages& m : made) {
      CHECK(m.stagingBytes <= kLimit);
      CHECK(m.rounds.size() > 1);
      for (const Messages::Round& round : m.rounds) {
        CHECK((direction == ulyssesScatterHeads ? round.unpack : round.pack).empty());
        CHECK((direction == ulyssesScatterHeads ? round.pack : round.unpack).size() == 3);
      }
    }
  }
}

TEST_CASE("messages: flat collectives are sent and received where they are, empty ones not at all") {
  for (const bool gather : {true, false}) {
    const int nranks = 5;
    constexpr size_t kBytes = 1000;
    std::vector<Rank> ranks(nranks);
    std::vector<std::vector<uint8_t>> in(nranks), out(nranks);
    for (size_t r = 0; r < nranks; ++r) {
      ranks[r].messages = makeMessages(gather ? allGatherSchedule(kBytes, 4, static_cast<int>(r), nranks)
                                              : allToAllSchedule(kBytes, 4, static_cast<int>(r), nranks),
                                       1 << 20);
      CHECK(ranks[r].messages.stagingBytes == 0);
      CHECK(ranks[r].messages.rounds.size() == 1);
      in[r].resize(gather ? kBytes : kBytes * nranks);
      for (size_t i = 0; i < in[r].size(); ++i) in[r][i] = static_cast<uint8_t>(i / kBytes * 31 + r * 7 + i);
      out[r].resize(kBytes * nranks);
      ranks[r].in = {reinterpret_cast<uint64_t>(in[r].data())};
      ranks[r].out = {reinterpret_cast<uint64_t>(out[r].data())};
    }
    CHECK(deliver(ranks) == "");
    for (size_t to = 0; to < nranks; ++to)
      for (size_t from = 0; from < nranks; ++from)
        CHECK(std::memcmp(out[to].data() + from * kBytes, in[from].data() + (gather ? 0 : to * kBytes), kBytes) == 0);
  }
  CHECK(makeMessages(allGatherSchedule(0, 4, 1, 3), 1 << 20).rounds.empty());
}
