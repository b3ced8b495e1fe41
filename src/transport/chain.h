// What one chain of launches needs for itself: flags, staging and an epoch, and a stream where copy engines may move
// its bytes. For builds with CUDA.
#pragma once

#include <functional>
#include <memory>

#include "base/cuda_support.h"
#include "bootstrap/bootstrap.h"
#include "device/exchange.h"
#include "transport/copy_engine.h"
#include "window/registrar.h"

namespace ulysses {

class Chain {
 public:
  struct Setup {
    int rank, nranks;
    size_t lineBytes;  // payload per pair for which there are lines
    bool engines;
    device::HostWords* host;  // as mapped on the device
    const device::WindowRow* windows;
    ControlChannel* channel;
    Registrar* registrar;
  };

  // Collective; the outcome is agreed.
  static Result<std::shared_ptr<Chain>> make(const Setup& setup, Deadline deadline);
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;
  ~Chain();  // local: the peers learn of it at their next call

  const device::Channel& channel() const { return channel_; }
  size_t stagingBytes() const { return stagingBytes_; }
  CopyEngine* engine() const { return engine_.get(); }  // null where there is none

  // Collective. `drain` ends what uses the staging before it changes: every rank has launched all that came before.
  Status ensureStaging(size_t bytes, const std::function<Status()>& drain, Deadline deadline);

 private:
  explicit Chain(const Setup& setup) : s_(setup) {}
  Status allocateStaging(size_t bytes, Deadline deadline);

  const Setup s_;
  device::Channel channel_{};
  DeviceBuffer epoch_;
  std::unique_ptr<CopyEngine> engine_;
  uint32_t flagsWindow_ = 0, stagingWindow_ = 0;
  size_t stagingBytes_ = 0;
};

}  // namespace ulysses
