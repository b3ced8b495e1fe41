#include "a2a/mpi_exchange.h"

namespace ulysses::perf {

Result<std::unique_ptr<MpiExchange>> makeMpiExchange(const Geometry&, int, int) {
  return std::unique_ptr<MpiExchange>();
}

}  // namespace ulysses::perf
