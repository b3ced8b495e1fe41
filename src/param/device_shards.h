// The device side of a parameter communicator: where streams are ordered after one another, and how this rank's shards
// come to be what is gathered. device_shards.cc has a part without CUDA.
#pragma once

#include <ulysses/ulysses.h>

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "param/group.h"

namespace ulysses {

class DeviceShards {
 public:
  static Result<std::unique_ptr<DeviceShards>> create(int device);
  virtual ~DeviceShards() = default;

  // A point of a stream.
  class Moment;
  using MomentRef = std::shared_ptr<Moment>;
  // Null under capture: what a graph holds is ordered by who replays it.
  virtual Result<MomentRef> mark(ulyssesStream_t stream) = 0;
  // What follows on the stream comes after the moment. Null is no moment; one that is over costs nothing. Under capture
  // the moment must be over: ulyssesInvalidUsage.
  virtual Status follow(const MomentRef& moment, ulyssesStream_t stream) = 0;
  virtual bool over(const MomentRef& moment) = 0;
  virtual void wait(const MomentRef& moment) = 0;  // on the host

  // For gathers beside the caller's work.
  virtual ulyssesStream_t prefetchStream() const = 0;

  // Local, before the first gather: room for the shards of every one of `groups`, twice, as far as they are cast or lie
  // in host memory. Finds out where they lie.
  virtual Status prepare(std::span<const ParamGroup* const> groups, int rank) = 0;
  // This rank's shards as they are gathered: the caller's own, or what the stream copies and casts first. One gather
  // later the other half of the room is used.
  virtual Status stage(size_t group, ulyssesStream_t stream, std::vector<const void*>* in) = 0;
  // The gather that reads what stage() gave is on the stream.
  virtual Status staged(ulyssesStream_t stream) = 0;
};

// Plain device memory, all zero; nullptr is not freed. On `device`, whatever device is current.
Result<std::byte*> allocateDeviceMemory(size_t bytes, int device);
void freeDeviceMemory(std::byte* memory, int device);

}  // namespace ulysses
