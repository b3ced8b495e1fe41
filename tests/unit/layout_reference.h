// What an exchange is by definition, element by element, and a way to run block copies against it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "layout/operand.h"
#include "layout/payload.h"

namespace layout_test {

using namespace ulysses::layout;
using ulysses::Result;
using ulysses::Status;

// Which global tokens and heads each rank holds, in its own order.
struct Ownership {
  std::vector<std::vector<size_t>> tokens, heads;
};

// n items over the ranks: sizes[r] to rank r, or where sizes is empty dealt out in turn and then put in order.
std::vector<std::vector<size_t>> owned(size_t n, int nranks, const std::vector<size_t>& sizes = {});

// How a test lays out one rank's tensor: strides (elements) and the element of the buffer where the tensor begins.
struct View {
  Strides strides;
  size_t offset = 0;
};
using ViewFamily = View (*)(const LocalShape&);
struct NamedFamily {
  const char* name;
  ViewFamily view;
};
const std::vector<NamedFamily>& viewFamilies();  // [0] is contiguous

// The raw bits of global element g.
using Values = std::function<uint64_t(size_t g)>;
uint64_t scrambled(size_t g);  // differs between elements in every byte, as far as bytes can

// One rank's tensor inside a buffer with canaries before, between and behind.
struct Buffer {
  LocalShape shape;
  Strides strides;   // definite
  size_t begin = 0;  // byte of the tensor's first element
  std::vector<uint8_t> bytes;

  uint8_t* data() { return bytes.data() + begin; }
  const uint8_t* data() const { return bytes.data() + begin; }
  size_t at(size_t b, size_t s, size_t h, size_t d) const;  // byte offset from data()
  std::vector<uint8_t> dense() const;                       // the data alone, as a contiguous tensor
};
Buffer makeBuffer(const LocalShape& shape, const View& view);

// The tensor of `rank` on `side`, filled with what the definition says is there. headCount: heads of the global tensor
// that the values number.
Buffer filled(const Operand& operand, const Ownership& ownership, int rank, Side side, const View& view,
              const Values& values);

// How the bytes get from inputs to outputs.
enum class Way { Direct, DirectFewest, Chunks };

// Runs the exchange and compares all of every output buffer with the definition; every data byte must be written
// exactly once. "" or what is wrong. chunk: bytes a time, for Way::Chunks.
std::string checkExchange(const Operand& operand, const Ownership& ownership, ViewFamily in, ViewFamily out, Way way,
                          size_t chunk = 0);

// All outputs as dense tensors, by direct copies from contiguous inputs that hold `values`.
std::vector<std::vector<uint8_t>> runExchange(const Operand& operand, const Ownership& ownership, const Values& values);
// The same from given inputs.
std::vector<std::vector<uint8_t>> runExchange(const Operand& operand, const std::vector<std::vector<uint8_t>>& inputs);

uint32_t crc32(const std::vector<uint8_t>& bytes);  // zlib's

// A request that must be good, made definite.
Operand resolved(const OperandRequest& request, int nranks);
OperandRequest request(size_t batch, size_t seq, size_t heads, size_t headDim, size_t elementBytes,
                       ulyssesDirection_t direction = ulyssesScatterHeads);

}  // namespace layout_test
