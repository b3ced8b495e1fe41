#include "base/parameters.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "support/catch.h"
#include "unit/rerun.h"

namespace {

using ulysses::A2AMode;
using ulysses::LongTraining;
using ulysses::MemoryChoice;
using ulysses::ParameterRow;
using ulysses::Parameters;
using ulysses::parameterTable;
using ulysses::parseBytes;
using ulysses::WindowsFrom;
using ulysses::test::linesOf;
using ulysses::test::rerunTestCase;

const std::vector<std::string> kAliases = {"FASTVIDEO_ULYSSES_A2A", "FASTVIDEO_ULYSSES_A2A_LONG_TRAINING"};

// An environment in which nothing of ours is set; what was there comes back afterwards.
class CleanEnvironment {
 public:
  CleanEnvironment() {
    std::vector<std::string> names = kAliases;
    for (const ParameterRow& row : parameterTable()) names.push_back(row.name);
    for (const std::string& name : names) {
      const char* value = std::getenv(name.c_str());
      if (value) saved_.push_back({name, value});
      names_.push_back(name);
      ::unsetenv(name.c_str());
    }
  }
  ~CleanEnvironment() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  void set(const std::string& name, const std::string& value) { ::setenv(name.c_str(), value.c_str(), 1); }

 private:
  std::vector<std::string> names_;
  ulysses::test::Environment saved_;
};

Parameters with(const std::string& name, const std::string& value) {
  CleanEnvironment environment;
  environment.set(name, value);
  return Parameters::fromEnvironmentSilently();
}

ParameterRow rowOf(const std::string& name) {
  for (const ParameterRow& row : parameterTable())
    if (row.name == name) return row;
  FAIL("no row " << name);
  return {};
}

}  // namespace

TEST_CASE("parseBytes takes a number with K, M or G and nothing else") {
  CHECK(parseBytes("0") == 0u);
  CHECK(parseBytes("4096") == 4096u);
  CHECK(parseBytes("1k") == 1024u);
  CHECK(parseBytes("1K") == 1024u);
  CHECK(parseBytes("64M") == 64u << 20);
  CHECK(parseBytes("3g") == size_t{3} << 30);
  CHECK(parseBytes("18446744073709551615") == SIZE_MAX);
  CHECK(parseBytes("17179869183G") == size_t{17179869183} << 30);
  for (const char* bad : {"", "K", "8q", "-1", "+1", " 1", "1 ", "1 K", "1KB", "1KiB", "1.5G", "0x10", "1e3", "64MM",
                          "18446744073709551616", "17179869184G", "one"}) {
    INFO(bad);
    CHECK_FALSE(parseBytes(bad));
  }
}

TEST_CASE("parameters: nothing set gives the defaults, and an empty variable counts as unset") {
  CleanEnvironment environment;
  CHECK(Parameters::fromEnvironmentSilently() == Parameters{});
  for (const ParameterRow& row : parameterTable()) environment.set(row.name, "");
  CHECK(Parameters::fromEnvironmentSilently() == Parameters{});
  CHECK(Parameters{}.stagingBytes == size_t{64} << 20);
}

