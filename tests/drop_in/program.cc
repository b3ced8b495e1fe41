// A program that speaks NCCL and knows nothing of Ulysses: run as it is, and with libulysses-nccl preloaded, it has to
// say the same. Ranks are MPI's processes, which are dealt the GPUs in turn.
//   program [--taken all-gathers all-to-alls]     what the preloaded library must have taken
// One rank alone drives all GPUs from one thread.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <ulysses/ulysses_nccl_drop_in.h>

#include "nccl.h"

namespace {

int wrong = 0;

unsigned char byteOf(int from, int to, size_t i, int salt) {
  return static_cast<unsigned char>(i * 131 + static_cast<size_t>(from) * 17 + static_cast<size_t>(to) * 59 +
                                    static_cast<size_t>(salt));
}

struct Buffer {
  explicit Buffer(size_t n) : bytes(n) { CUDA(cudaMalloc(&data, n)); }
  ~Buffer() { (void)cudaFree(data); }
  void write(const std::vector<unsigned char>& from, size_t at = 0) {
    CUDA(cudaMemcpy(static_cast<unsigned char*>(data) + at, from.data(), from.size(), cudaMemcpyHostToDevice));
  }
  std::vector<unsigned char> read() const {
    std::vector<unsigned char> to(bytes);
    CUDA(cudaMemcpy(to.data(), data, bytes, cudaMemcpyDeviceToHost));
    return to;
  }
  void* data = nullptr;
  size_t bytes;
};

std::vector<unsigned char> block(int from, int to, size_t bytes, int salt) {
  std::vector<unsigned char> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = byteOf(from, to, i, salt);
  return made;
}

// Ranks by their place in the communicator.
void expect(const Buffer& buffer, int P, int to, size_t bytes, int salt, const std::string& what) {
  const std::vector<unsigned char> got = buffer.read();
  bool right = true;
  for (int from = 0; from < P && right; ++from) {
    const std::vector<unsigned char> want = block(from, to, bytes, salt);
    right = std::memcmp(got.data() + static_cast<size_t>(from) * bytes, want.data(), bytes) == 0;
  }
  if (right) return;
  std::fprintf(stderr, "rank %d: wrong: %s\n", rank, what.c_str());
  ++wrong;
}

size_t elementBytes(int type) {
  return type == kUint8 ? 1 : type == kBfloat16 ? 2 : 4;
}

void gather(const Nccl& nccl, ncclComm* comm, int P, int me, size_t count, int type, bool inPlace, int salt,
            cudaStream_t stream) {
  const size_t bytes = count * elementBytes(type);
  Buffer in(bytes), out(bytes * static_cast<size_t>(P));
  if (inPlace)
    out.write(block(me, -1, bytes, salt), bytes * static_cast<size_t>(me));
  else
    in.write(block(me, -1, bytes, salt));
  const void* from = inPlace ? static_cast<unsigned char*>(out.data) + bytes * static_cast<size_t>(me) : in.data;
  check(nccl.allGather(from, out.data, count, type, comm, stream) == 0, "ncclAllGather");
  CUDA(cudaStreamSynchronize(stream));
  expect(out, P, -1, bytes, salt, "all-gather of " + std::to_string(bytes) + " bytes" + (inPlace ? " in place" : ""));
}

void writeAll(Buffer& in, int P, int me, size_t bytes, int salt) {
  for (int to = 0; to < P; ++to) in.write(block(me, to, bytes, salt), bytes * static_cast<size_t>(to));
}

void exchange(const Nccl& nccl, ncclComm* comm, int P, int me, size_t count, int type, int salt, cudaStream_t stream) {
  const size_t bytes = count * elementBytes(type);
  Buffer in(bytes * static_cast<size_t>(P)), out(bytes * static_cast<size_t>(P));
  writeAll(in, P, me, bytes, salt);
  check(nccl.alltoAll(in.data, out.data, count, type, comm, stream) == 0, "ncclAlltoAll");
  CUDA(cudaStreamSynchronize(stream));
  expect(out, P, me, bytes, salt, "all-to-all of " + std::to_string(bytes) + " bytes");
}

// Messages round the ring, and a gather that does not wait for them.
void mixedGroup(const Nccl& nccl, ncclComm* comm, cudaStream_t stream) {
  constexpr size_t kBytes = 5000;
  const int next = (rank + 1) % nranks, before = (rank + nranks - 1) % nranks;
  Buffer sent(kBytes), received(kBytes), in(kBytes), out(kBytes * static_cast<size_t>(nranks));
  sent.write(block(rank, next, kBytes, 3));
  in.write(block(rank, -1, kBytes, 4));
  check(nccl.groupStart() == 0, "ncclGroupStart");
  check(nccl.send(sent.data, kBytes, kUint8, next, comm, stream) == 0, "ncclSend");
  check(nccl.recv(received.data, kBytes, kUint8, before, comm, stream) == 0, "ncclRecv");
  check(nccl.allGather(in.data, out.data, kBytes, kUint8, comm, stream) == 0, "ncclAllGather in a group");
  check(nccl.groupEnd() == 0, "ncclGroupEnd");
  CUDA(cudaStreamSynchronize(stream));
  expect(out, nranks, -1, kBytes, 4, "all-gather in a group");
  if (received.read() != block(before, rank, kBytes, 3)) {
    std::fprintf(stderr, "rank %d: wrong: a message round the ring\n", rank);
    ++wrong;
  }
}

void graph(const Nccl& nccl, ncclComm* comm, size_t bytes, cudaStream_t stream) {
  Buffer in(bytes * static_cast<size_t>(nranks)), out(bytes * static_cast<size_t>(nranks));
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  check(nccl.alltoAll(in.data, out.data, bytes, kUint8, comm, stream) == 0, "ncclAlltoAll under capture");
  CUDA(cudaStreamEndCapture(stream, &recorded));
  CUDA(cudaGraphInstantiate(&exec, recorded, 0));
  for (int replay = 0; replay < 4; ++replay) {
    writeAll(in, nranks, rank, bytes, 20 + replay);
    CUDA(cudaGraphLaunch(exec, stream));
    gather(nccl, comm, nranks, rank, 777, kUint8, false, 30 + replay, stream);  // beside it, eagerly
    CUDA(cudaStreamSynchronize(stream));
    expect(out, nranks, rank, bytes, 20 + replay, "replay of an all-to-all");
  }
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(recorded));
}

