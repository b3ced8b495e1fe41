#include "topology/facts.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <utility>

#include "base/format.h"

namespace ulysses {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFormat = "ulysses-facts";
constexpr int kFormatVersion = 1;
constexpr int kMaxDepth = 8;

constexpr std::array kP2pNames = {"not-reported",           "ok",
                                  "chipset-not-supported",  "gpu-not-supported",
                                  "topology-not-supported", "disabled-by-regkey",
                                  "not-supported",          "unknown"};
constexpr std::array kFabricNames = {"not-reported", "not-supported", "not-started", "in-progress", "completed"};

Status bad(const std::string& name, const std::string& where, const std::string& what) {
  return {ulyssesInvalidArgument, formatText("{}: {}: {}", name, where, what)};
}

// Text from outside goes into messages shortened, and without characters that would upset a terminal.
std::string shown(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) out += (c >= ' ' && c <= '~') ? c : '?';
  return out + (text.size() > kShown ? "...'" : "'");
}

// Walks one object: every key must be asked for, every asked key must be there. The first fault is kept; after it the
// getters give defaults, so that callers need no check between them.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string where, const std::string& name)
      : json_(json), where_(std::move(where)), name_(name) {
    if (!json_.is_object()) fail(here(), "expected an object");
  }

  std::string string(const char* key, size_t most = kMaxFactsString) {
    const Json* value = find(key);
    if (!value) return {};
    return stringOf(*value, at(key), most);
  }

  template <class Integer>
  Integer integer(const char* key, int64_t least, uint64_t most) {
    const Json* value = find(key);
    if (!value) return {};
    const bool fits = value->is_number_unsigned()  ? value->get<uint64_t>() <= most
                      : value->is_number_integer() ? value->get<int64_t>() >= least
                                                   : false;
    if (!fits) {
      fail(at(key), formatText("expected an integer from {} to {}", least, most));
      return {};
    }
    return value->get<Integer>();
  }

  bool boolean(const char* key) {
    const Json* value = find(key);
    if (!value) return false;
    if (!value->is_boolean()) {
      fail(at(key), "expected true or false");
      return false;
    }
    return value->get<bool>();
  }

  std::optional<bool> booleanOrNull(const char* key) {
    const Json* value = find(key);
    if (!value || value->is_null()) return std::nullopt;
    return boolean(key);
  }

  template <class Enum, size_t n>
  Enum oneOf(const char* key, const std::array<const char*, n>& names) {
    const std::string text = string(key);
    const auto found = std::find(names.begin(), names.end(), text);
    if (found != names.end()) return static_cast<Enum>(found - names.begin());
    fail(at(key), formatText("expected one of {}, found {}", joinText(names, ", "), shown(text)));
    return {};
  }

  // Calls read(ObjectReader&) on the object at `key`; false where it is null, which only `nullable` allows.
  template <class Read>
  bool object(const char* key, bool nullable, Read read) {
    const Json* value = find(key);
    if (!value || (nullable && value->is_null())) return false;
    nested(*value, at(key), read);
    return true;
  }

  template <class Read>
  void objects(const char* key, size_t most, Read read) {
    each(key, most, [&](const Json& item, const std::string& where) { nested(item, where, read); });
  }

  std::vector<std::string> strings(const char* key, size_t most) {
    std::vector<std::string> out;
    each(key, most,
         [&](const Json& item, const std::string& where) { out.push_back(stringOf(item, where, kMaxFactsString)); });
    return out;
  }

  void fail(const std::string& where, const std::string& what) {
    if (status_.ok()) status_ = bad(name_, where, what);
  }

  std::string here() const { return where_.empty() ? "top level" : where_; }
  std::string at(const std::string& key) const { return where_.empty() ? key : where_ + "." + key; }

  // To be called last: what nobody asked for is an error, so that a misspelt key does not pass as a default.
  Status finish() {
    if (!json_.is_object()) return status_;
    for (const auto& [key, value] : json_.items())
      if (!asked_.count(key)) fail(here(), "unknown key " + shown(key));
    return status_;
  }

 private:
  const Json* find(const char* key) {
    asked_.insert(key);
    if (!status_.ok()) return nullptr;
    const auto found = json_.find(key);
    if (found != json_.end()) return &*found;
    fail(here(), formatText("expected the key '{}'", key));
    return nullptr;
  }

  std::string stringOf(const Json& value, const std::string& where, size_t most) {
    if (value.is_string() && value.get_ref<const std::string&>().size() <= most) return value.get<std::string>();
    fail(where, formatText("expected a string of at most {} bytes", most));
    return {};
  }

  template <class Read>
  void nested(const Json& value, const std::string& where, Read read) {
    ObjectReader reader(value, where, name_);
    if (reader.status_.ok()) read(reader);
    if (const Status status = reader.finish(); !status.ok() && status_.ok()) status_ = status;
  }

  template <class Visit>
  void each(const char* key, size_t most, Visit visit) {
    const Json* value = find(key);
    if (!value) return;
    if (!value->is_array() || value->size() > most)
      return fail(at(key), formatText("expected an array of at most {} entries", most));
    for (size_t i = 0; i < value->size() && status_.ok(); ++i) visit((*value)[i], formatText("{}[{}]", at(key), i));
  }

  const Json& json_;
  const std::string where_;
  const std::string& name_;
  std::set<std::string> asked_;
  Status status_;
};