TEST_CASE("parameters: every row is read") {
  CHECK(with("ULYSSES_A2A", "fused").a2a == A2AMode::Fused);
  CHECK(with("ULYSSES_A2A", "OFF").a2a == A2AMode::Off);
  CHECK(with("ULYSSES_MEMORY", "host").memory == MemoryChoice::Host);
  CHECK(with("ULYSSES_MEMORY", "cuda").memory == MemoryChoice::Cuda);
  CHECK(with("ULYSSES_A2A_LONG_TRAINING", "chunked").longTraining == LongTraining::Chunked);
  CHECK(with("ULYSSES_RESIDENCY", "persistent").residency == "persistent");
  CHECK(with("ULYSSES_RESIDENCY", "budget:2G").residency == "budget:2g");
  CHECK(with("ULYSSES_RESIDENCY", "transient").residency == "transient");
  CHECK(with("ULYSSES_KERNEL_REVISION", "1").kernelRevision == 1);
  CHECK(with("ULYSSES_WINDOWS", "ipc").windows == WindowsFrom::Ipc);
  CHECK(with("ULYSSES_WINDOWS", "NCCL").windows == WindowsFrom::Nccl);
  CHECK(with("ULYSSES_WINDOW_CAP", "512M").windowCapBytes == size_t{512} << 20);
  CHECK(with("ULYSSES_STAGING", "1M").stagingBytes == size_t{1} << 20);
  CHECK(with("ULYSSES_MAX_CTAS", "8").maxCtas == 8);
  for (const char* path : {"direct", "staged", "copy-engine", "nccl", "mpi"})
    CHECK(with("ULYSSES_PATH", path).path == path);
  CHECK(with("ULYSSES_TIMEOUT", "5000").timeoutMs == 5000);
  CHECK(with("ULYSSES_TIMEOUT", "-1").timeoutMs == -1);
  CHECK(with("ULYSSES_HOSTID", "rack A").hostId == "rack A");
  CHECK(with("ULYSSES_TOPO_FILE", "/x/y.json").topoFile == "/x/y.json");
  CHECK(with("ULYSSES_SOCKET_IFNAME", "eth0").socketIfname == "eth0");
  CHECK(with("ULYSSES_DEBUG", "TRACE").debug == "trace");
  CHECK(with("ULYSSES_DEBUG_FILE", "log.%p").debugFile == "log.%p");
  CHECK(with("ULYSSES_DUMP_DIR", "/x").dumpDir == "/x");
}

TEST_CASE("parameters: a bad value leaves every default") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"ULYSSES_A2A", "yes"},
      {"ULYSSES_A2A", "auto "},
      {"ULYSSES_MEMORY", "gpu"},
      {"ULYSSES_A2A_LONG_TRAINING", "1"},
      {"ULYSSES_RESIDENCY", "budget"},
      {"ULYSSES_RESIDENCY", "budget:"},
      {"ULYSSES_RESIDENCY", "budget:8q"},
      {"ULYSSES_KERNEL_REVISION", "3"},
      {"ULYSSES_KERNEL_REVISION", "-1"},
      {"ULYSSES_KERNEL_REVISION", "2x"},
      {"ULYSSES_WINDOWS", "cuda"},
      {"ULYSSES_WINDOW_CAP", "0"},
      {"ULYSSES_WINDOW_CAP", "-1"},
      {"ULYSSES_WINDOW_CAP", "1T"},
      {"ULYSSES_STAGING", "0"},
      {"ULYSSES_STAGING", "64 M"},
      {"ULYSSES_MAX_CTAS", "-4"},
      {"ULYSSES_MAX_CTAS", "4294967297"},
      {"ULYSSES_PATH", "fast"},
      {"ULYSSES_TIMEOUT", "0"},
      {"ULYSSES_TIMEOUT", "-2"},
      {"ULYSSES_TIMEOUT", "1s"},
      {"ULYSSES_TIMEOUT", "3000000000"},
      {"ULYSSES_DEBUG", "all"},
  };
  for (const auto& [name, value] : bad) {
    INFO(name << "=" << value);
    CHECK(with(name, value) == Parameters{});
  }
}

TEST_CASE("parameters: the older names are read where the library's own are unset") {
  CleanEnvironment environment;
  environment.set("FASTVIDEO_ULYSSES_A2A", "off");
  environment.set("FASTVIDEO_ULYSSES_A2A_LONG_TRAINING", "chunked");
  CHECK(Parameters::fromEnvironmentSilently().a2a == A2AMode::Off);
  CHECK(Parameters::fromEnvironmentSilently().longTraining == LongTraining::Chunked);
  CHECK(rowOf("ULYSSES_A2A").currentValue == "off");

  environment.set("ULYSSES_A2A", "fused");
  environment.set("ULYSSES_A2A_LONG_TRAINING", "auto");
  CHECK(Parameters::fromEnvironmentSilently().a2a == A2AMode::Fused);
  CHECK(Parameters::fromEnvironmentSilently().longTraining == LongTraining::Auto);

  environment.set("ULYSSES_A2A", "bad");
  CHECK(Parameters::fromEnvironmentSilently().a2a == A2AMode::Auto);
}

