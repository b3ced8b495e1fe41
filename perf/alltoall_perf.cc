#include "flat/flat_perf.h"

int main(int argc, char** argv) {
  return ulysses::perf::runFlatPerf(ulysses::perf::FlatKind::AlltoAll, "alltoall_perf", argc, argv);
}