// One thread drives all GPUs, by groups. Returns what was taken of one rank.
ulyssesNcclCounters_t driveAll(const Nccl& nccl, int P) {
  constexpr size_t kBytes = 12000;
  const auto n = static_cast<size_t>(P);
  std::vector<ncclComm*> comms(n);
  check(nccl.commInitAll(comms.data(), P, nullptr) == 0, "ncclCommInitAll");
  std::vector<cudaStream_t> streams(n);
  std::vector<std::unique_ptr<Buffer>> in, out;
  for (int r = 0; r < P; ++r) {
    CUDA(cudaSetDevice(r));
    CUDA(cudaStreamCreateWithFlags(&streams[static_cast<size_t>(r)], cudaStreamNonBlocking));
    in.push_back(std::make_unique<Buffer>(kBytes * n));
    out.push_back(std::make_unique<Buffer>(kBytes * n));
  }
  for (int round = 0; round < 3; ++round) {
    for (int r = 0; r < P; ++r) {
      CUDA(cudaSetDevice(r));
      writeAll(*in[static_cast<size_t>(r)], P, r, kBytes, round);
    }
    check(nccl.groupStart() == 0, "ncclGroupStart");
    for (size_t r = 0; r < n; ++r)
      check(nccl.alltoAll(in[r]->data, out[r]->data, kBytes, kUint8, comms[r], streams[r]) == 0, "ncclAlltoAll of all");
    check(nccl.groupEnd() == 0, "ncclGroupEnd");
    for (int r = 0; r < P; ++r) {
      CUDA(cudaSetDevice(r));
      CUDA(cudaStreamSynchronize(streams[static_cast<size_t>(r)]));
      expect(*out[static_cast<size_t>(r)], P, r, kBytes, round, "all-to-all by one thread");
    }
  }
  ulyssesNcclCounters_t counters = ULYSSES_NCCL_COUNTERS_INITIALIZER;
  const auto count = found<ulyssesResult_t(ncclComm*, ulyssesNcclCounters_t*)>("ulyssesNcclGetCounters");
  if (count != nullptr) check(count(comms[0], &counters) == ulyssesSuccess, "ulyssesNcclGetCounters");
  for (ncclComm* comm : comms) check(nccl.commDestroy(comm) == 0, "ncclCommDestroy");
  return counters;
}

