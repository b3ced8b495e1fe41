#include "api/buffers.h"

#include <cstdint>

#include "base/format.h"

namespace ulysses {
namespace {

struct Interval {
  uintptr_t begin, end;
  bool overlaps(const Interval& other) const { return begin < other.end && other.begin < end; }
};

Interval interval(const void* p, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(p);
  return {begin, begin + bytes};
}

Status checkPointer(const char* name, size_t operand, const void* p, size_t extent, size_t alignment) {
  if (extent == 0) return {};
  if (p == nullptr) return Status(ulyssesInvalidArgument, formatText("{} of operand {} is NULL", name, operand));
  if (reinterpret_cast<uintptr_t>(p) > UINTPTR_MAX - extent)
    return Status(ulyssesInvalidArgument,
                  formatText("{} of operand {} ({}) has no room for {} bytes before the end of memory", name, operand,
                             p, extent));
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0)
    return Status(ulyssesInvalidArgument, formatText("{} of operand {} ({}) is not aligned to its element of {} bytes",
                                                     name, operand, p, alignment));
  return {};
}

}  // namespace

// Outputs of different operands may interleave (heads of Q, K and V in one projection): that they do not overlap is the
// caller's promise.
Status checkBuffers(const Schedule& s, const void* const in[], void* const out[]) {
  if (s.empty()) return {};
  if (in == nullptr || out == nullptr) return Status(ulyssesInvalidArgument, "the array of buffers is NULL");
  for (size_t i = 0; i < s.operands; ++i) {
    ULYSSES_TRY(checkPointer("the input", i, in[i], s.inExtent[i], s.elementBytes[i]));
    ULYSSES_TRY(checkPointer("the output", i, out[i], s.outExtent[i], s.elementBytes[i]));
  }
  for (size_t o = 0; o < s.operands; ++o) {
    const Interval output = interval(out[o], s.outExtent[o]);
    for (size_t i = 0; i < s.operands; ++i) {
      const Interval input = interval(in[i], s.inExtent[i]);
      if (!output.overlaps(input) || s.inExtent[i] == 0 || s.outExtent[o] == 0) continue;
      if (i == o && s.inPlaceWhole && in[i] == out[o]) continue;
      if (i == o && s.inPlaceOwn && input.begin == output.begin + s.inExtent[i] * static_cast<size_t>(s.rank)) continue;
      return Status(ulyssesInvalidArgument,
                    formatText("the output of operand {} overlaps the input of operand {}", o, i));
    }
  }
  return {};
}

}  // namespace ulysses
