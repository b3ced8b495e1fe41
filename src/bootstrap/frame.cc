#include "bootstrap/frame.h"

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "bootstrap/socket.h"

namespace ulysses {

Bytes makeFrame(FrameHeader header, std::span<const std::byte> payload) {
  header.length = payload.size();
  Bytes frame(sizeof header + payload.size());
  std::memcpy(frame.data(), &header, sizeof header);
  std::copy(payload.begin(), payload.end(), frame.begin() + sizeof header);
  return frame;
}

Bytes makeTextFrame(FrameHeader header, const Status& status) {
  header.code = status.code();
  const std::string& text = status.message();
  return makeFrame(header, std::as_bytes(std::span(text.data(), std::min(text.size(), kMaxFrameText))));
}

FrameReader::Progress FrameReader::advance(int connection) {
  for (;;) {
    if (complete()) return Complete;
    const bool inHeader = received_ < sizeof header;
    void* to = inHeader ? reinterpret_cast<char*>(&header) + received_
                        : reinterpret_cast<char*>(payload.data()) + (received_ - sizeof header);
    const size_t wanted = inHeader ? sizeof header - received_ : sizeof header + header.length - received_;
    const ssize_t n = receiveSome(connection, to, wanted, fds);
    if (n == 0) return Partial;
    if (n < 0) return Closed;
    received_ += static_cast<size_t>(n);
    if (inHeader && received_ == sizeof header) {
      if (header.magic != FrameHeader::kMagic || header.length > limit_) return Malformed;
      payload.resize(header.length);
    }
  }
}

Status FrameReader::status() const {
  // No error at all, where one is told, would pass for the answer.
  if (header.code <= ulyssesSuccess || header.code > ulyssesNotSupported)
    return {ulyssesInternalError, formatText("a peer told an error without a code ({})", header.code)};
  if (payload.empty()) return {static_cast<ulyssesResult_t>(header.code), "a peer told an error without a text"};
  return {static_cast<ulyssesResult_t>(header.code),
          std::string(reinterpret_cast<const char*>(payload.data()), payload.size())};
}

Bytes packBlobs(const std::vector<Bytes>& blobs) {
  size_t total = blobs.size() * sizeof(uint64_t);
  for (const Bytes& blob : blobs) total += blob.size();
  Bytes payload;
  payload.reserve(total);
  for (const Bytes& blob : blobs) {
    const uint64_t length = blob.size();
    const auto bytes = std::as_bytes(std::span(&length, 1));
    payload.insert(payload.end(), bytes.begin(), bytes.end());
  }
  for (const Bytes& blob : blobs) payload.insert(payload.end(), blob.begin(), blob.end());
  return payload;
}

bool unpackBlobs(const Bytes& payload, int count, std::vector<Bytes>& blobs) {
  const size_t n = static_cast<size_t>(count);
  if (payload.size() < n * sizeof(uint64_t)) return false;
  blobs.assign(n, {});
  auto next = payload.begin() + static_cast<std::ptrdiff_t>(n * sizeof(uint64_t));
  for (size_t r = 0; r < n; ++r) {
    uint64_t length = 0;
    std::memcpy(&length, payload.data() + r * sizeof length, sizeof length);
    if (length > static_cast<uint64_t>(payload.end() - next)) return false;
    const auto end = next + static_cast<std::ptrdiff_t>(length);
    blobs[r].assign(next, end);
    next = end;
  }
  return next == payload.end();
}

Status copyEqualBlocks(const std::vector<Bytes>& blobs, void* recv, size_t bytes) {
  for (size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].size() != blobs[0].size()) {
      return {ulyssesInvalidArgument, formatText("allgather of unequal blocks: rank 0 gives {} bytes, rank {} gives {}",
                                                 blobs[0].size(), r, blobs[r].size())};
    }
  }
  for (size_t r = 0; r < blobs.size() && bytes > 0; ++r) {
    std::memcpy(static_cast<std::byte*>(recv) + r * bytes, blobs[r].data(), bytes);
  }
  return {};
}

}  // namespace ulysses
