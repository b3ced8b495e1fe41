// What a peer may send over the bootstrap's connections: to rank 0, from rank 0, to an acceptor, and inside its blobs.
#include <sys/socket.h>

#include <vector>

#include "bootstrap/acceptor.h"
#include "bootstrap/frame.h"
#include "bootstrap/socket.h"
#include "bootstrap/star.h"
#include "fuzz/input.h"
#include "param/group.h"
#include "plan/desc_record.h"

namespace ulysses::fuzz {
namespace {

constexpr size_t kLimit = 512;

struct Pair {
  UniqueFd ours, theirs;
  Pair() {
    int ends[2];
    FUZZ_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  // The peer says this and nothing more.
  void say(const Input& input) {
    (void)sendSome(theirs.get(), input.data(), input.size());
    ::shutdown(theirs.get(), SHUT_WR);
  }
};

// An outcome with a text where it is none, and as many blobs as ranks where it is one.
void check(const Status& status, const std::vector<Bytes>& all, size_t nranks) {
  FUZZ_REQUIRE(status.ok() ? all.size() == nranks : !status.message().empty());
}

void toReader(Input input) {
  Pair pair;
  pair.say(input);
  for (;;) {
    FrameReader reader(kLimit);
    const FrameReader::Progress progress = reader.advance(pair.ours.get());
    if (progress != FrameReader::Complete) return;
    FUZZ_REQUIRE(reader.payload.size() == reader.header.length && !reader.status().ok());
    std::vector<Bytes> blobs;
    for (const int n : {0, 1, 3})
      if (unpackBlobs(reader.payload, n, blobs)) FUZZ_REQUIRE(packBlobs(blobs) == reader.payload);
  }
}

void toHub(Input input) {
  const size_t exchanges = 1 + input.below(3);
  Pair pair;
  std::vector<UniqueFd> spokes(2);
  spokes[1] = std::move(pair.ours);
  StarHub hub(std::move(spokes), 0, {});
  pair.say(input);
  for (size_t i = 0; i < exchanges; ++i) {
    std::vector<Bytes> all;
    check(hub.allgather({{}, Bytes(3)}, kLimit, all, Deadline::afterMs(1000)), all, 2);
    std::vector<std::vector<UniqueFd>> fds(2);
    if (hub.usable()) hub.passFds({0, 1}, {}, fds, Deadline::afterMs(1000));
  }
}

void toSpoke(Input input) {
  const size_t exchanges = 1 + input.below(3);
  Pair pair;
  StarSpoke spoke(std::move(pair.ours), 1, 3, "the hub");
  pair.say(input);
  for (size_t i = 0; i < exchanges; ++i) {
    std::vector<Bytes> all;
    check(spoke.allgather({{}, Bytes(3)}, kLimit, all, Deadline::afterMs(1000)), all, 3);
    std::vector<std::vector<UniqueFd>> fds(3);
    if (spoke.usable()) spoke.passFds({1, 0, 1}, {}, fds, Deadline::afterMs(1000));
  }
}

void toAcceptor(Input input) {
  static uint64_t number = 0;
  const std::string name = "ulysses-fuzz-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
  const Secret secret{1, 2, 3};
  Result<UniqueFd> listener = listenUnix(name);
  FUZZ_REQUIRE(listener.ok());
  std::vector<UniqueFd> listeners;
  listeners.push_back(listener.take());
  Acceptor acceptor(std::move(listeners), secret);
  Result<UniqueFd> stranger = connectUnix(name);
  FUZZ_REQUIRE(stranger.ok());
  const bool known = input.flag();
  Hello hello;
  hello.secret = secret;
  const size_t offset = offsetof(Hello, rank);
  if (known) (void)sendSome(stranger.value().get(), &hello, offset);
  (void)sendSome(stranger.value().get(), input.data(), input.size());
  ::shutdown(stranger.value().get(), SHUT_WR);
  const Acceptor::Event event = acceptor.wait({}, Deadline::afterMs(0));
  if (known && input.size() >= sizeof hello - offset) {
    FUZZ_REQUIRE(event.kind == Acceptor::Event::Arrived);
  } else if (known) {
    FUZZ_REQUIRE(event.kind == Acceptor::Event::DeadlinePassed);
  }
}

// Blobs of three ranks, which are of this library's making only when their peer is.
std::vector<Bytes> threeBlobs(Input& input) {
  std::vector<Bytes> blobs(3);
  for (Bytes& blob : blobs) {
    blob.resize(std::min<size_t>(input.take<uint16_t>(), input.size()));
    for (std::byte& b : blob) b = std::byte(input.take<uint8_t>());
  }
  return blobs;
}

void toRecords(Input input) {
  const bool plan = input.flag();
  const std::vector<Bytes> blobs = threeBlobs(input);
  std::vector<OperandStrides> strides;
  const Status status = plan ? agreeDescs(blobs, &strides) : agreeGroup(0, blobs);
  FUZZ_REQUIRE(status.ok() || !status.message().empty());
}

}  // namespace
}  // namespace ulysses::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ulysses::fuzz;
  Input input(data, size);
  switch (input.below(5)) {
    case 0:
      toReader(input);
      break;
    case 1:
      toHub(input);
      break;
    case 2:
      toSpoke(input);
      break;
    case 3:
      toAcceptor(input);
      break;
    default:
      toRecords(input);
      break;
  }
  return 0;
}
