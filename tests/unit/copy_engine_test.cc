// The copy-engine path: what it moves, in which order, in how many calls, and when it is chosen.
#include "plan/copy_engine.h"

#include <map>
#include <set>

#include "plan/engine_course.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "unit/engine_machine.h"

namespace {

using namespace engine_test;

size_t callsOf(const OperandRequest& r, int nranks, ViewFamily in, ViewFamily out) {
  return mostEngineCalls(exchangeJob({{r, in, out}}, nranks).schedules[0]);
}

EngineFacts good() {
  EngineFacts f;
  f.distinctGpus = true;
  f.largestPayload = size_t{64} << 20;
  f.shortestRow = 2048;
  f.calls = 3;
  return f;
}

bool refusedFor(const EngineFacts& f, const std::string& why) {
  const EngineVerdict v = judgeEngine(f);
  INFO(v.reason);
  return !v.chosen && v.reason.find(why) != std::string::npos;
}

// Under a sanitizer that looks at every allocation eight ranks take minutes.
constexpr int kMostRanks = ulysses::testing::kSanitized ? 4 : 8;

}  // namespace

TEST_CASE("copy engines move every byte of an exchange once, in any order that streams and flags allow") {
  const ViewFamily contiguous = viewFamilies()[0].view;
  for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads})
    for (int P = 1; P <= kMostRanks; ++P)
      for (const size_t element : {1, 2, 8}) {
        const auto ranks = static_cast<size_t>(P);
        for (const OperandRequest& r :
             {request(1, ranks, ranks, 2, element, direction),
              request(2, 2 * ranks + 1, ranks + 1, 3, element, direction), request(3, 1, 2, 1, element, direction),
              request(2, 3, 0, 4, element, direction)}) {
          const Job job = exchangeJob({{r, contiguous, contiguous}}, P);
          for (const size_t chunk : {16, 48, 4096}) {
            INFO("P=" << P << " direction " << direction << " element " << element << " seq " << r.seq);
            CHECK(checkJob(job, chunk) == "");
          }
        }
      }
}

TEST_CASE("copy engines: all small geometries") {
  const ViewFamily contiguous = viewFamilies()[0].view;
  for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads})
    for (int P = 1; P <= kMostRanks; ++P)
      for (size_t seq = 0; seq <= static_cast<size_t>(P) + 1; ++seq)
        for (size_t heads = 1; heads <= static_cast<size_t>(P) + 1; ++heads)
          for (const size_t batch : {1, 2}) {
            INFO("P=" << P << " direction " << direction << " batch " << batch << " seq " << seq << " heads " << heads);
            CHECK(checkJob(exchangeJob({{request(batch, seq, heads, 3, 1, direction), contiguous, contiguous}}, P),
                           16) == "");
          }
}

TEST_CASE("copy engines: strided operands of either side") {
  for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads})
    for (const NamedFamily& in : viewFamilies())
      for (const NamedFamily& out : viewFamilies())
        for (const int P : {2, 3}) {
          INFO(in.name << " to " << out.name << " P=" << P << " direction " << direction);
          CHECK(checkJob(exchangeJob({{request(3, 5, 4, 3, 2, direction), in.view, out.view}}, P), 32) == "");
        }
}

TEST_CASE("copy engines: explicit splits, ranks with nothing, several operands in one launch") {
  const ViewFamily contiguous = viewFamilies()[0].view, packed = viewFamilies()[7].view;
  for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads}) {
    OperandRequest uneven = request(2, 11, 8, 5, 2, direction);
    uneven.seqSplits = {3, 5, 0, 3};
    uneven.headSplits = {1, 4, 0, 3};
    OperandRequest q = request(2, 11, 12, 4, 2, direction), kv = request(2, 11, 3, 4, 2, direction),
                   odd = request(1, 11, 5, 3, 1, direction);
    for (const size_t chunk : {16, 80, 1024}) {
      CHECK(checkJob(exchangeJob({{uneven, contiguous, contiguous}}, 4), chunk) == "");
      CHECK(
          checkJob(
              exchangeJob(
                  {{q, packed, contiguous}, {kv, packed, contiguous}, {kv, packed, packed}, {odd, contiguous, packed}},
                  4),
              chunk) == "");
      CHECK(checkJob(exchangeJob({{kv, contiguous, contiguous}, {q, contiguous, packed}}, 8), chunk) == "");
    }
  }
}

