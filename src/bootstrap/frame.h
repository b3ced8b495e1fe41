// What travels on the bootstrap's connections after the hello: a fixed header, then at most `limit` bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"

namespace ulysses {

enum class FrameKind : uint32_t {
  Contribution = 1,  // a rank's blob
  Refusal,           // a rank's own error instead, and the hub's answer then: `code`, the text; the next exchange works
  Result,            // the hub's answer: the blobs of all ranks
  Failure,           // the hub's last word: `code`, the text
  Descriptors,       // file descriptors of rank `code`
};

struct FrameHeader {
  static constexpr uint32_t kMagic = 0x4d52'464c;

  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::Contribution;
  uint64_t operation = 0;  // counts the exchanges: ranks that make different calls are found out
  int32_t code = 0;
  int32_t remainingMs = -1;  // until the sender's deadline; -1 = none
  uint64_t length = 0;       // of what follows
};
static_assert(sizeof(FrameHeader) == 32);

constexpr size_t kMaxFrameText = 4096;

// A frame ready to be sent.
Bytes makeFrame(FrameHeader header, std::span<const std::byte> payload);
Bytes makeTextFrame(FrameHeader header, const Status& status);

// Takes a frame in pieces, as they come. What it allocates is bounded by `limit`; descriptors that came along and that
// nobody takes are closed with it.
class FrameReader {
 public:
  enum Progress { Partial, Complete, Closed, Malformed };

  explicit FrameReader(size_t limit) : limit_(limit < kMaxFrameText ? kMaxFrameText : limit) {}

  Progress advance(int connection);
  bool complete() const { return received_ >= sizeof header && received_ == sizeof header + header.length; }
  bool begun() const { return received_ > 0; }
  // The error that a Refusal or a Failure carries.
  Status status() const;

  FrameHeader header{};
  Bytes payload;
  std::vector<UniqueFd> fds;

 private:
  size_t limit_;
  size_t received_ = 0;
};

// Blobs of different lengths in one payload, and back; nothing when the payload is not of that form.
Bytes packBlobs(const std::vector<Bytes>& blobs);
bool unpackBlobs(const Bytes& payload, int count, std::vector<Bytes>& blobs);

// Puts the blobs one after the other into `recv`, each of `bytes`. Blobs of different lengths are
// ulyssesInvalidArgument: all ranks see the same ones, so all return it.
Status copyEqualBlocks(const std::vector<Bytes>& blobs, void* recv, size_t bytes);

}  // namespace ulysses
