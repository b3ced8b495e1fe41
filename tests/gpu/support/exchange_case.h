// One exchange on one rank, checked element by element against the definition.
#pragma once

#include <string>
#include <vector>

#include "gpu/support/rank.h"

namespace ulysses::testing {

struct ExchangeCase {
  std::vector<layout::OperandRequest> operands;
  uint32_t ctas = 4;
  uint64_t tileBytes = 256;
  bool small = false;
  uint32_t plainRanks = 0;         // bit r: rank r's outputs are plain, so it is sent to through slots
  size_t inSkew = 0, outSkew = 0;  // elements past 256-byte alignment; the output's on odd ranks alone
  bool padded = false;             // a head and a token of room between
};

layout::OperandRequest request(ulyssesDirection_t direction, size_t batch, size_t seq, size_t heads, size_t headDim,
                               size_t elementBytes);

class CheckedExchange {
 public:
  CheckedExchange(GpuRank& rank, const ExchangeCase& what);

  // Fills the inputs with new values and poisons the outputs, on the stream.
  void prepare(uint32_t seed);
  void poison();
  void launch(uint64_t contract = 1);
  // Waits, and compares every byte, fences too.
  void expectExchanged(uint32_t seed);
  void expectUntouched();

  static size_t windowBytes(const ExchangeCase& what, int nranks);
  static size_t stagingBytes(const ExchangeCase& what, int nranks);

 private:
  struct Buffer {
    std::shared_ptr<void> keep;
    std::byte* start = nullptr;  // of the fence before the data
    size_t bytes = 0, data = 0;  // all; where the data starts
  };
  layout::Strides strides(const layout::Operand& operand, int rank, layout::Side side) const;
  template <class Visit>
  void forEach(const layout::Operand& operand, layout::Side side, const Visit& visit) const;
  void fill(size_t operand, layout::Side side, uint32_t seed, std::vector<unsigned char>& bytes) const;

  GpuRank& rank_;
  ExchangeCase what_;
  std::vector<layout::Operand> operands_;
  std::vector<Buffer> in_, out_;
  std::shared_ptr<void> table_;
  device::Exchange exchange_{};
};

}  // namespace ulysses::testing
