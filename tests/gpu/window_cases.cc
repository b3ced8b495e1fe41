// Windows over the caller's own device memory.
#include <fcntl.h>
#include <sys/resource.h>

#include "base/test_hooks.h"
#include "gpu/support/device_ranks.h"
#include "support/catch.h"
#include "window/ipc.h"

namespace ulysses::testing {
namespace {

constexpr Shape kShape{1, 4800, 8, 32, 2};  // staged where it is not direct

// Where a caller may have its memory from, with room for the shape's output at a multiple of the element.
struct CallerMemory {
  std::shared_ptr<DeviceMemory> vmm;
  std::unique_ptr<DeviceTensor> plain;
  unsigned char* data = nullptr;

  CallerMemory(bool exportable, size_t bytes, size_t offset) {
    if (!exportable) {
      plain = std::make_unique<DeviceTensor>(bytes + offset);
      data = plain->data() + offset;
      return;
    }
    int device = 0;
    auto made = cudaGetDevice(&device) == cudaSuccess ? DeviceMemory::create(bytes + offset, device)
                                                      : Status(ulyssesUnhandledCudaError, "no device");
    if (!made.ok()) return;
    vmm = made.take();
    data = reinterpret_cast<unsigned char*>(vmm->data()) + offset;
  }
};

std::string exactInto(unsigned char* out, int P, int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting, uint64_t salt) {
  DeviceTensor in(sequenceSide(kShape, P, rank, salt));
  const std::vector<unsigned char> expected = headSide(kShape, P, rank, salt);
  EXPECT_RANK(cudaMemset(out, 0xEE, expected.size()) == cudaSuccess);
  settle(meeting);
  EXPECT_OK(exchange(kShape, in.data(), out, ulyssesScatterHeads, comm, stream));
  EXPECT_RANK(finish(stream, meeting));
  std::vector<unsigned char> got(expected.size());
  EXPECT_RANK(cudaMemcpy(got.data(), out, got.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  EXPECT_RANK(got == expected);
  meeting.wait();
  return "";
}

}  // namespace

TEST_CASE("windows over the caller's memory: peers write it, whatever it comes from and wherever it lies", "[gpu][windows]") {
  NEEDS_GPU;
  for (const As as : {As::Threads, As::Processes})
    for (const int P : rankCounts({2, 3}))
      for (const bool exportable : {false, true}) {
        INFO((as == As::Threads ? "threads" : "processes") << " P=" << P << (exportable ? " cuMemCreate" : " cudaMalloc"));
        CHECK(onDevice(as, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                const size_t bytes = headSide(kShape, P, rank).size();
                for (const size_t offset : {size_t{0}, 512 + 2 * static_cast<size_t>(rank)}) {
                  CallerMemory memory(exportable, bytes, offset);
                  EXPECT_RANK(memory.data != nullptr);
                  const size_t before = infoOf(comm).windowBytes;
                  ulyssesWindow_t window = nullptr;
                  EXPECT_OK(ulyssesWindowRegister(comm, memory.data, bytes, &window));
                  EXPECT_RANK(window != nullptr && infoOf(comm).windowBytes == before + bytes);
                  std::string text = exactInto(memory.data, P, rank, comm, stream, meeting, 7);
                  if (!text.empty()) return text;
                  EXPECT_RANK(std::string(infoOf(comm).lastPath) == "direct");
                  EXPECT_RANK(ulyssesMemFree(memory.data, comm) == ulyssesInvalidArgument);
                  EXPECT_OK(ulyssesWindowDeregister(comm, window));
                  meeting.wait();
                  // The same memory, no window any more: staged, and as exact.
                  text = exactInto(memory.data, P, rank, comm, stream, meeting, 8);
                  if (!text.empty()) return text;
                  EXPECT_RANK(std::string(infoOf(comm).lastPath) == "staged");
                  // Peers unmap in the next call that allocates; then the memory may go.
                  void* next = nullptr;
                  EXPECT_OK(ulyssesMemAlloc(&next, 64, comm));
                  EXPECT_OK(ulyssesMemFree(next, comm));
                  meeting.wait();
                }
                EXPECT_RANK(cudaGetLastError() == cudaSuccess);
                return "";
              }) == "");
      }
}

TEST_CASE("windows over the caller's memory: numbers and bytes come back, ranks may differ in what they bring", "[gpu][windows]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          const size_t bytes = headSide(kShape, 2, rank).size();
          CallerMemory memory(false, bytes, 0);
          std::string text = exactInto(memory.data, 2, rank, comm, stream, meeting, 1);
          const size_t before = infoOf(comm).windowBytes;
          for (uint64_t i = 0; i < 20 && text.empty(); ++i) {
            ulyssesWindow_t window = nullptr;
            const bool none = i % 4 == 3 && rank == 1;
            EXPECT_OK(ulyssesWindowRegister(comm, none ? nullptr : memory.data, none ? 0 : bytes, &window));
            text = exactInto(memory.data, 2, rank, comm, stream, meeting, i);
            EXPECT_OK(ulyssesWindowDeregister(comm, window));
            EXPECT_RANK(infoOf(comm).windowBytes == before);
            meeting.wait();
          }
          return text;
        }) == "");
}

