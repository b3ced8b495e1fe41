#include "transport/cta_account.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "base/format.h"
#include "base/mapping.h"
#include "base/process.h"
#include "bootstrap/stage.h"
#include "device/ledger.h"

namespace ulysses {
namespace {

using Id = std::array<uint64_t, 2>;  // random

constexpr size_t kLedgerBytes = 4096;
constexpr size_t kMostTold = 8;  // of one rank: as many descriptors as go in one message

// What a rank tells of itself: its GPU, and the ledgers its process has for it.
struct Told {
  std::string gpu;
  std::vector<Id> ids;

  Bytes bytes() const {
    Bytes blob(gpu.size() + ids.size() * sizeof(Id) + 1);
    blob[0] = static_cast<std::byte>(ids.size());
    if (!ids.empty()) std::memcpy(blob.data() + 1, ids.data(), ids.size() * sizeof(Id));
    std::memcpy(blob.data() + blob.size() - gpu.size(), gpu.data(), gpu.size());
    return blob;
  }
  static Result<Told> from(const Bytes& blob, size_t rank) {
    const size_t n = blob.empty() ? 0 : static_cast<size_t>(blob[0]);
    if (blob.size() < 1 + n * sizeof(Id)) return Status(ulyssesInternalError, formatText("rank {} told of its GPU wrongly", rank));
    Told told;
    told.ids.resize(n);
    if (n != 0) std::memcpy(told.ids.data(), blob.data() + 1, n * sizeof(Id));
    told.gpu.assign(reinterpret_cast<const char*>(blob.data()) + 1 + n * sizeof(Id), blob.size() - 1 - n * sizeof(Id));
    return told;
  }
};

Result<std::vector<Told>> tellAll(const Told& mine, ControlChannel& channel, Deadline deadline) {
  std::vector<Bytes> blobs;
  ULYSSES_TRY(channel.allgather(mine.bytes(), blobs, deadline));
  std::vector<Told> all;
  for (size_t r = 0; r < blobs.size(); ++r) {
    ULYSSES_ASSIGN(Told told, Told::from(blobs[r], r));
    all.push_back(std::move(told));
  }
  return all;
}

}  // namespace

struct CtaAccount::Ledger {
  std::string gpu;
  Id id;
  std::shared_ptr<Mapping> memory;
  device::CtaLedger words() const { return device::CtaLedger(*reinterpret_cast<std::atomic<uint32_t>*>(memory->data())); }
};

// The ledgers that communicators of this process hold: what makes those of one process count together that share no
// other rank. It keeps none alive.
struct CtaAccount::Book {
  std::mutex mutex;
  std::vector<std::weak_ptr<Ledger>> ledgers;

  static Book& ofProcess() {
    static Book book;
    return book;
  }
  std::vector<std::shared_ptr<Ledger>> of(const std::string& gpu) {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<Ledger>> found;
    for (const auto& weak : ledgers)
      if (auto ledger = weak.lock(); ledger && ledger->gpu == gpu && found.size() < kMostTold) found.push_back(std::move(ledger));
    return found;
  }
  // The one that is there already, where another thread was first.
  std::shared_ptr<Ledger> add(std::shared_ptr<Ledger> ledger) {
    const std::lock_guard lock(mutex);
    std::erase_if(ledgers, [](const auto& weak) { return weak.expired(); });
    for (const auto& weak : ledgers)
      if (auto known = weak.lock(); known && known->id == ledger->id) return known;
    ledgers.push_back(ledger);
    return ledger;
  }
};

Result<std::unique_ptr<CtaAccount>> CtaAccount::open(const std::string& gpu, ControlChannel& channel, Deadline deadline) {
  Book& book = Book::ofProcess();
  std::unique_ptr<CtaAccount> account(new CtaAccount);
  std::vector<std::shared_ptr<Ledger>>& held = account->ledgers_;
  held = book.of(gpu);
  const auto told = [&] {
    Told mine{gpu, {}};
    for (const auto& ledger : held) mine.ids.push_back(ledger->id);
    return mine;
  };

  // Where no rank of this GPU has a ledger, the first of them makes one.
  ULYSSES_ASSIGN(std::vector<Told> all, tellAll(told(), channel, deadline));
  const auto here = [&](const Told& t) { return t.gpu == gpu; };
  const bool none = std::none_of(all.begin(), all.end(), [&](const Told& t) { return here(t) && !t.ids.empty(); });
  Status status;
  if (none && std::find_if(all.begin(), all.end(), here) - all.begin() == channel.rank()) {
    Result<std::shared_ptr<Mapping>> memory = Mapping::create(kLedgerBytes);
    status = memory.status();
    if (memory.ok()) {
      auto ledger = std::make_shared<Ledger>(Ledger{gpu, {}, memory.take()});
      randomBytes(ledger->id.data(), sizeof ledger->id);
      held.push_back(book.add(std::move(ledger)));
    }
  }
  ULYSSES_TRY(agreeStage(channel, status, deadline));

  // All of them to all ranks; the descriptors lie in the order of the ids.
  ULYSSES_ASSIGN(all, tellAll(told(), channel, deadline));
  std::vector<int> mine;
  for (const auto& ledger : held) mine.push_back(ledger->memory->fd());
  std::vector<std::vector<UniqueFd>> fds;
  ULYSSES_TRY(channel.allgatherFds(mine, fds, deadline));
  for (size_t r = 0; r < all.size() && status.ok(); ++r) {
    for (size_t i = 0; i < all[r].ids.size() && here(all[r]) && status.ok(); ++i) {
      const Id& id = all[r].ids[i];
      if (std::any_of(held.begin(), held.end(), [&](const auto& ledger) { return ledger->id == id; })) continue;
      Result<std::shared_ptr<Mapping>> memory =
          i < fds[r].size() ? Mapping::open(std::move(fds[r][i]), kLedgerBytes)
                            : Status(ulyssesSystemError, formatText("no descriptor came for a ledger of rank {}", r));
      status = memory.status();
      if (memory.ok()) held.push_back(book.add(std::make_shared<Ledger>(Ledger{gpu, id, memory.take()})));
    }
  }
  ULYSSES_TRY(agreeStage(channel, status, deadline));
  return account;
}

uint32_t CtaAccount::available(uint32_t capacity) const {
  uint32_t least = capacity;
  for (const auto& ledger : ledgers_) least = std::min(least, capacity - std::min(capacity, ledger->words().used()));
  return least;
}

bool CtaAccount::reserve(uint32_t ctas, uint32_t capacity) {
  for (auto it = ledgers_.begin(); it != ledgers_.end(); ++it) {
    if ((*it)->words().reserve(ctas, capacity)) continue;
    while (it != ledgers_.begin()) (*--it)->words().giveBack(ctas);
    return false;
  }
  return true;
}

void CtaAccount::giveBack(uint32_t ctas) {
  for (const auto& ledger : ledgers_) ledger->words().giveBack(ctas);
}

}  // namespace ulysses