constexpr uint64_t kMaxInt = INT32_MAX;

PeerFacts readPeer(ObjectReader& in) {
  PeerFacts peer;
  peer.uuid = in.string("uuid");
  peer.peerAccess = in.booleanOrNull("peerAccess");
  peer.read = in.oneOf<P2pStatus>("read", kP2pNames);
  peer.write = in.oneOf<P2pStatus>("write", kP2pNames);
  peer.nvlink = in.oneOf<P2pStatus>("nvlink", kP2pNames);
  peer.directLinks = in.integer<int>("directLinks", 0, kMaxInt);
  return peer;
}

GpuFacts readGpu(ObjectReader& in) {
  GpuFacts gpu;
  gpu.uuid = in.string("uuid");
  gpu.pciId = in.string("pciId");
  gpu.name = in.string("name");
  gpu.computeMajor = in.integer<int>("computeMajor", 0, kMaxInt);
  gpu.computeMinor = in.integer<int>("computeMinor", 0, kMaxInt);
  gpu.mig = in.boolean("mig");
  gpu.numaNode = in.integer<int>("numaNode", -1, kMaxInt);
  gpu.cpuset = in.string("cpuset");
  gpu.activeLinks = in.integer<int>("activeLinks", 0, kMaxInt);
  gpu.switchLinks = in.integer<int>("switchLinks", 0, kMaxInt);
  in.object("fabric", false, [&](ObjectReader& fabric) {
    gpu.fabric.state = fabric.oneOf<FabricState>("state", kFabricNames);
    gpu.fabric.clusterUuid = fabric.string("clusterUuid");
    gpu.fabric.cliqueId = fabric.integer<uint32_t>("cliqueId", 0, UINT32_MAX);
  });
  std::set<std::string> seen{gpu.uuid};
  in.objects("peers", kMaxFactsPeers, [&](ObjectReader& peer) {
    gpu.peers.push_back(readPeer(peer));
    if (!seen.insert(gpu.peers.back().uuid).second)
      peer.fail(peer.at("uuid"), "expected another GPU, each once, found " + shown(gpu.peers.back().uuid));
  });
  return gpu;
}

RankFacts readRank(ObjectReader& in) {
  RankFacts rank;
  rank.hostId = in.string("hostId");
  rank.hostName = in.string("hostName");
  in.object("namespaces", false, [&](ObjectReader& ns) {
    rank.namespaces.mnt = ns.integer<uint64_t>("mnt", 0, UINT64_MAX);
    rank.namespaces.pid = ns.integer<uint64_t>("pid", 0, UINT64_MAX);
    rank.namespaces.net = ns.integer<uint64_t>("net", 0, UINT64_MAX);
    rank.namespaces.ipc = ns.integer<uint64_t>("ipc", 0, UINT64_MAX);
  });
  rank.numaNodes = in.integer<int>("numaNodes", 0, kMaxInt);
  rank.cpuset = in.string("cpuset");
  rank.gpuCount = in.integer<int>("gpuCount", 0, kMaxInt);
  GpuFacts gpu;
  if (in.object("gpu", true, [&](ObjectReader& object) { gpu = readGpu(object); })) rank.gpu = std::move(gpu);
  rank.driverVersion = in.string("driverVersion");
  rank.ncclVersion = in.integer<int>("ncclVersion", 0, kMaxInt);
  rank.ncclLsaSize = in.integer<int>("ncclLsaSize", 0, kMaxInt);
  in.objects("failedQueries", kMaxFactsNotes, [&](ObjectReader& failed) {
    FailedQuery query;
    query.query = failed.string("query");
    query.text = failed.string("text");
    rank.failedQueries.push_back(std::move(query));
  });
  rank.warnings = in.strings("warnings", kMaxFactsNotes);
  return rank;
}

std::string lineAndColumn(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const size_t lineStart = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  return formatText("line {}, column {}", 1 + std::count(before.begin(), before.end(), '\n'),
                    1 + before.size() - lineStart);
}

