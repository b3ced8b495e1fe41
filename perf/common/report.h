// What a perf binary prints, in nccl-tests' columns, and writes as JSON with nccl-tests' keys, or as CSV. Only rank 0
// has one.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/collective.h"
#include "common/machine.h"
#include "common/measure.h"
#include "common/options.h"

namespace ulysses::perf {

struct RankPlace {
  int pid = 0;
  char host[64] = {};
  char device[64] = {};  // "": host memory
  int number = 0;        // of the device
};

// Of the size column.
struct SizeRange {
  size_t first = 0, last = 0;
};

class Report {
 public:
  // Opens the files first, so that a path that can't be written is an error before anything is measured. An existing
  // file is kept: PATH.0, PATH.1 and so on are tried instead, as nccl-tests does.
  static Result<std::unique_ptr<Report>> open(const std::string& program, int argc, char** argv,
                                              const CommonOptions& options);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void header(const std::vector<RankPlace>& ranks, const std::string& what, const std::string& launcher,
              const SizeRange& sizes);
  // The builds under test; the second is --lib's.
  void builds(const std::vector<const Communicator*>& comms);
  void columns();
  // Measurements by build; no `inPlace` where the collective has no such form.
  void row(const Collective& collective, int nranks, const std::vector<Measurement>& outOfPlace,
           const std::vector<Measurement>& inPlace);
  void footer();

  // Further tables, below the footer.
  void line(const std::string& text);
  // Further JSON: one value, or one more element of an array.
  void attach(const std::string& key, const nlohmann::json& value);
  void append(const std::string& key, const nlohmann::json& value);
  // Writes the JSON; after the last line.
  Status finish();

  // Wrong values, or an average below what NCCL_TESTS_MIN_BW asks for.
  bool failed() const { return wrong_ > 0 || tooSlow_; }

 private:
  Report(std::string program, const CommonOptions& options);
  // Opens `path` where it is not empty; "-" is stdout, and the table moves to stderr.
  Status openOutput(const char* option, const char* kind, std::string& path, FILE*& file);
  nlohmann::json block(const Collective& collective, int nranks, const Measurement& m);
  void csvRow(const nlohmann::json& row, const nlohmann::json& block, const char* placement, const std::string& build);

  const std::string program_;
  const CommonOptions options_;
  const Machine machine_ = thisMachine();
  FILE* out_ = stdout;
  std::string jsonPath_, csvPath_;  // as opened
  FILE* jsonFile_ = nullptr;
  FILE* csvFile_ = nullptr;
  const std::unique_ptr<nlohmann::json> json_;
  size_t wrong_ = 0, windowBytes_ = 0;
  bool tooSlow_ = false;
  double busBandwidths_ = 0;
  int bandwidthCount_ = 0;
};

}  // namespace ulysses::perf