TEST_CASE("copy engines: the flat collectives") {
  for (int P = 1; P <= 8; ++P)
    for (const bool gather : {true, false})
      for (const size_t bytes : {0, 1, 47, 96}) {
        INFO("P=" << P << " gather " << gather << " bytes " << bytes);
        const Job job = flatJob(gather, bytes, P);
        CHECK(checkJob(job, 16, 3) == "");
        CHECK(mostEngineCalls(job.schedules[0]) == (bytes != 0 && P > 1 ? 1u : 0u));
      }
}

TEST_CASE("copy engines: few calls, whatever the number of rows and planes") {
  const auto& families = viewFamilies();
  const ViewFamily contiguous = families[0].view, padded = families[1].view, transposed = families[4].view,
                   packed = families[7].view;
  for (const ulyssesDirection_t direction : {ulyssesScatterHeads, ulyssesGatherHeads}) {
    const OperandRequest r = request(3, 32, 8, 4, 2, direction);
    CHECK(callsOf(r, 4, contiguous, contiguous) == 1);  // planes are slices
    CHECK(callsOf(r, 4, packed, contiguous) == 1);
    CHECK(callsOf(r, 4, contiguous, padded) == 3);      // a plane's step is no multiple of the pitch
    CHECK(callsOf(r, 4, transposed, transposed) <= 3);  // rows over the sequence: one call for all heads of a plane
    CHECK(callsOf(request(64, 32, 8, 4, 2, direction), 4, contiguous, padded) == 8);  // tokens are fewer than planes
  }
  // One plane of whole heads: dense at one end, and one row where it is at both.
  const std::vector<layout::BlockCopy> dense{{4, 32, 0, 32, 64, 32}, {4, 32, 128, 32, 192, 32}};
  CHECK(pitchedCopies(dense) == std::vector<PitchedCopy>{{256, 1, 1, {0, 256, 1}, {64, 256, 1}}});
  CHECK(pitchedCopies({}).empty());
  // Inputs may overlap themselves, by slices or by rows: no call of CUDA reads that.
  const std::vector<layout::BlockCopy> slices{{3, 32, 0, 64, 0, 32}, {3, 32, 64, 64, 96, 32}};
  CHECK(pitchedCopies(slices).size() == 2);
  const std::vector<layout::BlockCopy> overlapping{{3, 32, 0, 16, 0, 32}};
  CHECK(pitchedCopies(overlapping).size() == 3);
}