TEST_CASE("parameters: the table names each once, with its text and the value in effect") {
  CleanEnvironment environment;
  std::set<std::string> names;
  for (const ParameterRow& row : parameterTable()) {
    INFO(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(row.name.compare(0, 8, "ULYSSES_") == 0);
    CHECK_FALSE(row.type.empty());
    CHECK_FALSE(row.text.empty());
    CHECK_FALSE(row.defaultValue.empty());
    CHECK(row.currentValue == row.defaultValue);
  }
  for (const char* name : {"ULYSSES_A2A", "ULYSSES_MEMORY", "ULYSSES_A2A_LONG_TRAINING", "ULYSSES_RESIDENCY",
                           "ULYSSES_KERNEL_REVISION", "ULYSSES_WINDOWS", "ULYSSES_WINDOW_CAP", "ULYSSES_STAGING", "ULYSSES_MAX_CTAS",
                           "ULYSSES_PATH", "ULYSSES_TIMEOUT", "ULYSSES_HOSTID", "ULYSSES_TOPO_FILE",
                           "ULYSSES_SOCKET_IFNAME", "ULYSSES_DEBUG", "ULYSSES_DEBUG_FILE", "ULYSSES_DUMP_DIR"}) {
    INFO(name);
    CHECK(names.count(name) == 1);
  }
  environment.set("ULYSSES_STAGING", "8M");
  CHECK(rowOf("ULYSSES_STAGING").currentValue == "8M");
  environment.set("ULYSSES_STAGING", "8q");
  CHECK(rowOf("ULYSSES_STAGING").currentValue == "64M");
}

TEST_CASE("parameters: the defaults that the table prints are those of the struct") {
  for (const char* name :
       {"ULYSSES_A2A", "ULYSSES_MEMORY", "ULYSSES_A2A_LONG_TRAINING", "ULYSSES_KERNEL_REVISION", "ULYSSES_STAGING",
        "ULYSSES_MAX_CTAS", "ULYSSES_PATH", "ULYSSES_WINDOWS", "ULYSSES_DEBUG", "ULYSSES_DUMP_DIR"}) {
    INFO(name);
    CHECK(with(name, rowOf(name).defaultValue) == Parameters{});
  }
}

TEST_CASE("parameters child", "[.child]") {
  const Parameters first = Parameters::fromEnvironment();
  CHECK(first == Parameters::fromEnvironment());
  CHECK(first.timeoutMs == 7000);
}

TEST_CASE("parameters: a bad value is warned of once per process and name, with the default that is used") {
  CleanEnvironment environment;
  const auto run = rerunTestCase("parameters child", {{"ULYSSES_WINDOW_CAP", "8q"},
                                                      {"FASTVIDEO_ULYSSES_A2A", "1"},
                                                      {"ULYSSES_DEBUG", "loud"},
                                                      {"ULYSSES_TIMEOUT", "7000"}});
  CHECK(run.passed());
  const auto lines = linesOf(run.err);
  REQUIRE(lines.size() == 3);
  const auto warned = [&](const std::string& what, const std::string& fallback) {
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(" ULYSSES WARN " + what + " is ignored: expected ") != std::string::npos &&
             line.find("using the default, " + fallback) != std::string::npos;
    });
  };
  INFO(run.err);
  CHECK(warned("ULYSSES_WINDOW_CAP=8q", "the configuration's, or 1G") == 1);
  CHECK(warned("FASTVIDEO_ULYSSES_A2A=1", "auto") == 1);
  CHECK(warned("ULYSSES_DEBUG=loud", "WARN") == 1);
}