// Text to tree. The parser keeps the last of two equal keys and any depth; both are refused here.
Result<Json> parseTree(std::string_view text, const std::string& name) {
  std::vector<std::set<std::string>> keys(kMaxDepth + 1);
  std::string fault;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) {
      if (fault.empty()) fault = formatText("expected at most {} levels of nesting", kMaxDepth);
      return false;
    }
    if (event == Json::parse_event_t::object_start && depth < kMaxDepth) keys[depth + 1].clear();
    if (event == Json::parse_event_t::key && !keys[depth].insert(parsed.get<std::string>()).second && fault.empty())
      fault = formatText("expected each key once, found {} again", shown(parsed.get<std::string>()));
    return true;
  };
  try {
    Json tree = Json::parse(text.begin(), text.end(), watch);
    if (!fault.empty()) return bad(name, "JSON", fault);
    return tree;
  } catch (const Json::parse_error& error) {
    return bad(name, lineAndColumn(text, error.byte > 0 ? error.byte - 1 : 0), "expected valid JSON");
  } catch (const Json::out_of_range&) {
    return bad(name, "JSON", "expected numbers that a double can hold");
  }
}

OrderedJson peerToJson(const PeerFacts& peer) {
  return {{"uuid", peer.uuid},
          {"peerAccess", peer.peerAccess ? OrderedJson(*peer.peerAccess) : OrderedJson()},
          {"read", p2pStatusName(peer.read)},
          {"write", p2pStatusName(peer.write)},
          {"nvlink", p2pStatusName(peer.nvlink)},
          {"directLinks", peer.directLinks}};
}

OrderedJson gpuToJson(const GpuFacts& gpu) {
  OrderedJson peers = OrderedJson::array();
  for (const PeerFacts& peer : gpu.peers) peers.push_back(peerToJson(peer));
  return {{"uuid", gpu.uuid},
          {"pciId", gpu.pciId},
          {"name", gpu.name},
          {"computeMajor", gpu.computeMajor},
          {"computeMinor", gpu.computeMinor},
          {"mig", gpu.mig},
          {"numaNode", gpu.numaNode},
          {"cpuset", gpu.cpuset},
          {"activeLinks", gpu.activeLinks},
          {"switchLinks", gpu.switchLinks},
          {"fabric",
           {{"state", fabricStateName(gpu.fabric.state)},
            {"clusterUuid", gpu.fabric.clusterUuid},
            {"cliqueId", gpu.fabric.cliqueId}}},
          {"peers", std::move(peers)}};
}

OrderedJson rankToJson(const RankFacts& rank) {
  OrderedJson failed = OrderedJson::array();
  for (const FailedQuery& query : rank.failedQueries) failed.push_back({{"query", query.query}, {"text", query.text}});
  return {{"hostId", rank.hostId},
          {"hostName", rank.hostName},
          {"namespaces",
           {{"mnt", rank.namespaces.mnt},
            {"pid", rank.namespaces.pid},
            {"net", rank.namespaces.net},
            {"ipc", rank.namespaces.ipc}}},
          {"numaNodes", rank.numaNodes},
          {"cpuset", rank.cpuset},
          {"gpuCount", rank.gpuCount},
          {"gpu", rank.gpu ? gpuToJson(*rank.gpu) : OrderedJson()},
          {"driverVersion", rank.driverVersion},
          {"ncclVersion", rank.ncclVersion},
          {"ncclLsaSize", rank.ncclLsaSize},
          {"failedQueries", std::move(failed)},
          {"warnings", rank.warnings}};
}

}  // namespace

const char* p2pStatusName(P2pStatus status) {
  return kP2pNames[static_cast<size_t>(status)];
}
const char* fabricStateName(FabricState state) {
  return kFabricNames[static_cast<size_t>(state)];
}

std::string factsToJson(const FactsFile& facts, int indent) {
  OrderedJson ranks = OrderedJson::array();
  for (const RankFacts& rank : facts.ranks) ranks.push_back(rankToJson(rank));
  const OrderedJson file = {
      {"format", kFormat}, {"version", kFormatVersion}, {"source", facts.source}, {"ranks", std::move(ranks)}};
  // Names come from drivers and may hold any bytes; what is not UTF-8 is replaced rather than thrown at.
  return file.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}

Result<FactsFile> factsFromJson(std::string_view text, const std::string& name) {
  if (text.size() > kMaxFactsBytes)
    return bad(name, "size", formatText("expected at most {} bytes, found {}", kMaxFactsBytes, text.size()));
  ULYSSES_ASSIGN(const Json tree, parseTree(text, name));

  ObjectReader in(tree, "", name);
  if (const std::string format = in.string("format"); format != kFormat)
    in.fail("format", formatText("expected '{}', found {}", kFormat, shown(format)));
  in.integer<int>("version", kFormatVersion, kFormatVersion);
  FactsFile file;
  file.source = in.string("source");
  in.objects("ranks", kMaxFactsRanks, [&](ObjectReader& rank) { file.ranks.push_back(readRank(rank)); });
  ULYSSES_TRY(in.finish());
  return file;
}

Result<FactsFile> loadFactsFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(ulyssesSystemError, formatText("{}: the facts file can't be opened", path));
  std::string text(kMaxFactsBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return Status(ulyssesSystemError, formatText("{}: the facts file can't be read", path));
  text.resize(static_cast<size_t>(file.gcount()));
  return factsFromJson(text, path);
}

}  // namespace ulysses