void compareTaken(const ulyssesNcclCounters_t& counters, char** expected) {
  if (counters.allGathers == std::strtoull(expected[0], nullptr, 10) &&
      counters.alltoalls == std::strtoull(expected[1], nullptr, 10))
    return;
  std::fprintf(stderr, "rank %d: taken: %llu all-gathers, %llu all-to-alls, %llu passed (%s)\n", rank,
               static_cast<unsigned long long>(counters.allGathers),
               static_cast<unsigned long long>(counters.alltoalls), static_cast<unsigned long long>(counters.passed),
               counters.reason);
  ++wrong;
}

}  // namespace

int main(int argc, char** argv) {
  const int devices = begin(argc, argv);
  const Nccl nccl;
  cudaStream_t stream = nullptr;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  char** const taken = argc == 4 && std::strcmp(argv[1], "--taken") == 0 ? argv + 2 : nullptr;
  if (nranks == 1) {
    const ulyssesNcclCounters_t counters = driveAll(nccl, devices);
    if (taken != nullptr) compareTaken(counters, taken);
    std::printf("one thread, %d GPUs: %s\n", devices, wrong == 0 ? "all exact" : "WRONG");
    MPI_Finalize();
    return wrong == 0 ? 0 : 1;
  }

  int version = 0;
  check(nccl.getVersion(&version) == 0, "ncclGetVersion");
  if (devices < nranks && version < 23000) {
    if (rank == 0) std::printf("SKIPPED: ranks share a GPU, and NCCL is older than 2.30\n");
    MPI_Finalize();
    return 4;
  }
  UniqueId id{};
  if (rank == 0) check(nccl.getUniqueId(&id) == 0, "ncclGetUniqueId");
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm* comm = nullptr;
  check(nccl.commInitRank(&comm, nranks, id, rank) == 0, "ncclCommInitRank");

  for (int round = 0; round < 3; ++round) {
    gather(nccl, comm, nranks, rank, 1, kUint8, false, round, stream);
    gather(nccl, comm, nranks, rank, 7168, kFloat32, round == 1, round, stream);
    gather(nccl, comm, nranks, rank, 100001, kBfloat16, round == 2, round, stream);
    gather(nccl, comm, nranks, rank, 3 << 20, kUint8, false, round, stream);  // more than is taken
    if (nccl.alltoAll == nullptr) continue;
    exchange(nccl, comm, nranks, rank, 3, kBfloat16, round, stream);
    exchange(nccl, comm, nranks, rank, 28672 / static_cast<size_t>(nranks), kUint8, round, stream);
    exchange(nccl, comm, nranks, rank, 25001, kFloat32, round, stream);
  }
  mixedGroup(nccl, comm, stream);
  if (nccl.alltoAll != nullptr) {
    graph(nccl, comm, 28672 / static_cast<size_t>(nranks), stream);
    graph(nccl, comm, 120000, stream);  // a size that no call has had before
  }

  if (nccl.commSplit != nullptr && nranks > 2) {  // the last rank stays outside, the others turn round
    ncclComm* child = nullptr;
    const int color = rank + 1 < nranks ? 0 : -1;
    check(nccl.commSplit(comm, color, -rank, &child, nullptr) == 0, "ncclCommSplit");
    if (color == 0) {
      int size = 0, place = -1;
      check(nccl.commCount(child, &size) == 0 && nccl.commUserRank(child, &place) == 0, "the child's ranks");
      check(size == nranks - 1 && place == size - 1 - rank, "the child's order");
      gather(nccl, child, size, place, 4096, kFloat32, false, 9, stream);
      check(nccl.commDestroy(child) == 0, "ncclCommDestroy of the child");
    }
  }

  int error = -1;
  check(nccl.asyncError(comm, &error) == 0 && error == 0, "ncclCommGetAsyncError");
  ulyssesNcclCounters_t counters = ULYSSES_NCCL_COUNTERS_INITIALIZER;
  const auto count = found<ulyssesResult_t(ncclComm*, ulyssesNcclCounters_t*)>("ulyssesNcclGetCounters");
  if (count != nullptr) check(count(comm, &counters) == ulyssesSuccess, "ulyssesNcclGetCounters");
  if (taken != nullptr) compareTaken(counters, taken);
  check(nccl.commDestroy(comm) == 0, "ncclCommDestroy");
  int all = 0;
  MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%d ranks: %s\n", nranks, all == 0 ? "all exact" : "WRONG");
  MPI_Finalize();
  return all == 0 ? 0 : 1;
}
