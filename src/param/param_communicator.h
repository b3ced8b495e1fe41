// Parameter groups of one communicator: what is resident, what has to be gathered, and where it lies. The rules of
// versions and residency are those of tests/model/residency.pml: every decision follows from the calls made so far,
// which are the same on all ranks.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "api/communicator.h"
#include "param/device_shards.h"
#include "param/group.h"
#include "param/residency.h"
#include "param/storage.h"

namespace ulysses {

class ParamCommunicator {
 public:
  static Result<std::shared_ptr<ParamCommunicator>> create(std::shared_ptr<Communicator> comm,
                                                           const ulyssesParamConfig_t* config);

  ~ParamCommunicator();

  const std::shared_ptr<Communicator>& communicator() const { return comm_; }

  Status add(std::span<const ulyssesParamDesc_t> descs, int* group);
  Status commit();  // collective
  // Collective, as far as the group is not resident. `local`: what is wrong with the call already.
  Status acquire(int group, void* ptrs[], ulyssesStream_t stream, Status local);
  Status prefetch(int group, ulyssesStream_t stream, Status local);
  Status setBudget(size_t bytes);  // collective
  Status release(int group, ulyssesStream_t stream);
  Status publish(int group, ulyssesStream_t stream);
  Status reshard(int group, ulyssesStream_t stream);
  void describe(ulyssesParamStats_t& stats) const;

 private:
  // Of device memory: what has to be over on their streams before a copy is written or read anew.
  struct Order {
    DeviceShards::MomentRef filled, read;
  };
  // A group and its copy. A version is what one gather can tell from the one before, so publishing twice in between
  // makes one.
  struct Group {
    ParamGroup facts;
    std::vector<const void*> in;   // this rank's shards, as they are gathered
    std::vector<OnDevice> device;  // of its parts
    DeviceShards::MomentRef published;
    Storage storage;                                   // of a pinned group
    Order order;                                       // likewise
    int slot = -1;                                     // of a streamed one
    uint64_t version = 1, gathered = 0, resident = 0;  // of the shards; of the last gather; of the copy (0: none)
    bool held = false;                                 // between Acquire and Release
    bool prefetched = false;                           // since the last Acquire
    bool current() const { return resident == version; }
  };
  struct Slot {
    Storage storage;
    Order order;
    int group = -1;
    uint64_t filled = 0;
  };

  ParamCommunicator(std::shared_ptr<Communicator> comm, const Residency& residency)
      : comm_(std::move(comm)), residency_(residency) {}

  Status check(int group) const;
  Status checkFree(int group) const;
  bool pinned(int group) const { return static_cast<size_t>(group) < plan_.pinned; }
  Group& at(int group) { return groups_[static_cast<size_t>(group)]; }
  Contract::Geometry geometry(int group, uint64_t version) const;
  Status hit(int group) { return comm_->hit(Operation::ParamAcquire, geometry(group, at(group).version)); }
  // A call that is wrong on this rank: everybody is told.
  Status refuse(Operation operation, int group, Status local);

  Status agreeOnGroups(size_t* budget);
  // Makes the storage that `plan` wants and the groups lack.
  Status adopt(const ResidencyPlan& plan);
  Status allocate(std::span<Storage* const> places, std::span<const Storage::Size> sizes);
  Storage::Size slotSize() const;
  Status prepareShards();

  // The slot that a streamed group is gathered into: its own, one that is free, a new one; -1 where there is none.
  int findSlot(int group, bool desperate) const;
  bool mayGrow() const { return residency_.kind == ulyssesResidencyTransient || slots_.size() < plan_.slots; }
  // Collective: storage for a group that has none, after a Reshard or where the pool has to grow.
  Status growFor(int group);
  Order& orderOf(Group& group) { return group.slot >= 0 ? slots_[static_cast<size_t>(group.slot)].order : group.order; }
  // Lets the stream of prefetches wait for what the caller's has done so far.
  Status followCaller(ulyssesStream_t stream);
  Status gather(int group, int slot, ulyssesStream_t stream);
  Status transfer(int group, std::byte* storage, ulyssesStream_t stream);
  Status noteFilled(Order& order, ulyssesStream_t stream);
  // This rank's shards as they are gathered, after all that the gather must follow.
  Status stageShards(int group, const Order& order, ulyssesStream_t stream);
  void castShards(const Group& group);
  // Waits on the host until no stream uses any copy.
  void drain();
  // Gives back what was waiting for streams. All of it: waits on the host.
  void freeRetired(bool all);
  void forget(Group& group);  // its copy
  void empty(Slot& slot);
  std::byte* storageOf(const Group& group) const;
  size_t allocatedBytes() const;

  const std::shared_ptr<Communicator> comm_;
  Residency residency_;
  mutable std::mutex mutex_;
  bool committed_ = false;
  Status failedAdd_;     // why the first group that was refused was
  uint64_t number_ = 0;  // among the parameter communicators of comm_
  std::vector<Group> groups_;
  ResidencyPlan plan_;
  std::vector<Slot> slots_;
  std::vector<std::byte> cast_;           // this rank's shards of the group that is gathered, where they are cast
  std::unique_ptr<DeviceShards> device_;  // null on host memory
  struct Retired {
    Storage storage;
    DeviceShards::MomentRef read, filled, dropped;
  };
  std::vector<Retired> retired_;  // storage that streams may still use
  ulyssesParamStats_t stats_ = ULYSSES_PARAM_STATS_INITIALIZER;
};

}  // namespace ulysses
