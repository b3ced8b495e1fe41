#ifdef ULYSSES_HAVE_CUDA
#include "transport/copy_engine.h"

#include "base/cuda_support.h"
#include "device/flags.h"

namespace ulysses {
namespace {

using plan::EngineStep;
using plan::PitchedCopy;
using plan::Place;
using Do = EngineStep::Do;

Status flagged(int error) {
  return cudaStatus(static_cast<cudaError_t>(error), "launch of a flag kernel");
}

const std::byte* baseOf(const Place& place, const device::Exchange& x, const CopyEngine::WindowBase& windowBase) {
  switch (place.in) {
    case Place::In::Input:
      return static_cast<const std::byte*>(x.in[place.number]);
    case Place::In::Output:
      return static_cast<const std::byte*>(x.out[place.number]);
    case Place::In::Window:
      return windowBase(place.rank, place.number);
    case Place::In::Staging:
      return reinterpret_cast<const std::byte*>(x.channel.staging[place.rank]);
  }
  return nullptr;
}

// In the one call that it was made for. The kind is told by the addresses: peers' memory is mapped here.
Status copy(const PitchedCopy& c, const std::byte* from, std::byte* to, cudaStream_t stream) {
  from += c.src.offset;
  to += c.dst.offset;
  if (from == to) return {};  // all-gather in place
  if (c.slices == 1 && c.rows == 1)
    return cudaStatus(cudaMemcpyAsync(to, from, c.rowBytes, cudaMemcpyDefault, stream), "copy");
  if (c.slices == 1)
    return cudaStatus(
        cudaMemcpy2DAsync(to, c.dst.pitch, from, c.src.pitch, c.rowBytes, c.rows, cudaMemcpyDefault, stream),
        "pitched copy");
  cudaMemcpy3DParms p{};
  p.srcPtr = {const_cast<std::byte*>(from), c.src.pitch, c.rowBytes, c.src.sliceRows};
  p.dstPtr = {to, c.dst.pitch, c.rowBytes, c.dst.sliceRows};
  p.extent = {c.rowBytes, c.rows, c.slices};
  p.kind = cudaMemcpyDefault;
  return cudaStatus(cudaMemcpy3DAsync(&p, stream), "copy of slices");
}

}  // namespace

Result<std::unique_ptr<CopyEngine>> CopyEngine::create() {
  std::unique_ptr<CopyEngine> engine(new CopyEngine);
  int lowest = 0, highest = 0;
  ULYSSES_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  ULYSSES_CUDA(cudaStreamCreateWithPriority(&engine->copies_, cudaStreamNonBlocking, highest));
  for (cudaEvent_t* event : {&engine->forked_, &engine->joined_})
    ULYSSES_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  return engine;
}

CopyEngine::~CopyEngine() {
  for (const cudaEvent_t event : {forked_, joined_})
    if (event != nullptr) (void)cudaEventDestroy(event);
  if (copies_ != nullptr) (void)cudaStreamDestroy(copies_);
  (void)cudaGetLastError();
}

Status CopyEngine::launch(const device::Exchange& x, uint64_t contract, std::span<const EngineStep> steps,
                          const WindowBase& windowBase, cudaStream_t stream) {
  // A wrong call enters, so that the peers find out, and leaves when those that did not know have written.
  const bool wrong = x.contract == 0;
  for (const EngineStep& step : steps) {
    if (wrong && step.what != Do::Enter && step.what != Do::Leave) continue;
    const cudaStream_t on = step.stream == EngineStep::On::Copies ? copies_ : stream;
    const auto await = [&](device::Flag flag, int peer, uint32_t count) {
      return flagged(device::launchAwait(x.channel, flag, peer, count, on));
    };
    switch (step.what) {
      case Do::Enter:
        ULYSSES_TRY(flagged(device::launchEntry(x, contract, on)));
        break;
      case Do::Fork:
        ULYSSES_CUDA(cudaEventRecord(forked_, stream));
        ULYSSES_CUDA(cudaStreamWaitEvent(copies_, forked_, 0));
        break;
      case Do::Copy:
        ULYSSES_TRY(copy(step.copy, baseOf(step.from, x, windowBase),
                         const_cast<std::byte*>(baseOf(step.to, x, windowBase)), on));
        break;
      case Do::Announce:
        ULYSSES_TRY(flagged(device::launchRaise(x.channel, device::Flag::Landed, step.peer, step.count, on)));
        break;
      case Do::GiveCredit:
        ULYSSES_TRY(flagged(device::launchRaise(x.channel, device::Flag::Credit, step.peer, step.count, on)));
        break;
      case Do::AwaitCredit:
        ULYSSES_TRY(await(device::Flag::Credit, step.peer, step.count));
        break;
      case Do::AwaitChunks:
        ULYSSES_TRY(await(device::Flag::Landed, step.peer, step.count));
        break;
      case Do::Join:
        ULYSSES_CUDA(cudaEventRecord(joined_, copies_));
        ULYSSES_CUDA(cudaStreamWaitEvent(stream, joined_, 0));
        break;
      case Do::Leave:
        ULYSSES_TRY(await(device::Flag::Landed, -1, device::kAllLanded));
        break;
    }
  }
  return {};
}

}  // namespace ulysses
#endif
