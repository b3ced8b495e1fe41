#include "param/param_communicator.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/format.h"
#include "base/log.h"
#include "base/test_hooks.h"
#include "base/versioned.h"
#include "bootstrap/gather_values.h"
#include "param/cast.h"
#include "plan/policy_facts.h"

namespace ulysses {
namespace {

const char* residencyName(uint64_t kind) {
  switch (kind) {
    case ulyssesResidencyPersistent:
      return "persistent";
    case ulyssesResidencyBudget:
      return "budget";
    default:
      return "transient";
  }
}

// What the ranks show of themselves before their groups.
struct Header {
  uint64_t groups = 0, residency = 0, prefetchDepth = 0;
  uint64_t budgetBytes = 0;  // may differ: the smallest holds
};

template <class T>
Status gatherValues(const T& mine, std::vector<T>& all, Communicator& comm) {
  return ulysses::gatherValues(
      mine, all, [&](const Bytes& blob, std::vector<Bytes>& blobs) { return comm.allgather(blob, blobs); });
}

// Found by all ranks before anything moved: what storage held, it still holds.
bool nothingMoved(const Status& status) {
  switch (status.code()) {
    case ulyssesMismatch:
    case ulyssesInvalidArgument:
    case ulyssesInvalidUsage:
    case ulyssesNotSupported:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<std::shared_ptr<ParamCommunicator>> ParamCommunicator::create(std::shared_ptr<Communicator> comm,
                                                                     const ulyssesParamConfig_t* config) {
  Residency residency;
  if (config != nullptr) {
    ULYSSES_TRY(checkVersioned(*config, "the configuration", "ULYSSES_PARAM_CONFIG_INITIALIZER"));
    if (config->residency < ulyssesResidencyPersistent || config->residency > ulyssesResidencyTransient)
      return Status(ulyssesInvalidArgument,
                    formatText("residency is {}, not a ulyssesResidency_t", static_cast<int>(config->residency)));
    if (config->prefetchDepth < 0)
      return Status(ulyssesInvalidArgument, formatText("prefetchDepth is {}", config->prefetchDepth));
    residency = {config->residency, config->budgetBytes, static_cast<size_t>(config->prefetchDepth)};
  }
  residency = overridden(residency, comm->parameters().residency);
  std::shared_ptr<ParamCommunicator> params(new ParamCommunicator(std::move(comm), residency));
  if (params->comm_->onDevice()) {
    ULYSSES_ASSIGN(params->device_, DeviceShards::create(params->comm_->device()));
  }
  return params;
}

ParamCommunicator::~ParamCommunicator() {
  drain();
  freeRetired(true);
}

void ParamCommunicator::drain() {
  if (!device_) return;
  const auto wait = [this](const Order& order) {
    device_->wait(order.filled);
    device_->wait(order.read);
  };
  for (const Group& g : groups_) wait(g.order);
  for (const Slot& s : slots_) wait(s.order);
}

Status ParamCommunicator::add(std::span<const ulyssesParamDesc_t> descs, int* group) {
  const std::lock_guard lock(mutex_);
  if (committed_)
    return Status(ulyssesInvalidUsage, "groups are added before ulyssesParamCommit, which has been called");
  if (group == nullptr) return Status(ulyssesInvalidArgument, "group is NULL");
  Group added;
  Result<ParamGroup> facts =
      makeGroup(descs, comm_->rank(), comm_->nranks(), comm_->onDevice() ? size_t{device::kMaxOperands} : kMaxOperands);
  if (!facts.ok()) {
    if (failedAdd_.ok())
      failedAdd_ =
          Status(facts.status().code(), formatText("ulyssesParamGroupAdd failed: {}", facts.status().message()));
    return facts.status();
  }
  added.facts = facts.take();
  *group = static_cast<int>(groups_.size());
  groups_.push_back(std::move(added));
  return {};
}

Status ParamCommunicator::commit() {
  const std::lock_guard lock(mutex_);
  Call call;
  call.operation = Operation::ParamCommit;
  if (committed_) call.local = Status(ulyssesInvalidUsage, "ulyssesParamCommit has been called before");
  ULYSSES_TRY(comm_->run(call));
  size_t budget = 0;
  if (const Status differs = agreeOnGroups(&budget); !differs.ok()) {
    // Groups that differ because one was refused on a rank: that is the cause. All ranks are here with the same
    // outcome.
    if (differs.code() == ulyssesMismatch) ULYSSES_TRY(comm_->agreeLocal(failedAdd_));
    return differs;
  }
  residency_.budgetBytes = budget;
  std::vector<size_t> bytes;
  for (const Group& g : groups_) bytes.push_back(g.facts.bytes);
  const Status adopted = adopt(planResidency(bytes, residency_));
  if (!adopted.ok()) {
    plan_ = {};
    return adopted;
  }
  ULYSSES_TRY(comm_->agreeLocal(prepareShards()));
  number_ = comm_->nextParamNumber();
  committed_ = true;
  stats_.peakBytes = allocatedBytes();
  ULYSSES_LOG(
      Info, -1,
      "rank {} of {}: {} parameter groups, {}; {} of them ({} bytes) stay, the others share {} slots of {} bytes",
      comm_->rank(), comm_->nranks(), groups_.size(), residencyName(residency_.kind), plan_.pinned, plan_.pinnedBytes,
      plan_.slots, plan_.slotBytes);
  return {};
}

Status ParamCommunicator::agreeOnGroups(size_t* budget) {
  const Header mine{groups_.size(), static_cast<uint64_t>(residency_.kind), residency_.prefetchDepth,
                    residency_.budgetBytes};
  std::vector<Header> headers;
  ULYSSES_TRY(gatherValues(mine, headers, *comm_));
  *budget = mine.budgetBytes;
  for (size_t r = 0; r < headers.size(); ++r) {
    const Header &a = headers[0], &b = headers[r];
    const auto differ = [&](const char* field, const std::string& x, const std::string& y) {
      return Status(ulyssesMismatch, "ulyssesParamCommit: " + differenceText(field, 0, x, static_cast<int>(r), y));
    };
    if (a.groups != b.groups) return differ("number of groups", std::to_string(a.groups), std::to_string(b.groups));
    if (a.residency != b.residency) return differ("residency", residencyName(a.residency), residencyName(b.residency));
    if (a.prefetchDepth != b.prefetchDepth)
      return differ("prefetchDepth", std::to_string(a.prefetchDepth), std::to_string(b.prefetchDepth));
    *budget = std::min<size_t>(*budget, b.budgetBytes);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<Bytes> records;
    ULYSSES_TRY(comm_->allgather(encodeGroup(groups_[g].facts), records));
    ULYSSES_TRY(agreeGroup(g, records));
  }
  return {};
}

Status ParamCommunicator::adopt(const ResidencyPlan& plan) {
  drain();
  if (plan.slots != plan_.slots || plan.slotBytes != plan_.slotBytes) slots_.clear();
  plan_ = plan;
  for (Slot& slot : slots_) empty(slot);
  std::vector<Storage*> places;
  std::vector<Storage::Size> sizes;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& g = groups_[i];
    if (i >= plan_.pinned || g.slot >= 0) forget(g);
    if (i >= plan_.pinned) g.storage = Storage();
    if (i >= plan_.pinned || g.storage) continue;
    places.push_back(&g.storage);
    sizes.push_back({g.facts.bytes, g.facts.alignment});
  }
  slots_.resize(plan_.slots);
  for (Slot& slot : slots_) {
    if (slot.storage) continue;
    places.push_back(&slot.storage);
    sizes.push_back(slotSize());
  }
  const Status status = allocate(places, sizes);
  if (!status.ok()) slots_.clear();  // what is missing is tried again when it is needed
  return status;
}

Storage::Size ParamCommunicator::slotSize() const {
  Storage::Size size{plan_.slotBytes, 1};
  for (size_t i = plan_.pinned; i < groups_.size(); ++i)
    size.alignment = std::max(size.alignment, groups_[i].facts.alignment);
  return size;
}

Status ParamCommunicator::allocate(std::span<Storage* const> places, std::span<const Storage::Size> sizes) {
  if (places.empty()) return {};
  std::vector<Storage> made;
  ULYSSES_TRY(Storage::allocate(*comm_, sizes, &made));
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(made[i]);
  return {};
}

Status ParamCommunicator::prepareShards() {
  if (device_) {
    std::vector<const ParamGroup*> facts;
    for (Group& g : groups_) {
      facts.push_back(&g.facts);
      for (const GatherPart& part : g.facts.parts)
        g.device.push_back(
            {plan::policyFacts(comm_->policyFacts(), g.facts.parameters[part.first].gatherType, part.schedule), nullptr,
             nullptr});
    }
    return device_->prepare(facts, comm_->rank());
  }
  size_t most = 0;
  for (const Group& g : groups_) most = std::max(most, g.facts.castBytes);
  cast_.resize(most);
  for (Group& g : groups_) {
    size_t at = 0;
    for (const Parameter& p : g.facts.parameters) {
      g.in.push_back(p.cast() ? cast_.data() + at : p.shard);
      if (p.cast()) at += p.bytesOf(comm_->rank());
    }
  }
  return {};
}

void ParamCommunicator::castShards(const Group& group) {
  for (size_t i = 0; i < group.in.size(); ++i) {
    const Parameter& p = group.facts.parameters[i];
    if (!p.cast()) continue;
    auto* out = cast_.data() + (static_cast<const std::byte*>(group.in[i]) - cast_.data());
    castShard(static_cast<const float*>(p.shard), reinterpret_cast<uint16_t*>(out),
              p.splits[static_cast<size_t>(comm_->rank())], p.gatherType);
  }
}

Status ParamCommunicator::check(int group) const {
  if (!committed_) return Status(ulyssesInvalidUsage, "ulyssesParamCommit comes first");
  if (group < 0 || static_cast<size_t>(group) >= groups_.size())
    return Status(ulyssesInvalidArgument, formatText("there is no group {}, only {}", group, groups_.size()));
  return {};
}

Status ParamCommunicator::checkFree(int group) const {
  ULYSSES_TRY(check(group));
  if (!groups_[static_cast<size_t>(group)].held) return {};
  return Status(ulyssesInvalidUsage, formatText("group {} is acquired; release it first", group));
}

Contract::Geometry ParamCommunicator::geometry(int group, uint64_t version) const {
  Contract::Geometry g;
  g.batch = number_;
  g.object = static_cast<uint64_t>(group);
  g.version = version;
  return g;
}

Status ParamCommunicator::refuse(Operation operation, int group, Status local) {
  Call call;
  call.operation = operation;
  call.geometry = geometry(group, 0);
  call.local = std::move(local);
  return comm_->run(call);
}

Status ParamCommunicator::acquire(int group, void* ptrs[], ulyssesStream_t stream, Status local) {
  const std::lock_guard lock(mutex_);
  if (local.ok()) local = checkFree(group);
  if (local.ok() && ptrs == nullptr) local = Status(ulyssesInvalidArgument, "ptrs is NULL");
  if (!local.ok()) return refuse(Operation::ParamAcquire, group, std::move(local));
  Group& g = at(group);
  if (g.current()) {
    ULYSSES_TRY(hit(group));
    if (device_) ULYSSES_TRY(device_->follow(orderOf(g).filled, stream));
    ++stats_.hits;
    stats_.prefetchHits += g.prefetched;
  } else {
    ULYSSES_TRY(growFor(group));
    const int slot = pinned(group) ? -1 : findSlot(group, true);
    if (!pinned(group) && slot < 0)
      return refuse(
          Operation::ParamAcquire, group,
          Status(ulyssesOutOfMemory,
                 formatText("all {} slots of the ring hold acquired groups, so group {} has none; release one, "
                            "or set a larger prefetchDepth or budget",
                            slots_.size(), group)));
    ULYSSES_TRY(gather(group, slot, stream));
  }
  ++stats_.acquires;
  g.held = true;
  g.prefetched = false;
  std::byte* storage = storageOf(g);
  for (size_t i = 0; i < g.facts.parameters.size(); ++i) ptrs[i] = storage + g.facts.parameters[i].offset;
  return {};
}

Status ParamCommunicator::prefetch(int group, ulyssesStream_t stream, Status local) {
  const std::lock_guard lock(mutex_);
  if (local.ok()) local = check(group);
  if (!local.ok()) return refuse(Operation::ParamAcquire, group, std::move(local));
  Group& g = at(group);
  if (g.current()) return hit(group);
  if (pinned(group)) ULYSSES_TRY(growFor(group));
  const int slot = pinned(group) ? -1 : findSlot(group, false);
  if (!pinned(group) && slot < 0) return hit(group);  // no slot for it, on no rank
  if (device_ && !isCapturing(stream)) {
    const Status status = followCaller(stream);
    // What is wrong here is told the peers, who are in the gather.
    if (!status.ok()) return refuse(Operation::ParamAcquire, group, status);
    stream = device_->prefetchStream();
  }
  ULYSSES_TRY(gather(group, slot, stream));
  g.prefetched = true;
  return {};
}

Status ParamCommunicator::followCaller(ulyssesStream_t stream) {
  ULYSSES_TRY(hooks::injectedFailure(hooks::Stage::Prefetch));
  ULYSSES_ASSIGN(const DeviceShards::MomentRef here, device_->mark(stream));
  return device_->follow(here, device_->prefetchStream());
}

int ParamCommunicator::findSlot(int group, bool desperate) const {
  if (const int own = groups_[static_cast<size_t>(group)].slot; own >= 0) return own;
  std::vector<SlotUse> uses;
  for (const Slot& s : slots_) {
    const Group* user = s.group >= 0 ? &groups_[static_cast<size_t>(s.group)] : nullptr;
    uses.push_back({user != nullptr && user->held, user != nullptr && user->prefetched, s.filled});
  }
  return chooseSlot(uses, desperate);
}

Status ParamCommunicator::growFor(int group) {
  freeRetired(false);
  const bool missing = pinned(group) ? !at(group).storage : mayGrow() && findSlot(group, true) < 0;
  if (!missing) return {};
  Call call;
  call.operation = Operation::ParamAcquire;
  call.geometry = geometry(group, at(group).version);
  ULYSSES_TRY(comm_->run(call));
  if (pinned(group)) {
    Storage* const place = &at(group).storage;
    const Storage::Size size{at(group).facts.bytes, at(group).facts.alignment};
    ULYSSES_TRY(allocate(std::span(&place, 1), std::span(&size, 1)));
  } else {
    Slot slot;
    Storage* const place = &slot.storage;
    const Storage::Size size = slotSize();
    ULYSSES_TRY(allocate(std::span(&place, 1), std::span(&size, 1)));
    slots_.push_back(std::move(slot));
  }
  stats_.peakBytes = std::max(stats_.peakBytes, allocatedBytes());
  return {};
}

Status ParamCommunicator::gather(int group, int slot, ulyssesStream_t stream) {
  Group& g = at(group);
  Slot* const place = slot < 0 ? nullptr : &slots_[static_cast<size_t>(slot)];
  Order& order = place != nullptr ? place->order : g.order;
  if (place != nullptr && device_ && isCapturing(stream))
    return refuse(
        Operation::ParamAcquire, group,
        Status(ulyssesInvalidUsage, formatText("group {} is streamed: its slot is another group's when a graph is "
                                               "replayed; record what is resident",
                                               group)));
  Status status = stageShards(group, order, stream);
  // What is wrong here is told the peers, who are in the gather.
  if (!status.ok()) return refuse(Operation::ParamAcquire, group, status);
  status = transfer(group, place != nullptr ? place->storage.data() : g.storage.data(), stream);
  if (!status.ok() && nothingMoved(status)) return status;
  // What a graph gathers is there when it is replayed, not now.
  if (device_ && status.ok() && isCapturing(stream)) return device_->staged(stream);
  if (device_ && status.ok()) status = noteFilled(order, stream);
  if (place != nullptr && place->group != group) {
    if (place->group >= 0) ++stats_.evictions;
    empty(*place);
    place->group = group;
    g.slot = slot;
  }
  if (!status.ok()) {
    g.resident = 0;
    return status;
  }
  g.resident = g.gathered = g.version;
  ++stats_.gathers;
  if (place != nullptr) place->filled = stats_.gathers;
  stats_.bytesMoved += g.facts.gathered;
  return {};
}

Status ParamCommunicator::noteFilled(Order& order, ulyssesStream_t stream) {
  ULYSSES_TRY(device_->staged(stream));
  ULYSSES_ASSIGN(order.filled, device_->mark(stream));
  order.read.reset();
  return {};
}

Status ParamCommunicator::stageShards(int group, const Order& order, ulyssesStream_t stream) {
  Group& g = at(group);
  if (!device_) {
    castShards(g);
    return {};
  }
  for (const DeviceShards::MomentRef& before : {order.filled, order.read, g.published})
    ULYSSES_TRY(device_->follow(before, stream));
  return device_->stage(static_cast<size_t>(group), stream, &g.in);
}

Status ParamCommunicator::transfer(int group, std::byte* storage, ulyssesStream_t stream) {
  Group& g = at(group);
  for (size_t k = 0; k < g.facts.parts.size(); ++k) {
    const GatherPart& part = g.facts.parts[k];
    void* out[kMaxOperands];
    for (size_t i = 0; i < part.schedule.operands; ++i) out[i] = storage + g.facts.parameters[part.first + i].offset;
    Call call;
    call.operation = Operation::ParamAcquire;
    call.geometry = geometry(group, g.version);
    call.geometry.operands = part.schedule.operands;
    call.schedule = &part.schedule;
    call.in = g.in.data() + part.first;
    call.out = out;
    call.stream = stream;
    if (device_) call.held = &g.device[k];
    const Status status = comm_->run(call);
    if (status.ok()) continue;
    if (part.first == 0 || !nothingMoved(status)) return status;
    return Status(ulyssesInternalError, formatText("group {} is gathered in part: {}", group, status.message()));
  }
  return {};
}

void ParamCommunicator::forget(Group& group) {
  group.slot = -1;
  group.resident = 0;
  group.prefetched = false;
}

void ParamCommunicator::empty(Slot& slot) {
  if (slot.group >= 0) forget(at(slot.group));
  slot.group = -1;
  slot.filled = 0;
}

std::byte* ParamCommunicator::storageOf(const Group& group) const {
  return group.slot >= 0 ? slots_[static_cast<size_t>(group.slot)].storage.data() : group.storage.data();
}

Status ParamCommunicator::release(int group, ulyssesStream_t stream) {
  const std::lock_guard lock(mutex_);
  ULYSSES_TRY(check(group));
  Group& g = at(group);
  if (!g.held) return Status(ulyssesInvalidUsage, formatText("group {} is not acquired", group));
  if (device_) {
    ULYSSES_ASSIGN(orderOf(g).read, device_->mark(stream));
  }
  g.held = false;
  if (residency_.kind == ulyssesResidencyTransient) empty(slots_[static_cast<size_t>(g.slot)]);
  return {};
}

Status ParamCommunicator::publish(int group, ulyssesStream_t stream) {
  const std::lock_guard lock(mutex_);
  ULYSSES_TRY(checkFree(group));
  Group& g = at(group);
  if (device_) {
    ULYSSES_ASSIGN(g.published, device_->mark(stream));
  }
  g.version = g.gathered + 1;
  g.prefetched = false;
  return {};
}

Status ParamCommunicator::reshard(int group, ulyssesStream_t stream) {
  const std::lock_guard lock(mutex_);
  ULYSSES_TRY(checkFree(group));
  Group& g = at(group);
  if (g.slot >= 0) empty(slots_[static_cast<size_t>(g.slot)]);
  forget(g);
  if (device_ && g.storage) {
    ULYSSES_ASSIGN(const DeviceShards::MomentRef here, device_->mark(stream));
    retired_.push_back({std::move(g.storage), g.order.read, g.order.filled, here});
    g.order = {};
    freeRetired(false);
  }
  g.storage = Storage();
  return {};
}

void ParamCommunicator::freeRetired(bool all) {
  if (!device_) return;
  std::erase_if(retired_, [&](const Retired& r) {
    for (const DeviceShards::MomentRef& moment : {r.read, r.filled, r.dropped}) {
      if (all) device_->wait(moment);
      if (!device_->over(moment)) return false;
    }
    return true;
  });
}

Status ParamCommunicator::setBudget(size_t bytes) {
  const std::lock_guard lock(mutex_);
  Call call;
  call.operation = Operation::ParamSetBudget;
  call.geometry.batch = number_;
  const auto held = std::find_if(groups_.begin(), groups_.end(), [](const Group& g) { return g.held; });
  if (!committed_)
    call.local = Status(ulyssesInvalidUsage, "ulyssesParamCommit comes first");
  else if (residency_.kind != ulyssesResidencyBudget)
    call.local =
        Status(ulyssesInvalidUsage, formatText("residency is {}, which has no budget", residencyName(residency_.kind)));
  else if (held != groups_.end())
    call.local =
        Status(ulyssesInvalidUsage, formatText("group {} is acquired; release it first", held - groups_.begin()));
  ULYSSES_TRY(comm_->run(call));
  std::vector<uint64_t> wishes;
  ULYSSES_TRY(gatherValues(uint64_t{bytes}, wishes, *comm_));
  residency_.budgetBytes = *std::min_element(wishes.begin(), wishes.end());
  std::vector<size_t> sizes;
  for (const Group& g : groups_) sizes.push_back(g.facts.bytes);
  const Status status = adopt(planResidency(sizes, residency_));
  stats_.peakBytes = std::max(stats_.peakBytes, allocatedBytes());
  return status;
}

size_t ParamCommunicator::allocatedBytes() const {
  size_t bytes = 0;
  for (const Group& g : groups_) bytes += g.storage.bytes();
  for (const Slot& s : slots_) bytes += s.storage.bytes();
  return bytes;
}

void ParamCommunicator::describe(ulyssesParamStats_t& stats) const {
  const std::lock_guard lock(mutex_);
  stats = stats_;
  stats.residentBytes = allocatedBytes();
  if (residency_.kind != ulyssesResidencyTransient) return;
  for (const Slot& s : slots_)
    if (s.group < 0) stats.residentBytes -= s.storage.bytes();  // given back to the pool
}

}  // namespace ulysses
