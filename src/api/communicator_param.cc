// What parameter groups ask of a communicator beyond its calls.
#include <algorithm>

#include "api/entry.h"
#include "base/format.h"
#include "base/words.h"
#include "bootstrap/stage.h"

namespace ulysses {
namespace {

// A rolling hash of what was used, in order.
uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

}  // namespace

Status Communicator::hit(Operation operation, const Contract::Geometry& geometry) {
  const Entry entry(*this);
  ULYSSES_TRY(entry.check());
  if (nranks_ == 1) return {};
  recorder_->begin(operation, geometry);
  const Status status = agreement_->post();
  recorder_->end(status, "resident");
  if (!status.ok()) {
    hits_ = hitsHash_ = 0;  // a round has passed
    return status;
  }
  ++hits_;
  hitsHash_ = mixed(mixed(mixed(hitsHash_, geometry.batch), geometry.object), geometry.version);
  return {};
}

Status Communicator::agreeLocal(const Status& mine) {
  const std::lock_guard lock(calls_);
  return agreeStage(*channel_, mine, callDeadline());
}

Status Communicator::windowRoom(size_t* bytes) {
  *bytes = 0;
  if (nranks_ == 1 || !registrar_) return {};
  const std::lock_guard lock(calls_);
  // The windows given back since the last call must be gone before more are made, however many they are.
  const std::span<const uint32_t> freed = registrar_->unannounced(SIZE_MAX);
  std::vector<uint64_t> words{registrar_->freeBytes() + stagingBytes_};
  words.insert(words.end(), freed.begin(), freed.end());
  std::vector<Bytes> all;
  ULYSSES_TRY(channel_->allgather(recordOf(words), all, callDeadline()));
  size_t room = SIZE_MAX;
  for (int r = 0; r < nranks_; ++r) {
    const Bytes& theirs = all[static_cast<size_t>(r)];
    if (theirs.empty() || theirs.size() % sizeof(uint64_t) != 0)
      return Status(ulyssesInternalError, formatText("rank {} sent a malformed record of its windows", r));
    words = wordsOf(theirs);
    room = std::min<size_t>(room, words[0]);
    for (size_t i = 1; i < words.size(); ++i) registrar_->drop(r, static_cast<uint32_t>(words[i]));
  }
  // On device memory plans and calls to come want staging and flags of their own.
  const size_t staging = onDevice() ? registrar_->capBytes() / 4
                                    : std::max(stagingBytes_, StagingShape::wantedBytes(nranks_, stagingLimit_));
  *bytes = room - std::min(room, staging);
  return {};
}

Status Communicator::allocateWindow(size_t bytes, std::byte** base) {
  const std::lock_guard lock(calls_);
  uint32_t window = 0;
  ULYSSES_TRY(registrar_->allocate(bytes, *channel_, callDeadline(), &window));
  ULYSSES_TRY(publish(window));
  *base = registrar_->base(rank_, window);
  return {};
}

}  // namespace ulysses
