// The registrar's bookkeeping, over a provider that maps nothing: numbers, cap, the caller's own memory, what is given back.
#include <memory>
#include <utility>

#include "support/catch.h"
#include "window/registrar.h"

namespace {

using namespace ulysses;

// Memory that every rank "maps" at the owner's address. `kept` counts what is mapped.
class FakeProvider final : public WindowProvider {
 public:
  FakeProvider(int nranks, int rank, bool adopts, std::shared_ptr<int> kept, bool symmetric = false)
      : nranks_(nranks), rank_(rank), adopts_(adopts), symmetric_(symmetric), kept_(std::move(kept)) {}
  const char* name() const override { return "fake"; }
  bool unmapsAnytime() const override { return false; }
  bool symmetric() const override { return symmetric_; }
  Status adopts() const override { return adopts_ ? Status() : WindowProvider::adopts(); }
  Status allocate(size_t bytes, ControlChannel&, std::vector<WindowPart>& parts, Deadline) override {
    next_ += 1 << 20;
    return map(reinterpret_cast<std::byte*>(next_), bytes, parts);
  }
  Status adopt(void* ptr, size_t bytes, ControlChannel&, std::vector<WindowPart>& parts, Deadline) override {
    return map(static_cast<std::byte*>(ptr), bytes, parts);
  }

 private:
  Status map(std::byte* base, size_t bytes, std::vector<WindowPart>& parts) {
    for (int r = 0; r < nranks_; ++r) {
      ++*kept_;
      parts.push_back({bytes != 0 ? base : nullptr, r == rank_ ? bytes : 1, std::shared_ptr<void>(this, [n = kept_](void*) { --*n; })});
    }
    return {};
  }
  int nranks_, rank_;
  bool adopts_, symmetric_;
  std::shared_ptr<int> kept_;
  uintptr_t next_ = 1 << 20;
};

// Gives the other rank's word for this one's, where there is one.
class NoChannel final : public ControlChannel {
 public:
  Bytes other;
  int rank() const override { return 0; }
  int nranks() const override { return 2; }
  int nHosts() const override { return 1; }
  bool passesFds() const override { return true; }
  Status allgather(const Bytes& mine, std::vector<Bytes>& all, Deadline) override {
    if (!other.empty()) all = {mine, other};
    return {};
  }
  Status allgatherFds(std::span<const int>, std::vector<std::vector<UniqueFd>>&, Deadline) override { return {}; }
  int lifeline(int) const override { return -1; }
  bool dead(int) const override { return false; }
};

constexpr size_t kCap = 10000;

struct Fixture {
  std::shared_ptr<int> kept = std::make_shared<int>(0);
  NoChannel channel;
  Registrar registrar{0, 2, std::make_unique<FakeProvider>(2, 0, true, kept), kCap};
  std::byte memory[4096];

  uint32_t adopt(size_t offset, size_t bytes) {
    uint32_t window = 0;
    REQUIRE(registrar.adoptable(memory + offset, bytes).ok());
    REQUIRE(registrar.adopt(memory + offset, bytes, channel, Deadline::afterMs(1000), &window).ok());
    return window;
  }
  uint32_t allocate(size_t bytes) {
    uint32_t window = 0;
    REQUIRE(registrar.allocate(bytes, channel, Deadline::afterMs(1000), &window).ok());
    return window;
  }
  void announce() {
    while (!registrar.unannounced(1).empty()) {
      const uint32_t window = registrar.unannounced(1)[0];
      registrar.drop(0, window);
      registrar.drop(1, window);
    }
  }
};

}  // namespace

TEST_CASE("windows: the caller's memory is found, counted, and given back by its number", "[window]") {
  Fixture f;
  const uint32_t window = f.adopt(100, 1000);
  CHECK(f.registrar.usedBytes() == 1000);
  CHECK(f.registrar.locate(f.memory + 100, 1000).window == window);
  CHECK(f.registrar.locate(f.memory + 150, 950).offset == 50);
  CHECK(f.registrar.locate(f.memory + 150, 951).plain());
  CHECK(f.registrar.locate(f.memory + 99, 1).plain());
  CHECK(f.registrar.allocatedAt(f.memory + 100) == 0);  // ulyssesMemFree has no business with it
  f.registrar.release(window);
  CHECK(f.registrar.usedBytes() == 0);
  CHECK(f.registrar.locate(f.memory + 100, 1).plain());
  // The number is free again when every rank has said that it is; until then the peers may still write there.
  CHECK(f.adopt(100, 1000) != window);
  f.announce();
  CHECK(f.adopt(2000, 10) == window);
}

TEST_CASE("windows: the caller's memory lies in one window at most", "[window]") {
  Fixture f;
  f.adopt(1000, 1000);
  for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{1000, 1000}, {0, 1001}, {1999, 1}, {1999, 500}, {1200, 10}, {0, 4096}}) {
    INFO(offset << " +" << bytes);
    CHECK(f.registrar.adoptable(f.memory + offset, bytes).code() == ulyssesInvalidArgument);
  }
  CHECK(f.registrar.adoptable(f.memory, 1000).ok());
  CHECK(f.registrar.adoptable(f.memory + 2000, 1000).ok());
  CHECK(f.registrar.adoptable(f.memory + 1500, 0).ok());
  const uint32_t allocated = f.allocate(64);
  CHECK(f.registrar.allocatedAt(f.registrar.base(0, allocated)) == allocated);
  CHECK(f.registrar.adoptable(f.registrar.base(0, allocated) + 8, 8).code() == ulyssesInvalidArgument);
}

