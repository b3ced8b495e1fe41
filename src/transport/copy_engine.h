// Runs the steps of plan/copy_engine.h: copies on a stream of high priority beside the caller's, flag kernels between
// them. For builds with CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/status.h"
#include "device/exchange.h"
#include "plan/copy_engine.h"

struct CUevent_st;

namespace ulysses {

// One for each chain of launches: while a stream is captured, the one it forks is too.
class CopyEngine {
 public:
  // On the current device.
  static Result<std::unique_ptr<CopyEngine>> create();
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // Where a window of a rank is mapped here.
  using WindowBase = std::function<std::byte*(int rank, uint32_t window)>;

  // Forks from `stream` and joins it: captured where it is. `contract` is that of the call; where the call is wrong on
  // this rank x.contract is 0, and nothing is copied.
  Status launch(const device::Exchange& x, uint64_t contract, std::span<const plan::EngineStep> steps,
                const WindowBase& windowBase, CUstream_st* stream);

 private:
  CopyEngine() = default;

  CUstream_st* copies_ = nullptr;
  CUevent_st *forked_ = nullptr, *joined_ = nullptr;
};

}  // namespace ulysses
