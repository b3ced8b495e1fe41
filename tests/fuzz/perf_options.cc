// The arguments of the perf binaries, separated by newlines: a usage error, or sizes that end and geometries that fit.
#include <CLI/CLI.hpp>
#include <vector>

#include "a2a/options.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ulysses::perf;
  ulysses::fuzz::Input input(data, size);
  const int nranks = 1 + static_cast<int>(input.below(8));
  std::vector<std::string> words{"perf"};
  std::string word;
  for (const char c : input.rest()) {
    if (c != '\n' && c != '\0') {
      word += c;
      continue;
    }
    words.push_back(word);
    word.clear();
  }
  if (!word.empty()) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());

  CLI::App app("fuzz", "fuzz");
  A2AOptions options;
  options.addTo(app);
  const auto code = parseArguments(app, static_cast<int>(argv.size()), argv.data(), [&] { return options.validate(); });
  if (code) {
    FUZZ_REQUIRE(*code == 0 || *code == 2);
    return 0;
  }
  FUZZ_REQUIRE(!options.common.sizes().empty() && !options.describe().empty());
  for (const Geometry& geometry : options.geometries(nranks)) (void)checkGeometry(geometry);
  if (options.latency || options.agreement) (void)options.smallGeometry(nranks);
  return 0;
}
