// Flat copies between the memories of every two ranks, one pair at a time, and of all ranks at once: what the links give
// before any library is on them, and the ceiling for whatever writes to peers.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "common/buffer.h"
#include "common/measure.h"
#include "common/pattern.h"
#include "common/program.h"

namespace ulysses::perf {
namespace {

constexpr const char* kName = "peer_copy_perf";
constexpr size_t kElement = 8, kDefaultBytes = size_t{64} << 20;

// Who writes to whom.
struct Course {
  enum class Kind { Pair, Next, All } kind = Kind::Pair;
  int from = 0, to = 0;  // of a pair

  std::string name() const {
    return kind == Kind::Pair ? fmt::format("{}>{}", from, to) : kind == Kind::Next ? "next" : "all";
  }
};

// One row. Rank r's source holds the elements r * count, r * count + 1 and so on.
class PeerCopy final : public Collective {
 public:
  PeerCopy(const Communicator& comm, const Course& course, size_t bytes, int rank, const std::byte* in,
           const std::vector<std::byte*>& outs)
      : comm_(comm), course_(course), rank_(rank), in_(in), outs_(outs) {
    const size_t unit = kElement * (course.kind == Course::Kind::All ? outs_.size() : 1);  // every part is whole
    bytes_ = bytes / unit * unit;
  }

  const Communicator& comm() const override { return comm_; }
  size_t bytes() const override { return bytes_; }
  size_t count() const override { return bytes_ / kElement; }
  ulyssesDataType_t dtype() const override { return ulyssesUint64; }
  std::string variant() const override { return course_.name(); }
  double busFactor(int nranks) const override {
    return course_.kind == Course::Kind::All ? 1 - 1.0 / static_cast<double>(nranks) : 1;
  }

  void fill(uint64_t salt, bool) override {
    poison(comm_.device(), outs_[at(rank_)], bytes_);
    write(comm_.device(), const_cast<std::byte*>(in_), bytes_,
          [&](std::byte* data) { perf::fill(data, kElement, count(), at(rank_) * count(), salt); });
  }

  Status run(bool) override {
    const int n = static_cast<int>(outs_.size());
    switch (course_.kind) {
      case Course::Kind::Pair:
        if (rank_ == course_.from) copy(course_.to, 0, 0, bytes_);
        break;
      case Course::Kind::Next:
        copy((rank_ + 1) % n, 0, 0, bytes_);
        break;
      case Course::Kind::All:
        for (int step = 1; step < n; ++step) {
          const int peer = (rank_ + step) % n;
          copy(peer, at(rank_) * part(), at(peer) * part(), part());
        }
    }
    return {};
  }

  size_t countWrong(uint64_t salt, bool) const override {
    const int n = static_cast<int>(outs_.size());
    switch (course_.kind) {
      case Course::Kind::Pair:
        return rank_ == course_.to ? wrongFrom(course_.from, 0, 0, bytes_, salt) : 0;
      case Course::Kind::Next:
        return wrongFrom((rank_ + n - 1) % n, 0, 0, bytes_, salt);
      case Course::Kind::All:
        break;
    }
    size_t wrong = 0;
    for (int from = 0; from < n; ++from)
      if (from != rank_) wrong += wrongFrom(from, at(from) * part(), at(rank_) * part(), part(), salt);
    return wrong;
  }
  std::byte* output(bool) override { return outs_[at(rank_)]; }
  // Nothing arrives at a rank that a pair leaves out, and nothing of all is this rank's own.
  size_t outputBytes() const override { return course_.kind == Course::Kind::Next ? bytes_ : 0; }
  void touchBuffers() override {}

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  size_t part() const { return bytes_ / outs_.size(); }
  void copy(int peer, size_t to, size_t from, size_t bytes) {
    plainCopy(comm_.device(), outs_[at(peer)] + to, in_ + from, bytes);
  }
  size_t wrongFrom(int from, size_t here, size_t there, size_t bytes, uint64_t salt) const {
    return read(comm_.device(), outs_[at(rank_)] + here, bytes, [&](const std::byte* data) {
      return perf::countWrong(data, kElement, bytes / kElement, at(from) * count() + there / kElement, salt);
    });
  }

