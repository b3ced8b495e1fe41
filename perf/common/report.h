// What a perf binary prints, in nccl-tests' columns, and writes as JSON with nccl-tests' keys. Only rank 0 has one.
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
};

// Of the size column.
struct SizeRange {
  size_t first = 0, last = 0;
};

class Report {
 public:
  // Opens the JSON file first, so that a path that can't be written is an error before anything is measured. An
  // existing file is kept: PATH.0, PATH.1 and so on are tried instead, as nccl-tests does.
  static Result<std::unique_ptr<Report>> open(const std::string& program, int argc, char** argv,
                                              const CommonOptions& options);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void header(const std::vector<RankPlace>& ranks, const std::string& what, const std::string& launcher,
              const SizeRange& sizes);
  void columns();
  void row(const Collective& collective, int nranks, const Measurement& outOfPlace,
           const std::optional<Measurement>& inPlace, const ulyssesCommInfo_t& info);
  void footer();

  // Further tables, below the footer.
  void line(const std::string& text);
  // Further JSON: one value, or one more element of an array.
  void attach(const std::string& key, const nlohmann::json& value);
  void append(const std::string& key, const nlohmann::json& value);
  // Writes the JSON; after the last line.
  Status finish();

  size_t wrong() const { return wrong_; }

 private:
  Report(std::string program, const CommonOptions& options);
  nlohmann::json block(const Collective& collective, int nranks, const Measurement& m);

  const std::string program_;
  const CommonOptions options_;
  const Machine machine_ = thisMachine();
  FILE* out_ = stdout;
  FILE* jsonFile_ = nullptr;
  const std::unique_ptr<nlohmann::json> json_;
  size_t wrong_ = 0;
  double busBandwidths_ = 0;
  int bandwidthCount_ = 0;
};

}  // namespace ulysses::perf
