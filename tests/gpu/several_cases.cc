// Ranks with GPUs of their own: which ones they have, however they are shown to them, and what is between them.
#include <sstream>

#include "gpu/support/device_ranks.h"
#include "support/catch.h"
#include "support/rendezvous_process.h"
#include "topology/nccl_library.h"

namespace ulysses::testing {
namespace {

constexpr Shape kSmall{2, 4, 4, 3, 4};
constexpr Shape kStaged{2, 900, 8, 31, 4};

// The GPUs as CUDA_VISIBLE_DEVICES names them here.
std::vector<std::string> namesOfGpus() {
  std::vector<std::string> names;
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    std::istringstream list(visible);
    for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  } else {
    for (int i = 0; i < gpus(); ++i) names.push_back(std::to_string(i));
  }
  return names;
}

// Two ranks as processes that are shown what `visible` says and take device `device` of it. Their texts.
std::string shown(const std::vector<std::string>& visible, int device,
                  const std::function<std::string(int, ulyssesResult_t, ulyssesComm_t)>& body) {
  const RendezvousProcess rendezvous;
  return failures(runRanks(As::Processes, 2, [&](int rank) -> std::string {
    setenv("CUDA_VISIBLE_DEVICES", visible[static_cast<size_t>(rank)].c_str(), 1);
    EXPECT_RANK(visible[static_cast<size_t>(rank)].empty() || cudaSetDevice(device) == cudaSuccess);
    const ulyssesConfig_t config = deviceConfig();
    ulyssesComm_t comm = nullptr;
    const ulyssesResult_t made = ulyssesCommInitRankConfig(&comm, 2, rendezvous.id(), rank, &config);
    std::string text = body(rank, made, comm);
    EXPECT_OK(ulyssesCommDestroy(comm));
    return text;
  }));
}

// Small, staged and into a window, there and back.
std::string exchangesAll(int rank, ulyssesComm_t comm) {
  Meeting meeting(As::Processes, 2);
  cudaStream_t stream = nullptr;
  EXPECT_RANK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  for (const Shape& t : {kSmall, kStaged}) {
    const std::string text = roundTrip(t, 2, rank, comm, stream, meeting);
    if (!text.empty()) return text;
  }
  const std::vector<unsigned char> expected = headSide(kStaged, 2, rank);
  DeviceTensor in(sequenceSide(kStaged, 2, rank));
  void* window = nullptr;
  EXPECT_OK(ulyssesMemAlloc(&window, expected.size(), comm));
  EXPECT_OK(exchange(kStaged, in.data(), window, ulyssesScatterHeads, comm, stream));
  EXPECT_RANK(std::string(infoOf(comm).lastPath) == "direct" && cudaStreamSynchronize(stream) == cudaSuccess);
  std::vector<unsigned char> got(expected.size());
  EXPECT_RANK(cudaMemcpy(got.data(), window, got.size(), cudaMemcpyDeviceToHost) == cudaSuccess && got == expected);
  EXPECT_OK(ulyssesMemFree(window, comm));
  cudaStreamDestroy(stream);
  return "";
}

}  // namespace

TEST_CASE("ranks with GPUs of their own: the communicator knows, and every shape goes there and back",
          "[gpu][several]") {
  NEEDS_GPUS(2);
  for (const As as : {As::Threads, As::Processes})
    for (const int P : rankCounts({2})) {
      INFO("P=" << P << (as == As::Threads ? " threads" : " processes"));
      CHECK(onDevice(as, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
              const ulyssesCommInfo_t info = infoOf(comm);
              EXPECT_RANK(info.memory == ulyssesMemoryCuda && info.ranksPerDevice == 1 && info.lsa == 1 &&
                          info.singleHost == 1);
              int device = -1;
              EXPECT_OK(ulyssesCommCuDevice(comm, &device));
              EXPECT_RANK(device == deviceOf(rank));
              for (const Shape& t : {kSmall, kStaged, Shape{1, 5003, 11, 64, 2}}) {
                const std::string text = roundTrip(t, P, rank, comm, stream, meeting);
                if (!text.empty()) return text;
              }
              return "";
            }) == "");
    }
}

TEST_CASE("case 13 on device memory: each rank is shown its own GPU, both in opposite order, or one and the same",
          "[gpu][several]") {
  NEEDS_GPUS(2);
  const std::string a = namesOfGpus()[0], b = namesOfGpus()[1];
  struct Variant {
    std::vector<std::string> visible;
    int device, ranksPerDevice;
  };
  for (const Variant& v :
       {Variant{{a, b}, 0, 1}, Variant{{a + "," + b, b + "," + a}, 0, 1}, Variant{{a + "," + b, b + "," + a}, 1, 1},
        Variant{{a, a}, 0, 2}, Variant{{a + "," + b, a}, 0, 2}}) {
    INFO(v.visible[0] << " and " << v.visible[1] << ", device " << v.device);
    CHECK(shown(v.visible, v.device, [&](int rank, ulyssesResult_t made, ulyssesComm_t comm) -> std::string {
            EXPECT_OK(made);
            EXPECT_RANK(infoOf(comm).ranksPerDevice == v.ranksPerDevice && infoOf(comm).lsa == 1);
            return exchangesAll(rank, comm);
          }) == "");
  }
}

