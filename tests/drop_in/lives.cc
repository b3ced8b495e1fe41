// How communicators of NCCL's begin and end, and what goes wrong in between: with libulysses-nccl before NCCL, what it
// does without.
//   lives CASE [--taken all-gathers]     what the preloaded library must have taken of the process's calls
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include <ulysses/ulysses_nccl_drop_in.h>

#include "nccl.h"

namespace {

constexpr size_t kBytes = 4096;

void sleepMs(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

ncclComm* everyone(const Nccl& nccl) {
  UniqueId id{};
  if (rank == 0) check(nccl.getUniqueId(&id) == 0, "ncclGetUniqueId");
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm* comm = nullptr;
  sleepMs(30 * rank);
  const int made = nccl.commInitRank(&comm, nranks, id, rank);
  check(made == 0 || made == 7, "ncclCommInitRank");
  for (int state = made; state == 7; sleepMs(1)) check(nccl.asyncError(comm, &state) == 0, "ncclCommGetAsyncError");
  return comm;
}

cudaStream_t stream() {
  cudaStream_t made = nullptr;
  CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return made;
}

// A gather of its own rank's number, by every rank.
struct Gather {
  explicit Gather(size_t each = kBytes) : bytes(each) {
    CUDA(cudaMalloc(&in, bytes));
    CUDA(cudaMalloc(&out, bytes * static_cast<size_t>(nranks)));
    CUDA(cudaMemset(in, rank + 1, bytes));
    CUDA(cudaMemset(out, 0, bytes * static_cast<size_t>(nranks)));
    CUDA(cudaDeviceSynchronize());
  }
  ~Gather() {
    (void)cudaFree(in);
    (void)cudaFree(out);
  }
  int launch(const Nccl& nccl, ncclComm* comm, cudaStream_t on) const {
    return nccl.allGather(in, out, bytes, kUint8, comm, on);
  }
  bool right() const {
    std::vector<unsigned char> got(bytes * static_cast<size_t>(nranks));
    CUDA(cudaMemcpy(got.data(), out, got.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < got.size(); ++i)
      if (got[i] != i / bytes + 1) return false;
    return true;
  }
  size_t bytes;
  void *in = nullptr, *out = nullptr;
};

// What was launched is done when the communicator has been finalized, and nothing is launched after.
void finalized(const Nccl& nccl) {
  ncclComm* comm = everyone(nccl);
  cudaStream_t on = stream();
  const Gather gather;
  check(gather.launch(nccl, comm, on) == 0, "ncclAllGather");
  check(nccl.commFinalize(comm) == 0, "ncclCommFinalize");
  CUDA(cudaStreamSynchronize(on));
  check(gather.right(), "the gather before the communicator's end is wrong");
  check(gather.launch(nccl, comm, on) == 5, "a gather on a finalized communicator is no invalid usage");
  check(nccl.commDestroy(comm) == 0, "ncclCommDestroy");
}

// A gather waits in a stream behind a message that nobody sends.
void aborted(const Nccl& nccl) {
  ncclComm* comm = everyone(nccl);
  cudaStream_t on = stream();
  const Gather gather;
  check(gather.launch(nccl, comm, on) == 0, "ncclAllGather");
  CUDA(cudaStreamSynchronize(on));
  check(nccl.recv(gather.out, kBytes, kUint8, (rank + 1) % nranks, comm, on) == 0, "ncclRecv");
  check(gather.launch(nccl, comm, on) == 0, "ncclAllGather behind it");
  check(nccl.commAbort(comm) == 0, "ncclCommAbort");
  CUDA(cudaStreamSynchronize(on));
}

// Two communicators of which each waits for the other in a stream end in one group.
void abortedTogether(const Nccl& nccl) {
  ncclComm *comm = everyone(nccl), *other = everyone(nccl);
  cudaStream_t on = stream();
  const Gather gather;
  check(nccl.recv(gather.out, kBytes, kUint8, (rank + 1) % nranks, comm, on) == 0, "ncclRecv");
  check(gather.launch(nccl, other, on) == 0, "ncclAllGather behind it");
  check(nccl.groupStart() == 0, "ncclGroupStart");
  check(nccl.commAbort(other) == 0 && nccl.commAbort(comm) == 0, "ncclCommAbort");
  check(nccl.groupEnd() == 0, "ncclGroupEnd");
  CUDA(cudaStreamSynchronize(on));
}

// The last rank does not come any more. The others leave it behind, with a gather that waits for it.
void shrunkAfter(const Nccl& nccl, bool revoke) {
  ncclComm *comm = everyone(nccl), *child = nullptr;
  cudaStream_t on = stream();
  const Gather gather;
  int last = nranks - 1;
  if (rank != last) {
    check(gather.launch(nccl, comm, on) == 0, "ncclAllGather");
    sleepMs(50);
    if (revoke) check(nccl.commRevoke(comm, 0) == 0, "ncclCommRevoke");
    check(nccl.commShrink(comm, &last, 1, &child, nullptr, revoke ? 0 : 1) == 0, "ncclCommShrink");
    CUDA(cudaStreamSynchronize(on));
    check(gather.launch(nccl, comm, on) == 5, "a gather on a revoked communicator is no invalid usage");
    nranks = last;
    const Gather among;
    check(among.launch(nccl, child, on) == 0, "ncclAllGather of those that are left");
    CUDA(cudaStreamSynchronize(on));
    check(among.right(), "the gather of those that are left is wrong");
    check(nccl.commDestroy(child) == 0, "ncclCommDestroy");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  check(nccl.commAbort(comm) == 0, "ncclCommAbort");
}
void shrunk(const Nccl& nccl) {
  shrunkAfter(nccl, false);
}
void revoked(const Nccl& nccl) {
  shrunkAfter(nccl, true);
}

// A rank's process ends with its communicator alive, when all is done: the others go on, and see no error.
void left(const Nccl& nccl) {
  ncclComm* comm = everyone(nccl);
  cudaStream_t on = stream();
  const Gather gather;
  check(gather.launch(nccl, comm, on) == 0, "ncclAllGather");
  CUDA(cudaStreamSynchronize(on));
  check(gather.right(), "the gather is wrong");
  MPI_Finalize();
  if (rank == 0) std::exit(0);
  int error = 0;
  for (int i = 0; i < 20 && error == 0; ++i, sleepMs(50)) nccl.asyncError(comm, &error);
  if (error != 0) std::fprintf(stderr, "rank %d: a process that ends is an error: %d\n", rank, error);
  std::exit(error != 0);
}

// Sizes about the limit, which the ranks may have been told differently.
void gathers(const Nccl& nccl) {
  ncclComm* comm = everyone(nccl);
  cudaStream_t on = stream();
  for (size_t bytes = 1; bytes <= size_t{1} << 19; bytes *= 4) {
    const Gather gather(bytes);
    check(gather.launch(nccl, comm, on) % 7 == 0, "ncclAllGather");
    CUDA(cudaStreamSynchronize(on));
    check(gather.right(), "a gather is wrong");
  }
  check(nccl.commDestroy(comm) == 0, "ncclCommDestroy");
}
void limits(const Nccl& nccl) {
  setenv("ULYSSES_NCCL_MAX_BYTES", rank == 0 ? "4K" : "256K", 1);
  gathers(nccl);
}

// Two communicators, the second one's ranks turned round, in one group; the first ends first.
void twins(const Nccl& nccl) {
  ncclComm *comm = everyone(nccl), *other = nullptr;
  check(nccl.groupStart() == 0, "ncclGroupStart");
  check(nccl.commSplit(comm, 0, rank, &other, nullptr) == 0, "ncclCommSplit");
  check(nccl.groupEnd() == 0, "ncclGroupEnd");
  cudaStream_t on = stream(), beside = stream();
  const Gather first, second, third;
  check(nccl.groupStart() == 0 && nccl.groupStart() == 0, "ncclGroupStart");
  check(first.launch(nccl, comm, on) == 0 && second.launch(nccl, other, beside) == 0, "ncclAllGather");
  check(nccl.groupEnd() == 0, "ncclGroupEnd of the inner group");
  check(nccl.groupEnd() == 0, "ncclGroupEnd");
  check(nccl.groupEnd() != 0, "there is a group that nobody began");
  CUDA(cudaStreamSynchronize(on));
  CUDA(cudaStreamSynchronize(beside));
  check(first.right() && second.right(), "a gather of two communicators is wrong");
  check(nccl.commDestroy(comm) == 0, "ncclCommDestroy");
  check(third.launch(nccl, other, on) == 0, "ncclAllGather");
  CUDA(cudaStreamSynchronize(on));
  check(third.right(), "the gather of a child without its parent is wrong");
  check(nccl.commDestroy(other) == 0, "ncclCommDestroy");
  check(nccl.commDestroy(other) != 0, "a communicator is destroyed twice");
}

// More communicators than the GPU has CTAs for, in another order on every rank, each on a stream of its own.
void crowd(const Nccl& nccl) {
  constexpr int kMany = 14;
  std::vector<ncclComm*> comms{everyone(nccl)};
  while (comms.size() < kMany) {
    comms.push_back(nullptr);
    check(nccl.commSplit(comms[0], 0, rank, &comms.back(), nullptr) == 0, "ncclCommSplit");
  }
  std::vector<std::unique_ptr<Gather>> gathers;
  std::vector<cudaStream_t> streams;
  for (int i = 0; i < kMany; ++i) {
    gathers.push_back(std::make_unique<Gather>(size_t{200} << 10));
    streams.push_back(stream());
  }
  for (int i = 0; i < kMany; ++i) {
    const size_t which = static_cast<size_t>(rank == 0 ? i : kMany - 1 - i);
    check(gathers[which]->launch(nccl, comms[which], streams[which]) == 0, "ncclAllGather");
  }
  for (size_t i = 0; i < kMany; ++i) {
    CUDA(cudaStreamSynchronize(streams[i]));
    check(gathers[i]->right(), "a gather in the crowd is wrong");
    check(nccl.commDestroy(comms[i]) == 0, "ncclCommDestroy");
  }
}

// A device whose memory is full has room for sizes that no call has had before, alone and in a group.
void full(const Nccl& nccl) {
  ncclComm* comm = everyone(nccl);
  cudaStream_t on = stream();
  const Gather alone(300), grouped(500);
  void* memory = nullptr;
  for (size_t bytes = size_t{1} << 40; bytes != 0; bytes /= 2)
    while (cudaMalloc(&memory, bytes) == cudaSuccess) {
    }
  (void)cudaGetLastError();
  check(alone.launch(nccl, comm, on) == 0, "ncclAllGather");
  check(nccl.groupStart() == 0, "ncclGroupStart");
  check(grouped.launch(nccl, comm, on) == 0, "ncclAllGather in a group");
  check(nccl.groupEnd() == 0, "ncclGroupEnd");
  CUDA(cudaStreamSynchronize(on));
  check(alone.right() && grouped.right(), "a gather is wrong");
  check(nccl.commDestroy(comm) == 0, "ncclCommDestroy");
}

// Ranks are threads of one process; of a child, all but the last.
void threads(const Nccl& nccl) {
  CUDA(cudaGetDeviceCount(&nranks));
  UniqueId id{};
  check(nccl.getUniqueId(&id) == 0, "ncclGetUniqueId");
  const auto live = [&](int me) {
    rank = me;
    CUDA(cudaSetDevice(me));
    ncclComm *comm = nullptr, *child = nullptr;
    check(nccl.commInitRank(&comm, nranks, id, me) == 0, "ncclCommInitRank");
    check(nccl.commSplit(comm, me + 1 < nranks ? 1 : -1, me, &child, nullptr) == 0, "ncclCommSplit");
    check((child == nullptr) == (me + 1 == nranks), "a split without a colour has made a communicator");
    cudaStream_t on = stream();
    for (int i = 0; i < 20; ++i) {
      const Gather gather(100 + static_cast<size_t>(i) * 50);
      check(gather.launch(nccl, comm, i % 2 == 0 ? on : nullptr) == 0, "ncclAllGather");
      CUDA(cudaDeviceSynchronize());
      check(gather.right(), "a gather of threads is wrong");
    }
    check(me % 2 != 0 || nccl.commDestroy(comm) == 0, "ncclCommDestroy");
    check(child == nullptr || nccl.commDestroy(child) == 0, "ncclCommDestroy");
    check(me % 2 == 0 || nccl.commDestroy(comm) == 0, "ncclCommDestroy");
  };
  std::vector<std::thread> all;
  for (int r = 0; r < nranks; ++r) all.emplace_back(live, r);
  for (std::thread& t : all) t.join();
}

// What is wrong with one call of a group is the group's error too.
void wrongCalls(const Nccl& nccl) {
  ncclComm* comm = everyone(nccl);
  cudaStream_t on = stream();
  const Gather gather;
  check(gather.launch(nccl, nullptr, on) != 0, "a gather without a communicator");
  check(nccl.allGather(gather.in, gather.out, 0, kUint8, comm, on) == 0, "a gather of nothing");
  check(nccl.allGather(nullptr, nullptr, 0, kUint8, comm, on) == 0, "a gather of nothing from nowhere");
  check(nccl.groupEnd() != 0, "there is a group that nobody began");
  CUDA(cudaStreamSynchronize(on));
  check(gather.launch(nccl, comm, on) == 0, "ncclAllGather");
  CUDA(cudaStreamSynchronize(on));
  check(gather.right(), "the gather after wrong ones is wrong");
  check(nccl.commDestroy(comm) == 0, "ncclCommDestroy");
}

}  // namespace

int main(int argc, char** argv) {
  char traces[] = "/tmp/lives-XXXXXX";  // programs that do nothing wrong leave none
  check(mkdtemp(traces) != nullptr && setenv("ULYSSES_DUMP_DIR", traces, 1) == 0, "a folder");
  begin(argc, argv);
  const Nccl nccl;
  const std::map<std::string, std::function<void(const Nccl&)>> cases = {
      {"finalized", finalized}, {"aborted", aborted}, {"left", left},        {"gathers", gathers},
      {"limits", limits},       {"twins", twins},     {"full", full},        {"together", abortedTogether},
      {"crowd", crowd},         {"shrunk", shrunk},       {"revoked", revoked}, {"wrong", wrongCalls}, {"threads", threads}};
  const auto found = cases.find(argc > 1 ? argv[1] : "");
  check(found != cases.end(), "there is no such case");
  found->second(nccl);
  const auto count = ::found<ulyssesResult_t(ncclComm*, ulyssesNcclCounters_t*)>("ulyssesNcclGetCounters");
  if (argc == 4 && std::strcmp(argv[2], "--taken") == 0) {
    ulyssesNcclCounters_t counters = ULYSSES_NCCL_COUNTERS_INITIALIZER;
    check(count != nullptr && count(nullptr, &counters) == ulyssesSuccess, "ulyssesNcclGetCounters");
    check(counters.allGathers == std::strtoull(argv[3], nullptr, 10),
          "taken: " + std::to_string(counters.allGathers) + " (" + counters.reason + ")");
  }
  check(rmdir(traces) == 0, std::string(traces) + " is not empty");
  MPI_Finalize();
  return 0;
}
