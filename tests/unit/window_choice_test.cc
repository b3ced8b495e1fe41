// Which provider maps windows: the verdict for everything that two ranks may ask for and have.
#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.h"
#include "window/choice.h"

namespace {

using namespace ulysses;

std::vector<WindowFacts> everything() {
  std::vector<WindowFacts> all;
  for (const auto from : {WindowsFrom::Auto, WindowsFrom::Ipc, WindowsFrom::Nccl})
    for (const int version : {0, 22809, 22902, 23007})
      for (const int shares : {0, 1})
        for (const int offers : {0, 1})
          for (const int cuMemOff : {0, 1})
            for (const int blocks : {0, 1}) all.push_back({from, {version, shares, offers, cuMemOff, blocks}});
  return all;
}

bool expected(const std::vector<WindowFacts>& ranks, int ranksPerDevice) {
  const auto all = [&](auto what) { return std::all_of(ranks.begin(), ranks.end(), what); };
  const bool shared = ranksPerDevice > 1, asked = !all([](auto&f) { return f.from != WindowsFrom::Nccl; });
  return all([&](const WindowFacts& f) {
    return f.from != WindowsFrom::Ipc && f.nccl.version >= 22902 && f.nccl.version == ranks[0].nccl.version &&
           f.nccl.offersWindows && !f.nccl.cuMemOff && !f.nccl.blocksAlways &&
           (!shared || (asked && f.nccl.version >= 23000 && f.nccl.sharesGpusWhereAsked));
  });
}

std::string why(const std::vector<WindowFacts>& ranks, int ranksPerDevice = 1) {
  return chooseWindows(ranks, ranksPerDevice).reason;
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("windows by ipc or nccl: for all that two ranks may ask for and have") {
  const std::vector<WindowFacts> all = everything();
  size_t wrong = 0, byNccl = 0;
  for (const int ranksPerDevice : {1, 2})
    for (const WindowFacts& a : all)
      for (const WindowFacts& b : all) {
        const WindowChoice choice = chooseWindows(std::vector{a, b}, ranksPerDevice);
        const WindowChoice turned = chooseWindows(std::vector{b, a}, ranksPerDevice);
        byNccl += choice.nccl;
        wrong += choice.nccl != expected({a, b}, ranksPerDevice) || choice.nccl != turned.nccl ||
                 choice.nccl != choice.reason.empty();
      }
  CHECK(wrong == 0);
  CHECK(byNccl != 0);
}

TEST_CASE("windows by nccl: its LSA team must be all ranks, in their order") {
  const auto whyNot = [](const std::vector<NcclLibrary::Team>& teams) { return whyNotOneTeam(teams); };
  CHECK(whyNot({{3, 0, 1}, {3, 1, 1}, {3, 2, 1}}) == "");
  CHECK(whyNot({{1, 0, 1}}) == "");
  CHECK(has(whyNot({{2, 0, 1}, {2, 1, 1}, {2, 0, 1}}), "team of rank 0 has 2 of 3 ranks"));
  CHECK(has(whyNot({{2, 0, 1}, {0, 0, 0}}), "team of rank 1 has 0 of 2 ranks"));
  using Team = NcclLibrary::Team;
  for (int ranks = 0; ranks <= 3; ++ranks)
    for (int rank = 0; rank <= 3; ++rank)
      for (int stride = 0; stride <= 2; ++stride) {
        const Team team{ranks, rank, stride};
        CHECK((whyNot({{2, 0, 1}, team}) == "") == (ranks == 2 && rank == 1 && stride == 1));
        CHECK((whyNot({team, {2, 1, 1}}) == "") == (ranks == 2 && rank == 0 && stride == 1));
      }
}

TEST_CASE("windows by ipc or nccl: the reason names the rank and what is missing") {
  const WindowFacts v230{WindowsFrom::Auto, {23007, 0, 1, 0}}, old{WindowsFrom::Auto, {22809, 0, 0, 0}}, none{},
      lacking{WindowsFrom::Auto, {23007, 0, 0, 0}}, off{WindowsFrom::Auto, {23007, 0, 1, 1}},
      waits{WindowsFrom::Auto, {23007, 0, 1, 0, 1}}, ipc{WindowsFrom::Ipc, {23007, 0, 1, 0}},
      nccl{WindowsFrom::Nccl, {23007, 0, 1, 0}}, shares{WindowsFrom::Nccl, {23007, 1, 1, 0}};
  CHECK(why({v230, v230, v230}) == "");
  CHECK(why({v230}) == "one rank");
  CHECK(has(why({v230, nccl, ipc}), "rank 2 asks for ipc (ULYSSES_WINDOWS)"));
  CHECK(has(why({v230, none}), "rank 1 finds no libnccl"));
  CHECK(has(why({v230, old}), "rank 0 has NCCL 2.30.7, rank 1 has 2.28.9"));
  CHECK(has(why({old, old}), "from 2.29.0 on, and this is 2.28.9"));
  CHECK(has(why({v230, lacking}), "rank 1 lacks functions"));
  CHECK(has(why({v230, v230, off}), "NCCL_CUMEM_ENABLE=0, as on rank 2"));
  CHECK(has(why({v230, waits}), "NCCL_COMM_BLOCKING=1, as on rank 1"));
  CHECK(why({v230, v230}, 2) == "ranks share a GPU");
  CHECK(has(why({v230, nccl}, 2), "NCCL_MULTI_RANK_GPU_ENABLE=1"));
  CHECK(why({shares, shares}, 2) == "");
}
