// A rank's GPU as the perf binaries use it. device.cc needs CUDA; device_none.cc stands for it in other builds.
#pragma once

#include <ulysses/ulysses.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace ulysses::perf {

// Work on the GPU that can be made again as it was recorded.
class Recording {
 public:
  virtual ~Recording() = default;
};

// One stream, on which everything here runs in order. What fails on the way is kept and given by finish().
class Device {
 public:
  // Why device memory can't be had; "" where it can.
  static std::string whyNone();
  static int count();  // of GPUs
  // The GPU for a rank of this host, made current for its thread: they are dealt in turn.
  static Result<std::unique_ptr<Device>> open(int rank);
  virtual ~Device() = default;

  virtual std::string name() const = 0;
  virtual int number() const = 0;
  // Lets copies here go straight to and from the other GPUs of this process, where they can.
  virtual void reachPeers() = 0;
  virtual size_t cacheBytes() const = 0;   // of its L2
  virtual size_t memoryBytes() const = 0;  // free now
  virtual ulyssesStream_t stream() const = 0;

  virtual Result<std::byte*> allocate(size_t bytes) = 0;
  virtual void free(std::byte* data) = 0;

  virtual void put(std::byte* to, const std::byte* fromHost, size_t bytes) = 0;  // complete on return
  virtual void get(std::byte* toHost, const std::byte* from, size_t bytes) = 0;  // likewise
  virtual void set(std::byte* data, int value, size_t bytes) = 0;                // on the stream, as what follows
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // [tokens][peers][units of 16 bytes] -> [peers][tokens][units], or back.
  virtual void permute(std::byte* to, const std::byte* from, size_t tokens, size_t peers, size_t units, bool back) = 0;

  // A block of a model (param/look.h): adds what it sees of the bytes to a sum in device memory; takes time.
  virtual void look(const std::byte* data, size_t bytes, uint64_t visit, std::byte* sum) = 0;
  virtual void busy(int us) = 0;

  // Waits for all of it.
  virtual Status finish() = 0;
  // Time on the GPU from one mark to the next, in us, once finished.
  virtual void mark(int which) = 0;  // 0: the start, 1: the end
  virtual double markedUs() const = 0;
  // The same for many spans: each begins and ends once; then their sum, which also forgets them.
  virtual void beginSpan() = 0;
  virtual void endSpan() = 0;
  virtual double spansUs() = 0;

  virtual Result<std::unique_ptr<Recording>> record(const std::function<Status()>& work) = 0;
  virtual Status replay(const Recording& recording) = 0;
};

// Content of a buffer, edited or looked at on the host: in place on host memory (no device), else by way of a copy.
template <class Edit>
void write(Device* device, std::byte* data, size_t bytes, const Edit& edit) {
  if (device == nullptr) return edit(data);
  std::vector<std::byte> image(bytes);
  edit(image.data());
  device->put(data, image.data(), bytes);
}
template <class Look>
auto read(Device* device, const std::byte* data, size_t bytes, const Look& look) {
  if (device == nullptr) return look(data);
  std::vector<std::byte> image(bytes);
  device->get(image.data(), data, bytes);
  return look(static_cast<const std::byte*>(image.data()));
}

}  // namespace ulysses::perf
