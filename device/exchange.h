// Launching the fused exchange on device memory. Plain C++: what the host decides goes in, kernels come out.
//
// A channel is what one chain of launches needs for itself: flags, staging, an epoch. Launches on a channel run one
// after the other (one stream, or streams chained by events), in the same order on all ranks; a captured plan, whose
// replays may run beside other calls, has its own.
#pragma once

#include <cstdint>

#include "device/work.h"

struct CUstream_st;

namespace ulysses::device {

constexpr int kMaxCtas = 256;
constexpr int kThreads = 512;  // of a CTA

// 8 bytes that need no flag beside them: each half carries the epoch, and is stored and loaded whole.
struct alignas(16) Line {
  uint32_t low, lowEpoch, high, highEpoch;
};

// What peers write into a rank's window. All zero before the first launch.
//
// An entry's lines are the contract hash and each operand's location. Two slots by epoch parity, because a peer may be
// one epoch ahead of a slow CTA: it can't be two ahead, for that takes this rank's next entry.
//
// A landed flag is (epoch, chunks whose stores have all landed), kAllLanded when nothing more will come in that epoch.
// A credit is (epoch, chunks this rank's peer has copied out). Both as one 64-bit number that only grows.
struct Flags {
  Line entry[2][kMaxRanks][1 + kMaxOperands];
  uint64_t landed[kMaxRanks][kMaxCtas];  // [sender][sender's CTA]
  uint64_t credit[kMaxRanks][kMaxCtas];  // [receiver][this rank's CTA]
};
constexpr uint32_t kAllLanded = 0xffffffffu;

// Lines of payload stand behind the flags: [parity][sender][line]. They are sent two at a time.
ULYSSES_HD constexpr uint64_t linesPerSender(uint64_t lineBytes) {
  return (lineBytes + kUnit - 1) / kUnit * (kUnit / kLineBytes);
}
ULYSSES_HD constexpr uint64_t linesBytes(int nranks, uint64_t lineBytes) {
  return 2 * static_cast<uint64_t>(nranks) * linesPerSender(lineBytes) * sizeof(Line);
}
ULYSSES_HD constexpr uint64_t flagsBytes(int nranks, uint64_t lineBytes) {
  return (sizeof(Flags) + 255) / 256 * 256 + linesBytes(nranks, lineBytes);
}

// In device memory of this rank's GPU; all zero before the first launch. (To start at another epoch, the flags must
// carry it too: entries (0, epoch), landed and credit (epoch, 0).)
struct Epoch {
  uint32_t value, tickets;
  uint32_t senders;  // of a launch by copy engines (device/flags.h): bit r, rank r has made the same call
};

// In mapped host memory: how host and kernels speak while a kernel runs.
enum class KernelError : uint32_t { None = 0, Mismatch = 1, Aborted = 2 };
struct HostWords {
  uint32_t abort;  // host -> kernels: anything but 0 ends every spin
  uint32_t error;  // kernels -> host: a KernelError; stays until the host clears it
  uint32_t errorEpoch;
  int32_t errorRank;  // the first rank whose contract differs from rank 0's, or 0 whose call is wrong; -1 if aborted
};

// In device memory of this rank's GPU: where each window of the communicator lies in this rank's address space, by
// window number. The host keeps it current: a window is in it on all ranks before any rank announces an output there.
struct WindowRow {
  uint64_t base[kMaxRanks];
};

// An output's location as it is announced: 0 is "plain", else the window's number (from 1 on) and 48 bits of offset.
constexpr uint64_t kPlain = 0;
constexpr uint32_t kMaxWindow = 0xffff;
ULYSSES_HD constexpr uint64_t windowLocation(uint32_t window, uint64_t offset) {
  return static_cast<uint64_t>(window) << 48 | offset;
}
ULYSSES_HD constexpr uint32_t windowOf(uint64_t location) {
  return static_cast<uint32_t>(location >> 48);
}
ULYSSES_HD constexpr uint64_t offsetOf(uint64_t location) {
  return location & ((uint64_t{1} << 48) - 1);
}

struct Channel {
  int rank, nranks;
  char* flags[kMaxRanks];    // each rank's flags area as mapped here; flagsBytes() each, aligned to 256
  char* staging[kMaxRanks];  // likewise the staging: stagingBytes() each, aligned to 16; unused when there are no slots
  uint64_t lineBytes;        // payload per pair that the lines have room for
  Epoch* epoch;
  HostWords* host;  // as mapped on the device
  const WindowRow* windows;
};

// One launch. The contract hash must cover everything that has to be equal on all ranks: geometry, splits, ctas,
// tileBytes, small or not. 0: the call is wrong on this rank, its buffers are not looked at, and no rank stores anything.
struct Exchange {
  Channel channel;
  uint64_t contract;
  const WorkTable* table;  // in device memory
  uint32_t blocks;         // how many the table has
  int operands;
  uint32_t ctas;
  uint64_t tileBytes;  // of a staging slot: a multiple of 16; 0: plain outputs are sent by lines, which have room
  const void* in[kMaxOperands];
  void* out[kMaxOperands];
  uint64_t location[kMaxOperands];  // kPlain in all or in none: a rank is sent to directly or staged as a whole
};

// All return a cudaError_t, 0 being success. None synchronises with the device.

// Loads the kernels on the current device: at init, never while a kernel may be spinning.
int loadKernels();

// CTAs of the kernels that fit on the current device together.
int residentCtas(int* ctas);

// Direct or staged, by what each receiver announces. Where there are slots each CTA gives every staged peer its own
// warps in either direction.
int launchExchange(const Exchange& exchange, CUstream_st* stream);

// The same for streams of at most channel.lineBytes per pair: payload and flag in one store, no staging, no exit.
int launchSmallExchange(const Exchange& exchange, CUstream_st* stream);

}  // namespace ulysses::device