TEST_CASE("windows: what can't be adopted is refused before anything is asked of the memory", "[window]") {
  Fixture f;
  CHECK(f.registrar.adoptable(nullptr, 1).code() == ulyssesInvalidArgument);
  CHECK(f.registrar.adoptable(nullptr, 0).ok());
  CHECK(f.registrar.adoptable(f.memory, SIZE_MAX).code() == ulyssesInvalidArgument);
  f.adopt(0, 4000);
  const Status beyond = f.registrar.adoptable(f.memory + 4000, kCap - 4000 + 1);
  CHECK(beyond.code() == ulyssesOutOfMemory);
  for (const char* number : {"6001", "4000", "10000"}) CHECK(beyond.message().find(number) != std::string::npos);
  CHECK(f.registrar.adoptable(f.memory + 4000, kCap - 4000).ok());

  Registrar host(0, 2, std::make_unique<FakeProvider>(2, 0, false, f.kept), kCap);
  CHECK(host.adoptable(nullptr, 1).code() == ulyssesNotSupported);
}

TEST_CASE("windows: a rank that brings nothing has a window all the same, and nothing stays mapped", "[window]") {
  Fixture f;
  const uint32_t none = f.adopt(0, 0), some = f.adopt(0, 16), fresh = f.allocate(0);
  CHECK(f.registrar.usedBytes() == 16);
  CHECK(none != some);
  f.registrar.release(none);
  f.registrar.release(some);
  CHECK(f.registrar.usedBytes() == 0);
  f.announce();
  CHECK(f.registrar.liveWindows() == 0);
  // One that could not be made known to the kernels is undone, and not announced for ever.
  const uint32_t undone = f.allocate(0);
  f.registrar.retire(undone);
  f.announce();
  CHECK(f.registrar.unannounced(8).empty());
  CHECK(*f.kept > 0);
  f.allocate(8);  // the peers' parts are unmapped while all ranks allocate
  CHECK(*f.kept == 2);
  (void)fresh;
}

TEST_CASE("windows of one size on all ranks: as much as any asks for, and gone as a whole when all have given theirs back",
          "[window]") {
  const auto kept = std::make_shared<int>(0);
  NoChannel channel;
  Registrar registrar(0, 2, std::make_unique<FakeProvider>(2, 0, true, kept, true), kCap);
  const auto allocate = [&](uint64_t mine, uint64_t theirs, uint64_t theirFree, uint32_t* window) {
    const uint64_t words[] = {theirs, theirFree};
    channel.other.assign(reinterpret_cast<const std::byte*>(words), reinterpret_cast<const std::byte*>(words + 2));
    return registrar.allocate(mine, channel, Deadline::afterMs(1000), window);
  };
  const auto drop = [&](std::initializer_list<uint32_t> windows) {
    for (const uint32_t window : windows) registrar.drop(1, window);
  };
  uint32_t small = 0, large = 0, none = 0, refused = 0;
  REQUIRE(allocate(100, 4000, kCap, &small).ok());
  CHECK(registrar.usedBytes() == 4000);
  CHECK(registrar.locate(registrar.base(0, small), 100).window == small);
  CHECK(registrar.locate(registrar.base(0, small), 101).plain());  // this rank's own stays what it asked for
  REQUIRE(allocate(1000, 0, kCap, &large).ok());
  CHECK(registrar.usedBytes() == 5000);
  REQUIRE(allocate(0, 3000, kCap, &none).ok());
  CHECK(registrar.usedBytes() == 5000);
  CHECK(*kept == 6);

  // More than this rank has room for, and more than the other has.
  CHECK(allocate(100, 5001, kCap, &refused).code() == ulyssesOutOfMemory);
  const Status theirs = allocate(100, 10, 99, &refused);
  CHECK(theirs.code() == ulyssesOutOfMemory);
  CHECK(theirs.message().find("rank 1: 100 more window bytes wanted") != std::string::npos);
  CHECK(registrar.usedBytes() == 5000);

  registrar.release(small);
  CHECK(registrar.usedBytes() == 1000);
  CHECK(registrar.unannounced(8).size() == 2);
  registrar.drop(0, small);
  registrar.drop(0, none);
  drop({large});
  uint32_t next = 0;
  REQUIRE(allocate(10, 10, kCap, &next).ok());
  CHECK(*kept == 8);  // nothing is gone before the last rank has given its part back
  drop({small, none});
  registrar.release(large);
  registrar.drop(0, large);
  registrar.retire(next);
  CHECK(registrar.usedBytes() == 0);
  CHECK(*kept == 8);
  REQUIRE(allocate(10, 10, kCap, &next).ok());
  CHECK(*kept == 2);
  CHECK(next == 1);
}