TEST_CASE("copy engines: sizes beyond 32 bits, and rows further apart than a pitch reaches") {
  const size_t row = size_t{5} << 30, pitch = kMaxPitch + size_t{1};
  size_t bytes = 0;
  const std::vector<layout::BlockCopy> far{{3, 1024, 0, pitch, size_t{7} << 32, 1024}};
  const std::vector<PitchedCopy> rows = pitchedCopies(far);
  CHECK(rows.size() == 3);
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i].rows == 1);
    CHECK(rows[i].src.offset == i * pitch);
    CHECK(rows[i].dst.offset == (size_t{7} << 32) + i * 1024);
  }
  const std::vector<layout::BlockCopy> large{{2, row, row, 2 * row, 0, row}};
  for (const PitchedCopy& c : pitchedCopies(large)) {
    CHECK(c.rows == 1);
    bytes += c.bytes();
  }
  CHECK(bytes == 2 * row);
  const std::vector<layout::BlockCopy> edge{{3, 1024, 0, kMaxPitch, 0, 1024}};
  CHECK(pitchedCopies(edge).size() == 1);

  // 896,000,000 bytes a plane, three planes: offsets of the last rank, and slots of a staged receiver.
  const Operand o = resolved(request(3, 250000, 56, 128, 2), 4);
  const OperandStrides contiguous = contiguousStrides(4);
  const Schedule s = exchangeSchedule(std::span(&o, 1), std::span(&contiguous, 1), 3);
  std::vector<std::vector<Location>> places(4, {Location{size_t{1} << 40, 2, 0}});
  places[1][0] = {};
  const size_t chunk = size_t{512} << 20;
  std::map<int, size_t> sent;
  for (const EngineStep& step : engineSteps(s, places, chunk)) {
    if (step.what != Do::Copy || step.stream != On::Copies) continue;
    sent[step.peer] += step.copy.bytes();
    if (step.peer == 1) {
      CHECK(step.copy.dst.offset >= 2 * device::kSlots * chunk);  // rank 3 is the third sender to rank 1
      CHECK(step.copy.dst.offset + step.copy.bytes() <= device::stagingBytes(4, 1, chunk));
      continue;
    }
    // Tokens 187500 on of a plane of 250000, three planes in one call.
    CHECK(step.copy.slices == 3);
    CHECK(step.copy.dst.sliceRows == 250000);
    CHECK(step.copy.dst.offset == (size_t{1} << 40) + size_t{187500} * 14 * 256);
  }
  for (const int peer : {0, 1, 2}) CHECK(sent[peer] == size_t{3} * 62500 * 14 * 256);
}

TEST_CASE("copy engines: more chunks than slots wait for credits, no more than that") {
  const Job job = flatJob(false, 100, 3);
  Machine machine(job, 0x7, 16, 1, 1);  // seven chunks
  size_t awaited = 0, given = 0;
  for (const EngineStep& s : machine.steps(0)) {
    awaited += s.what == Do::AwaitCredit;
    given += s.what == Do::GiveCredit;
  }
  CHECK(awaited == 2 * (7 - device::kSlots));
  CHECK(given == awaited);
}

TEST_CASE("copy engines: an output that a rank gets nothing for need not lie in a window") {
  OperandRequest r = request(1, 8, 2, 4, 2);
  r.headSplits = {2, 0, 0};
  const Operand o = resolved(r, 3);
  const OperandStrides contiguous = contiguousStrides(3);
  const Schedule s = exchangeSchedule(std::span(&o, 1), std::span(&contiguous, 1), 0);
  const Location plain{}, window{0, 1, 0};
  CHECK(isStaged(s, 0, std::span(&plain, 1)));
  CHECK_FALSE(isStaged(s, 0, std::span(&window, 1)));
  CHECK_FALSE(isStaged(s, 1, std::span(&plain, 1)));
}

TEST_CASE("copy engines are chosen for large copies between distinct GPUs, or refused with the reason") {
  CHECK(judgeEngine(good()).chosen);
  EngineFacts f = good();
  f.distinctGpus = false;
  CHECK(refusedFor(f, "share a GPU"));
  f.use = EngineUse::Forced;
  CHECK(refusedFor(f, "share a GPU"));
  f = good();
  f.use = EngineUse::Off;
  CHECK(refusedFor(f, "ULYSSES_PATH"));
  f = good();
  f.largestPayload = size_t{1} << 20;
  CHECK(refusedFor(f, "1048576 bytes"));
  f.use = EngineUse::Forced;
  CHECK(judgeEngine(f).chosen);
  f.largestPayload = 0;
  CHECK(refusedFor(f, "nothing"));
  f = good();
  f.shortestRow = 256;
  CHECK(refusedFor(f, "rows of 256"));
  f = good();
  f.calls = 1000;
  CHECK(refusedFor(f, "1000 copies"));
  f.use = EngineUse::Forced;
  CHECK(judgeEngine(f).chosen);
  f = good();
  f.outputs = EngineOutputs::Plain;
  CHECK(refusedFor(f, "no staging"));
  f.chunkBytes = size_t{1} << 20;
  CHECK(refusedFor(f, "staging holds 3145728"));
  f.use = EngineUse::Forced;
  CHECK(judgeEngine(f).chosen);
  f = good();
  f.outputs = EngineOutputs::Plain;
  f.chunkBytes = f.largestPayload / 3 + 1;
  CHECK(judgeEngine(f).chosen);
  f.outputs = EngineOutputs::Unknown;
  CHECK(refusedFor(f, "boundOut"));
  f.use = EngineUse::Forced;
  CHECK(judgeEngine(f).chosen);
  f.chunkBytes = 0;
  CHECK(refusedFor(f, "no staging"));

  CHECK(engineUse("auto") == EngineUse::Auto);
  CHECK(engineUse("copy-engine") == EngineUse::Forced);
  for (const char* other : {"direct", "staged", "nccl", "mpi"}) CHECK(engineUse(other) == EngineUse::Off);
}