TEST_CASE("windows over the caller's memory: what is wrong on one rank is everybody's result, and leaves nothing", "[gpu][windows]") {
  NEEDS_GPU;
  ulyssesConfig_t config = deviceConfig();
  config.windowCapBytes = size_t{64} << 20;
  for (const As as : {As::Threads, As::Processes})
    CHECK(onDevice(as, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
            const size_t bytes = headSide(kShape, 2, rank).size();
            CallerMemory memory(false, bytes, 0), large(false, config.windowCapBytes + 4096, 0);
            std::string text = exactInto(memory.data, 2, rank, comm, stream, meeting, 1);
            if (!text.empty()) return text;
            const size_t before = infoOf(comm).windowBytes;
            ulyssesWindow_t window = nullptr;
            const auto refused = [&](void* buff, size_t n, ulyssesResult_t code, const char* says) -> std::string {
              const ulyssesResult_t result = rank == 1 ? ulyssesWindowRegister(comm, buff, n, &window)
                                                       : ulyssesWindowRegister(comm, memory.data, bytes, &window);
              EXPECT_RANK(result == code && window == nullptr);
              EXPECT_RANK(lastErrorSays("rank 1") && lastErrorSays(says));
              EXPECT_RANK(infoOf(comm).windowBytes == before && cudaGetLastError() == cudaSuccess);
              return "";
            };
            std::vector<unsigned char> host(4096);
            void *pinned = nullptr, *managed = nullptr, *pooled = nullptr, *allocated = nullptr;
            EXPECT_RANK(cudaMallocHost(&pinned, 4096) == cudaSuccess && cudaMallocManaged(&managed, 4096) == cudaSuccess);
            EXPECT_RANK(cudaMallocAsync(&pooled, 4096, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess);
            for (void* buff : {static_cast<void*>(host.data()), pinned, managed, pooled}) {
              text = refused(buff, 4096, ulyssesNotSupported, "");
              if (!text.empty()) return text;
            }
            text = refused(nullptr, 16, ulyssesInvalidArgument, "NULL");
            if (text.empty()) text = refused(large.data, config.windowCapBytes + 4096, ulyssesOutOfMemory, "67108864");
            if (!text.empty()) return text;
            for (const auto stage : {hooks::Stage::Allocate, hooks::Stage::Open}) {
              if (rank == 1) hooks::plantFailure(stage, Status(ulyssesSystemError, "planted"));
              text = refused(memory.data, bytes, ulyssesSystemError, "planted");
              if (!text.empty()) return text;
            }
            // No memory lies in two windows, be they of MemAlloc.
            EXPECT_OK(ulyssesMemAlloc(&allocated, 4096, comm));
            EXPECT_RANK(ulyssesWindowRegister(comm, allocated, 64, &window) == ulyssesInvalidArgument);
            EXPECT_OK(ulyssesMemFree(allocated, comm));
            EXPECT_OK(ulyssesWindowRegister(comm, memory.data, bytes, &window));
            ulyssesWindow_t again = nullptr;
            EXPECT_RANK(ulyssesWindowRegister(comm, memory.data + 8, 8, &again) == ulyssesInvalidArgument && again == nullptr);
            // Another communicator's window is not this one's.
            ulyssesComm_t other = nullptr;
            EXPECT_OK(ulyssesCommSplit(comm, 0, rank, &other, nullptr));
            EXPECT_RANK(ulyssesWindowDeregister(other, window) == ulyssesInvalidArgument);
            EXPECT_OK(ulyssesCommDestroy(other));
            text = exactInto(memory.data, 2, rank, comm, stream, meeting, 3);
            EXPECT_OK(ulyssesWindowDeregister(comm, window));
            EXPECT_OK(ulyssesWindowDeregister(comm, nullptr));
            cudaFreeHost(pinned);
            cudaFree(managed);
            cudaFreeAsync(pooled, stream);
            return text;
          }, config) == "");
}