TEST_CASE("case 13 on device memory: a rank that is shown no GPU is everybody's error, by name", "[gpu][several]") {
  NEEDS_GPUS(2);
  CHECK(shown({namesOfGpus()[0], ""}, 0, [](int, ulyssesResult_t made, ulyssesComm_t) -> std::string {
          EXPECT_RANK(made == ulyssesInvalidUsage && lastErrorSays("rank 1"));
          return "";
        }) == "");
}

TEST_CASE("one thread drives the GPUs of all ranks, dealt in opposite order, by groups", "[gpu][several]") {
  NEEDS_GPUS(2);
  for (const int P : rankCounts({2})) {
    INFO("P=" << P);
    CHECK(inChild([P]() -> std::string {
            std::vector<int> devices;
            for (int r = P - 1; r >= 0; --r) devices.push_back(deviceOf(r));
            std::vector<ulyssesComm_t> comms(devices.size());
            const ulyssesConfig_t config = deviceConfig();
            EXPECT_RANK(cudaSetDevice(devices[1]) == cudaSuccess);
            EXPECT_OK(ulyssesCommInitAllConfig(comms.data(), P, devices.data(), &config));
            int current = -1;
            EXPECT_RANK(cudaGetDevice(&current) == cudaSuccess && current == devices[1]);
            struct Mine {
              std::unique_ptr<DeviceTensor> in, out, back;
              cudaStream_t stream = nullptr;
            };
            std::vector<Mine> all(devices.size());
            for (int r = 0; r < P; ++r) {
              Mine& m = all[static_cast<size_t>(r)];
              int device = -1;
              EXPECT_OK(ulyssesCommCuDevice(comms[static_cast<size_t>(r)], &device));
              EXPECT_RANK(device == devices[static_cast<size_t>(r)] && cudaSetDevice(device) == cudaSuccess);
              m.in = std::make_unique<DeviceTensor>(sequenceSide(kStaged, P, r));
              m.out = std::make_unique<DeviceTensor>(headSide(kStaged, P, r).size());
              m.back = std::make_unique<DeviceTensor>(sequenceSide(kStaged, P, r).size());
              EXPECT_RANK(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking) == cudaSuccess);
              EXPECT_RANK(cudaDeviceSynchronize() == cudaSuccess);
            }
            EXPECT_RANK(cudaSetDevice(devices[0]) == cudaSuccess);  // the same for all calls: it is not theirs
            EXPECT_OK(ulyssesGroupStart());
            for (size_t r = 0; r < all.size(); ++r)
              EXPECT_OK(exchange(kStaged, all[r].in->data(), all[r].out->data(), ulyssesScatterHeads, comms[r],
                                 all[r].stream));
            for (size_t r = 0; r < all.size(); ++r)
              EXPECT_OK(exchange(kStaged, all[r].out->data(), all[r].back->data(), ulyssesGatherHeads, comms[r],
                                 all[r].stream));
            EXPECT_OK(ulyssesGroupEnd());
            EXPECT_RANK(cudaGetDevice(&current) == cudaSuccess && current == devices[0]);
            for (int r = 0; r < P; ++r) {
              const Mine& m = all[static_cast<size_t>(r)];
              EXPECT_RANK(cudaSetDevice(devices[static_cast<size_t>(r)]) == cudaSuccess);
              EXPECT_RANK(m.out->content() == headSide(kStaged, P, r) && m.out->intact());
              EXPECT_RANK(m.back->content() == sequenceSide(kStaged, P, r) && m.back->intact());
              cudaStreamDestroy(m.stream);
            }
            EXPECT_OK(ulyssesGroupStart());
            for (ulyssesComm_t comm : comms) EXPECT_OK(ulyssesCommDestroy(comm));
            EXPECT_OK(ulyssesGroupEnd());
            EXPECT_RANK(cudaGetLastError() == cudaSuccess);
            return "";
          }) == "");
  }
}

#ifdef ULYSSES_EMULATED  // what a real machine has not, if it has the rest
TEST_CASE("GPUs without NVLink between them: NCCL carries everything, and says why", "[gpu][nccl][several]") {
  NEEDS_GPUS(2);
  const Environment nvlink("ULYSSES_EMULATED_NVLINK", "0");
  for (const As as : {As::Threads, As::Processes})
    CHECK(onDevice(as, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
            EXPECT_RANK(infoOf(comm).lsa == 0);
            const std::string text = roundTrip(kStaged, 2, rank, comm, stream, meeting);
            EXPECT_RANK(std::string(infoOf(comm).lastPath) == "nccl");
            EXPECT_RANK(std::string(infoOf(comm).lastReason).find("NVLink") != std::string::npos);
            return text;
          }) == "");
}
#endif

}  // namespace ulysses::testing
