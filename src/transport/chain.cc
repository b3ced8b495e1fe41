#ifdef ULYSSES_HAVE_CUDA
#include "transport/chain.h"

#include "base/test_hooks.h"
#include "bootstrap/stage.h"

namespace ulysses {

Result<std::shared_ptr<Chain>> Chain::make(const Setup& setup, Deadline deadline) {
  std::shared_ptr<Chain> chain(new Chain(setup));
  device::Channel& channel = chain->channel_;
  const size_t bytes = device::flagsBytes(setup.nranks, setup.lineBytes);
  const auto local = [&]() -> Status {
    ULYSSES_ASSIGN(chain->epoch_, deviceBuffer(sizeof(device::Epoch)));
    if (setup.engines) {
      ULYSSES_ASSIGN(chain->engine_, CopyEngine::create());
    }
    ULYSSES_TRY(setup.registrar->fits(bytes));
    return hooks::injectedFailure(hooks::Stage::Flags);
  };
  ULYSSES_TRY(agreeStage(*setup.channel, local(), deadline));
  ULYSSES_TRY(setup.registrar->allocate(bytes, *setup.channel, deadline, &chain->flagsWindow_));
  channel.rank = setup.rank;
  channel.nranks = setup.nranks;
  for (int r = 0; r < setup.nranks; ++r)
    channel.flags[r] = reinterpret_cast<char*>(setup.registrar->base(r, chain->flagsWindow_));
  channel.lineBytes = setup.lineBytes;
  channel.epoch = static_cast<device::Epoch*>(chain->epoch_.get());
  channel.host = setup.host;
  channel.windows = setup.windows;
  return chain;
}

Chain::~Chain() {
  for (const uint32_t window : {stagingWindow_, flagsWindow_})
    if (window != 0) s_.registrar->release(window);
}

Status Chain::ensureStaging(size_t bytes, const std::function<Status()>& drain, Deadline deadline) {
  if (bytes <= stagingBytes_) return {};
  Status status;
  if (stagingWindow_ != 0) status = drain();
  if (status.ok()) status = s_.registrar->fits(bytes - stagingBytes_);
  if (status.ok()) status = hooks::injectedFailure(hooks::Stage::Staging);
  ULYSSES_TRY(agreeStage(*s_.channel, status, deadline));
  const size_t before = stagingBytes_;
  if (stagingWindow_ != 0) s_.registrar->retire(stagingWindow_);
  stagingWindow_ = 0;
  stagingBytes_ = 0;
  const Status grown = allocateStaging(bytes, deadline);
  // What was prepared for the smaller one goes on with it.
  if (!grown.ok() && before != 0) (void)allocateStaging(before, deadline);
  return grown;
}

Status Chain::allocateStaging(size_t bytes, Deadline deadline) {
  ULYSSES_TRY(s_.registrar->allocate(bytes, *s_.channel, deadline, &stagingWindow_));
  stagingBytes_ = bytes;
  for (int r = 0; r < s_.nranks; ++r)
    channel_.staging[r] = reinterpret_cast<char*>(s_.registrar->base(r, stagingWindow_));
  return {};
}

}  // namespace ulysses
#endif
