// The ledgers of CTAs: ranks of one GPU find the same one, whichever communicator brought them together.
#include "transport/cta_account.h"

#include "bootstrap_ranks.h"
#include "support/catch.h"
#include "support/rendezvous_process.h"

using namespace ulysses;
using namespace ulysses::test;
using ulysses::testing::RendezvousProcess;

namespace {

constexpr uint32_t kCapacity = 132;

using AccountBody = std::function<std::string(CtaAccount& account, ControlChannel& channel)>;

Status meet(ControlChannel& channel) {
  std::vector<Bytes> all;
  return channel.allgather({}, all, Deadline::afterMs(20'000));
}

// One communicator's ranks; rank r is on gpus[r].
RankBody accounts(const ulyssesUniqueId& id, const std::vector<std::string>& gpus, const AccountBody& body) {
  return [=](int rank) -> std::string {
    Result<std::unique_ptr<ControlChannel>> channel = openChannel(id, rank, static_cast<int>(gpus.size()), 20'000);
    if (!channel.ok()) return describe(channel.status());
    Result<std::unique_ptr<CtaAccount>> account =
        CtaAccount::open(gpus[static_cast<size_t>(rank)], *channel.value(), Deadline::afterMs(20'000));
    if (!account.ok()) return describe(account.status());
    return body(*account.value(), *channel.value());
  };
}

// Every rank takes 20, all see what their GPU's ranks have taken, and give it back.
std::string takeAndGiveBack(CtaAccount& account, ControlChannel& channel, uint32_t sharers) {
  if (account.ledgers() != 1) return "ledgers";
  if (!account.reserve(20, kCapacity)) return "refused";
  if (!meet(channel).ok()) return "meeting";
  if (account.available(kCapacity) != kCapacity - 20 * sharers) return std::to_string(account.available(kCapacity));
  if (account.reserve(kCapacity - 20 * sharers + 1, kCapacity)) return "beyond the capacity";
  if (!meet(channel).ok()) return "meeting";
  account.giveBack(20);
  if (!meet(channel).ok()) return "meeting";
  return account.available(kCapacity) == kCapacity ? "ok" : "not given back";
}

}  // namespace

TEST_CASE("CTA accounts: ranks on one GPU count together, ranks on another apart", "[host]") {
  const std::vector<std::string> gpus{"GPU-a", "GPU-b", "GPU-a", "GPU-a"};
  for (const bool threads : {true, false}) {
    const RendezvousProcess rendezvous;
    const RankBody body = accounts(rendezvous.id(), gpus, [](CtaAccount& account, ControlChannel& channel) {
      return takeAndGiveBack(account, channel, channel.rank() == 1 ? 1 : 3);
    });
    INFO((threads ? "threads" : "processes"));
    CHECK(allAre(threads ? runThreads(4, body) : runProcesses(4, body), "ok"));
  }
}

TEST_CASE("CTA accounts: a second communicator of some of the ranks counts with the first", "[host]") {
  const RendezvousProcess first, second;
  const std::vector<std::string> one(3, "GPU-a"), two(2, "GPU-a");
  const auto said =
      runProcesses(3, accounts(first.id(), one, [&](CtaAccount& account, ControlChannel& channel) -> std::string {
                     if (!account.reserve(10, kCapacity)) return "refused";
                     if (!meet(channel).ok()) return "meeting";
                     std::string text = "ok";
                     if (channel.rank() > 0)
                       text = accounts(second.id(), two, [](CtaAccount& other, ControlChannel& pair) -> std::string {
                         if (other.ledgers() != 1) return "another ledger";
                         if (other.available(kCapacity) != kCapacity - 30)
                           return std::to_string(other.available(kCapacity));
                         return meet(pair).ok() && other.reserve(5, kCapacity) ? "ok" : "refused";
                       })(channel.rank() - 1);
                     if (!meet(channel).ok()) return "meeting";
                     return account.available(kCapacity) == kCapacity - 40
                                ? text
                                : text + " " + std::to_string(account.available(kCapacity));
                   }));
  CHECK(allAre(said, "ok"));
}

TEST_CASE("CTA accounts: processes that never met each bring a ledger, together they count in both", "[host]") {
  const RendezvousProcess all;
  const auto said = runProcesses(2, [&](int rank) -> std::string {
    const Result<ulyssesUniqueId> own = startRendezvous();
    return accounts(own.value(), {"GPU-a"}, [&](CtaAccount& mine, ControlChannel&) -> std::string {
      if (!mine.reserve(rank == 0 ? 100 : 7, kCapacity)) return "refused";
      return accounts(all.id(), {"GPU-a", "GPU-a"}, [&](CtaAccount& both, ControlChannel& channel) -> std::string {
        if (both.ledgers() != 2) return "ledgers";
        if (both.available(kCapacity) != 32) return std::to_string(both.available(kCapacity));
        if (!meet(channel).ok()) return "meeting";
        if (rank == 0 && both.reserve(33, kCapacity)) return "beyond";
        if (!both.reserve(16, kCapacity)) return "both refused";
        if (!meet(channel).ok()) return "meeting";
        return both.available(kCapacity) == 0 && mine.available(kCapacity) == (rank == 0 ? 0u : kCapacity - 39u)
                   ? "ok"
                   : "sums";
      })(rank);
    })(0);
  });
  CHECK(allAre(said, "ok"));
}

TEST_CASE("CTA accounts: where nobody holds a ledger any more, the next one starts empty", "[host]") {
  for (int i = 0; i < 3; ++i) {
    const Result<ulyssesUniqueId> id = startRendezvous();
    REQUIRE(id.ok());
    CHECK(allAre(runThreads(2, accounts(id.value(), {"GPU-a", "GPU-a"},
                                        [](CtaAccount& account, ControlChannel& channel) -> std::string {
                                          const bool fresh = account.available(kCapacity) == kCapacity;
                                          if (!meet(channel).ok() || !account.reserve(50, kCapacity) ||
                                              !meet(channel).ok())
                                            return "meeting";
                                          return fresh ? "ok" : "left over";
                                        })),
                 "ok"));
  }
}