TEST_CASE("copy engines: calls that are agreed on the host and plans with bound outputs, on every rank alike") {
  const Job large = flatJob(false, 16, 3);
  const auto coursesOf = [&](EngineUse use, size_t chunkBytes) {
    std::vector<EngineCourse> courses;
    for (const Schedule& s : large.schedules) {
      EngineFacts facts = engineFacts(s, use, true);
      facts.chunkBytes = chunkBytes;
      courses.emplace_back(std::make_shared<const Schedule>(s), facts, 17);
    }
    return courses;
  };
  const auto contractsOf = [](const std::vector<Location>& places) {
    std::vector<std::unique_ptr<Contract>> contracts;
    for (const Location& l : places) {
      contracts.push_back(std::make_unique<Contract>());
      contracts.back()->geometry.operands = 1;
      contracts.back()->out[0] = l;
    }
    return contracts;
  };
  const auto pointersTo = [](const std::vector<std::unique_ptr<Contract>>& contracts) {
    std::vector<const Contract*> pointers;
    for (const auto& c : contracts) pointers.push_back(c.get());
    return pointers;
  };
  const std::vector<Location> places{{0, 1, 0}, {64, 1, 0}, {0, 2, 0}};
  const auto known = contractsOf(places), moved = contractsOf({{0, 1, 0}, {128, 1, 0}, {0, 2, 0}}),
             plain = contractsOf({{0, 1, 0}, {}, {0, 2, 0}});

  std::vector<EngineCourse> courses = coursesOf(EngineUse::Forced, 0);
  std::set<uint64_t> contracts;
  for (EngineCourse& c : courses) {
    c.follow(pointersTo(known));
    REQUIRE(c.verdict().chosen);
    contracts.insert(c.contract());
  }
  CHECK(contracts.size() == 1);
  CHECK(contracts.count(0) == 0);
  const size_t steps = courses[0].steps().size();
  courses[0].follow(pointersTo(known));
  CHECK(courses[0].steps().size() == steps);
  CHECK(courses[0].contract() == *contracts.begin());
  courses[0].follow(pointersTo(moved));
  CHECK(courses[0].contract() != *contracts.begin());
  // A plan that is bound to the same outputs is the same launch.
  courses[1].bind({{places[0]}, {places[1]}, {places[2]}});
  CHECK(courses[1].contract() == *contracts.begin());

  courses[0].follow(pointersTo(plain));
  CHECK_FALSE(courses[0].verdict().chosen);
  CHECK(courses[0].steps().empty());
  courses[0].follow(pointersTo(known));
  CHECK(courses[0].verdict().chosen);
  courses = coursesOf(EngineUse::Forced, 64);
  courses[0].follow(pointersTo(plain));
  CHECK(courses[0].verdict().chosen);
  CHECK(courses[0].contract() != *contracts.begin());

  courses = coursesOf(EngineUse::Auto, 64);  // 16 bytes are no work for an engine
  courses[0].follow(pointersTo(known));
  CHECK(courses[0].verdict().reason.find("16 bytes") != std::string::npos);
  CHECK(engineFacts(large.schedules[0], EngineUse::Forced, true).calls == 1);
}
