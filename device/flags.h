// The flags of a launch whose bytes copy engines move: the protocol of device/exchange.h as a launch of one CTA would
// follow it, cut into kernels that stand between the copies on their streams. Each reads the epoch on the device, so a
// captured launch replays.
//
// Copies can't be held back once they are enqueued: where entries differ, or a kernel is aborted, they run all the
// same. So do the flags behind them, and a rank awaits those of every rank that has made the same call: when the launch
// is over none of these writes this rank's outputs any more, but what they hold is undefined. A rank that made another
// call may write where that call's outputs lie until it enters the next epoch.
#pragma once

#include "device/exchange.h"

namespace ulysses::device {

// All return a cudaError_t, 0 being success.

int loadFlagKernels();

// Begins the launch's epoch: announces this rank's entry and waits for everybody's. `contract` is that of the call,
// also where x.contract is 0 because it is wrong on this rank. Looks at no table and no buffer of x.
int launchEntry(const Exchange& x, uint64_t contract, CUstream_st* stream);

enum class Flag : uint32_t { Landed, Credit };
// To `peer`: `count` chunks of this rank's have landed (kAllLanded: all), or as many of its chunks have been copied
// out.
int launchRaise(const Channel& channel, Flag flag, int peer, uint32_t count, CUstream_st* stream);
// Waits until `peer`, every peer where it is -1, has raised as much; not for ranks that made another call.
int launchAwait(const Channel& channel, Flag flag, int peer, uint32_t count, CUstream_st* stream);

}  // namespace ulysses::device