  const Communicator& comm_;
  const Course course_;
  const int rank_;
  const std::byte* const in_;
  const std::vector<std::byte*>& outs_;
  size_t bytes_;
};

std::vector<Course> coursesOf(int nranks) {
  std::vector<Course> courses;
  for (int from = 0; from < nranks; ++from)
    for (int to = 0; to < nranks; ++to) courses.push_back({Course::Kind::Pair, from, to});
  if (nranks == 1) return courses;
  courses.push_back({Course::Kind::Next});
  courses.push_back({Course::Kind::All});
  return courses;
}

// GB/s of the pairs, from row to column; on the diagonal a copy within a rank's own memory.
void printMatrix(Report& report, size_t bytes, int n, const std::vector<double>& bandwidths) {
  report.line(fmt::format("# GB/s of {} bytes, a pair at a time, from row to column", bytes));
  std::string line = "#     ";
  for (int to = 0; to < n; ++to) line += fmt::format("{:>8}", to);
  report.line(line);
  nlohmann::json matrix = nlohmann::json::array();
  for (int from = 0; from < n; ++from) {
    line = fmt::format("# {:>4}", from);
    nlohmann::json row = nlohmann::json::array();
    for (int to = 0; to < n; ++to) {
      const double bandwidth = bandwidths[static_cast<size_t>(from * n + to)];
      line += fmt::format("{:>8.1f}", bandwidth);
      row.push_back(bandwidth);
    }
    report.line(line);
    matrix.push_back(row);
  }
  report.line("#");
  report.append("pairs", {{"size", bytes}, {"gb_per_s", matrix}});
}

Status runCopies(Run& run) {
  const int n = run.rank.count();
  if (run.rank.severalProcesses())
    return {ulyssesInvalidUsage, fmt::format("{}: ranks are the threads of one process (-t)", kName)};
  const std::vector<size_t> sizes = run.options.sizes();
  Buffer in, out;
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(in, sizes.back(), run.device)));
  ULYSSES_TRY(run.rank.agree(Buffer::allocate(out, sizes.back(), run.device)));
  if (run.device) run.device->reachPeers();
  const std::vector<std::byte*> outs = run.rank.allgather(out.data());
  const std::vector<Course> courses = coursesOf(n);
  if (run.report) run.report->columns();
  for (int cycle = 0; cycle < run.options.cycles; ++cycle) {
    for (const size_t size : sizes) {
      std::vector<double> bandwidths;
      for (const Course& course : courses) {
        PeerCopy copy(run.comm, course, size, run.rank.id(), in.data(), outs);
        const auto at = [&](const char* what) { run.at(fmt::format("{}, {} bytes: {}", course.name(), size, what)); };
        ULYSSES_ASSIGN(const std::vector<Measurement> measured,
                       measure(run.rank, run.options, {&copy}, /*inPlace=*/false, at));
        bandwidths.push_back(measured[0].timeUs > 0 ? static_cast<double>(copy.bytes()) / 1e3 / measured[0].timeUs : 0);
        if (run.report) run.report->row(copy, n, measured, {});
      }
      if (run.report) printMatrix(*run.report, size, n, bandwidths);
    }
  }
  if (run.report) run.report->footer();
  return {};
}

}  // namespace
}  // namespace ulysses::perf

int main(int argc, char** argv) {
  using namespace ulysses;
  using namespace ulysses::perf;
  CLI::App app("Flat copies between the memories of every two ranks, and of all at once. Ranks are threads (-t; by "
               "default as many as there are GPUs).",
               kName);
  CommonOptions common;
  common.addTo(app);
  common.addTableTo(app);
  common.addMemoryTo(app);
  common.average = 3;  // of a pair alone, the others have done nothing
  const auto validate = [&]() -> Status {
    if (!common.sizesGiven()) common.minBytes = common.maxBytes = kDefaultBytes;
    ULYSSES_TRY(common.validate());
    ULYSSES_TRY(common.chooseMemory());
    if (app.count("-t") == 0 && common.onDevice()) common.threads = Device::count();
    if (!common.libraryPath.empty()) return {ulyssesInvalidArgument, "--lib: no library moves these bytes"};
    if (!common.datatype.empty()) return {ulyssesInvalidArgument, "-d: bytes are copied, whatever they are"};
    if (common.cycles == 0) return {ulyssesInvalidArgument, "-N 0: this run ends"};
    if (common.cold) return {ulyssesInvalidArgument, "--cold: one buffer is copied; take sizes beyond the L2 (-b)"};
    return {};
  };
  if (const auto code = parseArguments(app, argc, argv, validate)) return *code;
  const Subject subject{"flat copies between ranks",
                        [&](int) -> SizeRange { return {common.firstBytes(), common.lastBytes()}; }};
  return runProgram(kName, argc, argv, common, subject, [](Run& run) { return runCopies(run); });
}
