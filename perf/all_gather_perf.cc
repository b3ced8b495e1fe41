#include "flat/flat_perf.h"

int main(int argc, char** argv) {
  return ulysses::perf::runFlatPerf(ulysses::perf::FlatKind::AllGather, "all_gather_perf", argc, argv);
}
