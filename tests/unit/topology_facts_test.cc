// Facts survive the way to JSON and back; anything else in a facts file is refused with its place.
#include "topology/facts.h"

#include <filesystem>
#include <fstream>
#include <random>

#include "support/catch.h"

using namespace ulysses;

namespace {

// Every field different from its default, so that one that is not carried shows.
RankFacts fullFacts() {
  RankFacts rank;
  rank.hostId = "boot";
  rank.hostName = "name";
  rank.namespaces = {1, 2, 3, UINT64_MAX};
  rank.numaNodes = 2;
  rank.cpuset = "0-3";
  rank.gpuCount = 3;
  GpuFacts gpu;
  gpu.uuid = "GPU-a";
  gpu.pciId = "0000:1b:00.0";
  gpu.name = "a \"GPU\"\n";
  gpu.computeMajor = 9;
  gpu.computeMinor = 1;
  gpu.mig = true;
  gpu.numaNode = 1;
  gpu.cpuset = "0-1";
  gpu.activeLinks = 18;
  gpu.switchLinks = 17;
  gpu.fabric = {FabricState::Completed, "00ff", 7};
  gpu.peers = {
      {"GPU-b", true, P2pStatus::Ok, P2pStatus::Unknown, P2pStatus::NotSupported, 2},
      {"GPU-c", false, P2pStatus::ChipsetNotSupported, P2pStatus::DisabledByRegkey, P2pStatus::TopologyNotSupported, 0},
      {"GPU-d", std::nullopt, P2pStatus::GpuNotSupported, P2pStatus::NotReported, P2pStatus::Ok, 0}};
  rank.gpu = gpu;
  rank.driverVersion = "580.1";
  rank.ncclVersion = 22807;
  rank.ncclLsaSize = 4;
  rank.failedQueries = {{"query", "text"}};
  rank.warnings = {"one", "two"};
  return rank;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

std::string messageFor(const std::string& text) {
  const auto facts = factsFromJson(text, "x.json");
  CHECK_FALSE(facts.ok());
  CHECK(facts.status().code() == ulyssesInvalidArgument);
  return facts.status().message();
}

std::string fileText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("facts come back from JSON as they were") {
  const FactsFile facts{"constructed for this test", {fullFacts(), RankFacts{}}};
  for (const int indent : {-1, 2}) {
    const std::string text = factsToJson(facts, indent);
    const auto back = factsFromJson(text, "text");
    INFO(back.status().message());
    REQUIRE(back.ok());
    CHECK(back.value().source == facts.source);
    CHECK(back.value().ranks == facts.ranks);
    CHECK(factsToJson(back.value(), indent) == text);
  }
}

TEST_CASE("a bad facts file is refused with its place and what was expected there") {
  const std::string good = factsToJson({"test", {fullFacts(), fullFacts()}});
  REQUIRE(factsFromJson(good, "x.json").ok());

  CHECK(messageFor("") == "x.json: line 1, column 1: expected valid JSON");
  CHECK(messageFor(replaced(good, "\"source\": \"test\",", "\"source\": \"test\"")) ==
        "x.json: line 5, column 9: expected valid JSON");
  CHECK(messageFor(good.substr(0, good.size() / 2)).find("expected valid JSON") != std::string::npos);
  CHECK(messageFor("[]") == "x.json: top level: expected an object");
  CHECK(messageFor(replaced(good, "ulysses-facts", "other")) ==
        "x.json: format: expected 'ulysses-facts', found 'other'");
  CHECK(messageFor(replaced(good, "\"version\": 1", "\"version\": 2")) ==
        "x.json: version: expected an integer from 1 to 1");
  CHECK(messageFor(replaced(good, "\"source\"", "\"sauce\"")) == "x.json: top level: expected the key 'source'");
  CHECK(messageFor(replaced(good, "\"hostId\"", "\"extra\": 1, \"hostId\"")) ==
        "x.json: ranks[0]: unknown key 'extra'");
  CHECK(messageFor(replaced(good, "\"hostId\"", "\"hostName\": \"twice\", \"hostId\"")) ==
        "x.json: JSON: expected each key once, found 'hostName' again");
  CHECK(messageFor(replaced(good, "\"mig\": true", "\"mig\": 1")) ==
        "x.json: ranks[0].gpu.mig: expected true or false");
  CHECK(messageFor(replaced(good, "\"numaNode\": 1", "\"numaNode\": -2")) ==
        "x.json: ranks[0].gpu.numaNode: expected an integer from -1 to 2147483647");
  CHECK(messageFor(replaced(good, "\"numaNode\": 1", "\"numaNode\": 1.5")) ==
        "x.json: ranks[0].gpu.numaNode: expected an integer from -1 to 2147483647");
  CHECK(messageFor(replaced(good, "\"cliqueId\": 7", "\"cliqueId\": 4294967296")) ==
        "x.json: ranks[0].gpu.fabric.cliqueId: expected an integer from 0 to 4294967295");
  CHECK(messageFor(replaced(good, "18446744073709551615", "18446744073709551616")).find("ranks[0].namespaces.ipc") !=
        std::string::npos);
  CHECK(messageFor(replaced(good, "\"nvlink\": \"not-supported\"", "\"nvlink\": \"\\u001b[31m\"")) ==
        "x.json: ranks[0].gpu.peers[0].nvlink: expected one of not-reported, ok, chipset-not-supported, "
        "gpu-not-supported, topology-not-supported, disabled-by-regkey, not-supported, unknown, found '?[31m'");
  CHECK(messageFor(replaced(good, "GPU-c", "GPU-b")) ==
        "x.json: ranks[0].gpu.peers[1].uuid: expected another GPU, each once, found 'GPU-b'");
  CHECK(messageFor(replaced(good, "GPU-c", "GPU-a")) ==
        "x.json: ranks[0].gpu.peers[1].uuid: expected another GPU, each once, found 'GPU-a'");
  CHECK(messageFor(replaced(good, "\"boot\"", "\"" + std::string(kMaxFactsString + 1, 'b') + "\"")) ==
        "x.json: ranks[0].hostId: expected a string of at most 1024 bytes");
}

TEST_CASE("facts that are too large or too deep are refused before they cost memory") {
  CHECK(messageFor(std::string(kMaxFactsBytes + 1, ' ')).find("expected at most 16777216 bytes") != std::string::npos);
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  CHECK(messageFor(deep) == "x.json: JSON: expected at most 8 levels of nesting");
  CHECK(messageFor("{\"version\": 4e26531841}") == "x.json: JSON: expected numbers that a double can hold");

  FactsFile many{"test", std::vector<RankFacts>(kMaxFactsRanks + 1)};
  CHECK(messageFor(factsToJson(many)) == "x.json: ranks: expected an array of at most 1024 entries");
  many.ranks.resize(kMaxFactsRanks);
  CHECK(factsFromJson(factsToJson(many), "x.json").ok());
}

TEST_CASE("a damaged facts file is refused or read, never worse") {
  std::mt19937 random(11);
  const std::string tokens = "{}[],:\"0-9.eEtfn\\u\x80\xff ";
  int refused = 0, read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(ULYSSES_DATA_DIR) / "topology")) {
    const std::string good = fileText(entry.path());
    for (int i = 0; i < 100; ++i) {
      std::string text = good;
      for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
        const size_t at = random() % text.size();
        switch (random() % 3) {
          case 0:
            text[at] = tokens[random() % tokens.size()];
            break;
          case 1:
            text.erase(at, 1 + random() % 40);
            break;
          default:
            text.insert(at, text.substr(random() % text.size(), random() % 40));
        }
      }
      const auto facts = factsFromJson(text, "damaged");
      if (facts.ok()) {
        ++read;
        const auto again = factsFromJson(factsToJson(facts.value()), "again");
        REQUIRE(again.ok());
        CHECK(again.value().ranks == facts.value().ranks);
      } else {
        ++refused;
        CHECK(facts.status().message().rfind("damaged: ", 0) == 0);
      }
    }
  }
  CHECK(refused > read);
  CHECK(read > 0);
}

TEST_CASE("bytes that are not UTF-8 do not stop the writer") {
  RankFacts rank;
  rank.hostName = "host\xff";
  const auto back = factsFromJson(factsToJson({"test", {rank}}), "text");
  REQUIRE(back.ok());
  CHECK(back.value().ranks[0].hostName == "host\xef\xbf\xbd");
}

TEST_CASE("a facts file that is not there is an error with its path") {
  const auto facts = loadFactsFile("/nonexistent/facts.json");
  REQUIRE_FALSE(facts.ok());
  CHECK(facts.status().code() == ulyssesSystemError);
  CHECK(facts.status().message() == "/nonexistent/facts.json: the facts file can't be opened");
  CHECK_FALSE(loadFactsFile(std::filesystem::temp_directory_path().string()).ok());
}