#ifdef ULYSSES_EMULATED  // what a driver makes of it is not known
TEST_CASE("windows that one rank has too few descriptors for are had by none, and the next one is", "[gpu][windows]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Processes, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          const size_t bytes = headSide(kShape, 2, rank).size(), before = infoOf(comm).windowBytes;
          int failed = 0;
          for (int left = 0; left < 8; ++left) {
            rlimit limit{};
            EXPECT_RANK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
            const rlim_t whole = limit.rlim_cur;
            if (rank == 1) {
              int free = 0, fd = 0;
              for (; free < left || fcntl(fd, F_GETFD) >= 0; ++fd) free += fcntl(fd, F_GETFD) < 0;
              limit.rlim_cur = static_cast<rlim_t>(fd);
              EXPECT_RANK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
            }
            void* window = nullptr;
            const ulyssesResult_t result = ulyssesMemAlloc(&window, bytes, comm);
            limit.rlim_cur = whole;
            EXPECT_RANK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
            failed += result != ulyssesSuccess;
            EXPECT_RANK(result == ulyssesSuccess || (window == nullptr && lastErrorSays("rank 1")));
            EXPECT_OK(ulyssesMemFree(window, comm));
            EXPECT_RANK(infoOf(comm).windowBytes == before);
          }
          EXPECT_RANK(failed < 8);
          void* window = nullptr;
          EXPECT_OK(ulyssesMemAlloc(&window, bytes, comm));
          std::string text = exactInto(static_cast<unsigned char*>(window), 2, rank, comm, stream, meeting, 1);
          EXPECT_OK(ulyssesMemFree(window, comm));
          return text;
        }, deviceConfig()) == "");
}
#endif

TEST_CASE("memory that a launched exchange may still use is not given back", "[gpu][windows]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          const size_t bytes = headSide(kShape, 2, rank).size();
          CallerMemory memory(false, bytes, 0);
          DeviceTensor in(sequenceSide(kShape, 2, rank)), plain(bytes), back(in.content().size());
          ulyssesWindow_t window = nullptr, input = nullptr, idle = nullptr;
          void* allocated = nullptr;
          EXPECT_OK(ulyssesWindowRegister(comm, memory.data, bytes, &window));
          EXPECT_OK(ulyssesWindowRegister(comm, in.data(), in.content().size(), &input));
          EXPECT_OK(ulyssesWindowRegister(comm, back.data(), 64, &idle));
          EXPECT_OK(ulyssesMemAlloc(&allocated, bytes, comm));
          PlanPair plans;
          EXPECT_OK(plans.make(descOf(kShape), comm));
          settle(meeting);
          const auto launchAll = [&]() -> std::string {
            EXPECT_OK(execute(plans.plan, in.data(), memory.data, stream));
            EXPECT_OK(execute(plans.plan, in.data(), allocated, stream));
            // Enough behind them that they are no longer among the last: nothing is over, and all are known to be in use.
            for (int i = 0; i < 40; ++i) EXPECT_OK(execute(plans.plan, in.data(), plain.data(), stream));
            return "";
          };
          std::string text = rank == 0 ? launchAll() : "";
          if (rank == 0 && text.empty()) {  // rank 1 has not launched: nothing of it can be over
            EXPECT_RANK(ulyssesWindowDeregister(comm, window) == ulyssesInvalidUsage && lastErrorSays("wait for its stream"));
            EXPECT_RANK(ulyssesWindowDeregister(comm, input) == ulyssesInvalidUsage);
            EXPECT_RANK(ulyssesMemFree(allocated, comm) == ulyssesInvalidUsage);
            EXPECT_OK(ulyssesWindowDeregister(comm, idle));
          }
          meeting.wait();
          if (rank == 1) text = launchAll();
          EXPECT_RANK(finish(stream, meeting) && text.empty());
          std::vector<unsigned char> got(bytes);
          EXPECT_RANK(cudaMemcpy(got.data(), memory.data, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
          EXPECT_RANK(got == headSide(kShape, 2, rank));
          if (rank == 1) EXPECT_OK(ulyssesWindowDeregister(comm, idle));
          EXPECT_OK(ulyssesWindowDeregister(comm, window));
          EXPECT_OK(ulyssesWindowDeregister(comm, input));
          EXPECT_OK(ulyssesMemFree(allocated, comm));
          meeting.wait();
          return "";
        }) == "");
}

}  // namespace ulysses::testing
