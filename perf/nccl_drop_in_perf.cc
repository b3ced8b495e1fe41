// What libulysses-nccl gives an NCCL program: graphs of ncclAlltoAll and ncclAllGather as the program has them, in
// turns with the same graphs of NCCL's own, found past the preloaded library. One JSON line for each size.
//   LD_PRELOAD=libulysses-nccl.so mpirun -n 2 nccl_drop_in_perf [BYTES PER RANK ...]
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <ulysses/ulysses_nccl_drop_in.h>

struct ncclComm;

namespace {

struct UniqueId {
  char internal[128];
};

int rank = 0, nranks = 0;

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "rank %d: failed: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 2);
}
#define CHECK(call) check((call) == 0, #call)
#define CUDA(call) check((call) == cudaSuccess, #call)

template <class Function>
Function* found(void* library, const char* name) {
  auto* function = reinterpret_cast<Function*>(dlsym(library, name));
  check(function != nullptr, name);
  return function;
}
using Collective = int(const void*, void*, size_t, int, ncclComm*, cudaStream_t);

constexpr int kUint8 = 1, kCallsInGraph = 20, kRounds = 41, kReplays = 5;

struct Recorded {
  cudaGraphExec_t exec = nullptr;
  std::vector<double> us;
};

Recorded record(Collective* call, const void* in, void* out, size_t count, ncclComm* comm, cudaStream_t stream) {
  CHECK(call(in, out, count, kUint8, comm, stream));  // connections are made at the first
  CUDA(cudaStreamSynchronize(stream));
  cudaGraph_t graph = nullptr;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kCallsInGraph; ++i) CHECK(call(in, out, count, kUint8, comm, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  Recorded r;
  CUDA(cudaGraphInstantiate(&r.exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  return r;
}

// Of one call, by the slowest rank.
double measure(const Recorded& r, cudaEvent_t begin, cudaEvent_t end, cudaStream_t stream) {
  MPI_Barrier(MPI_COMM_WORLD);
  CUDA(cudaEventRecord(begin, stream));
  for (int i = 0; i < kReplays; ++i) CUDA(cudaGraphLaunch(r.exec, stream));
  CUDA(cudaEventRecord(end, stream));
  CUDA(cudaStreamSynchronize(stream));
  float ms = 0;
  CUDA(cudaEventElapsedTime(&ms, begin, end));
  double mine = 1e3 * static_cast<double>(ms) / (kReplays * kCallsInGraph), slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  void* const nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  check(nccl != nullptr, "there is no libnccl.so.2");
  int devices = 0, version = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(rank % devices));
  cudaStream_t stream = nullptr;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t begin = nullptr, end = nullptr;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  CHECK(found<int(int*)>(nccl, "ncclGetVersion")(&version));
  if (devices < nranks && version < 23000) {
    if (rank == 0) std::printf("SKIPPED: ranks share a GPU, and NCCL is older than 2.30\n");
    MPI_Finalize();
    return 4;
  }
  UniqueId id{};
  if (rank == 0) CHECK(found<int(UniqueId*)>(nccl, "ncclGetUniqueId")(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm* comm = nullptr;
  CHECK(found<int(ncclComm**, int, UniqueId, int)>(RTLD_DEFAULT, "ncclCommInitRank")(&comm, nranks, id, rank));

  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {4096, 28672, 65536, 262144, 1 << 20};
  const auto countersOf =
      reinterpret_cast<decltype(&ulyssesNcclGetCounters)>(dlsym(RTLD_DEFAULT, "ulyssesNcclGetCounters"));
  for (const char* name : {"ncclAlltoAll", "ncclAllGather"}) {
    const bool gather = std::string(name) == "ncclAllGather";
    for (const size_t bytes : sizes) {
      const size_t count = bytes / static_cast<size_t>(nranks);
      void *in = nullptr, *out = nullptr;
      CUDA(cudaMalloc(&in, bytes));
      CUDA(cudaMalloc(&out, bytes));
      ulyssesNcclCounters_t before = ULYSSES_NCCL_COUNTERS_INITIALIZER, after = before;
      if (countersOf != nullptr) (void)countersOf(comm, &before);
      Recorded preloaded = record(found<Collective>(RTLD_DEFAULT, name), in, out, count, comm, stream);
      if (countersOf != nullptr) (void)countersOf(comm, &after);
      Recorded own = record(found<Collective>(nccl, name), in, out, count, comm, stream);
      for (Recorded* r : {&preloaded, &own}) (void)measure(*r, begin, end, stream);
      std::vector<double> ratios;
      for (int round = 0; round < kRounds; ++round) {
        for (Recorded* r : {&preloaded, &own}) r->us.push_back(measure(*r, begin, end, stream));
        ratios.push_back(own.us.back() / preloaded.us.back());
      }
      const auto taken = after.allGathers + after.alltoalls - before.allGathers - before.alltoalls;
      if (rank == 0)
        std::printf(
            "{\"what\": \"drop-in\", \"call\": \"%s\", \"ranks\": %d, \"gpus\": %d, \"nccl\": %d, \"bytes_per_rank\": "
            "%zu, "
            "\"taken\": %s, \"preloaded_us\": %.2f, \"nccl_us\": %.2f, \"speed\": %.3f}\n",
            gather ? "ncclAllGather" : "ncclAlltoAll", nranks, std::min(devices, nranks), version, bytes,
            taken == kCallsInGraph + 1 ? "true" : "false", median(preloaded.us), median(own.us), median(ratios));
      std::fflush(stdout);
      for (Recorded* r : {&preloaded, &own}) CUDA(cudaGraphExecDestroy(r->exec));
      CUDA(cudaFree(in));
      CUDA(cudaFree(out));
    }
  }
  CHECK(found<int(ncclComm*)>(RTLD_DEFAULT, "ncclCommDestroy")(comm));
  MPI_Finalize();
  return 0;
}
