// The CTAs of a GPU among communicators, and what a rank leaves behind that is killed.
#include <csignal>

#include "base/test_hooks.h"
#include "gpu/support/device_ranks.h"
#include "gpu/support/shapes.h"
#include "support/catch.h"

namespace ulysses::testing {

TEST_CASE("two communicators on two streams, launched in opposite order by the ranks: their CTAs are resident together", "[gpu][cases]") {
  NEEDS_GPU;
  const Shape large{1, 4096, 8, 64, 2};  // as many CTAs as there are
  for (const Shape& t : {kStaged, large})
    CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
            ulyssesComm_t other = nullptr;
            EXPECT_OK(ulyssesCommSplit(comm, 0, rank, &other, nullptr));
            cudaStream_t second = nullptr;
            EXPECT_RANK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) == cudaSuccess);
            DeviceTensor in(sequenceSide(t, 2, rank)), a(headSide(t, 2, rank).size()), b(headSide(t, 2, rank).size());
            {
              PlanPair plansA, plansB;
              EXPECT_OK(plansA.make(descOf(t), comm));
              EXPECT_OK(plansB.make(descOf(t), other));
              cudaDeviceProp device;
              EXPECT_RANK(cudaGetDeviceProperties(&device, deviceOf(rank)) == cudaSuccess);
              // Kernels of 512 threads: at least one CTA to a processor.
              EXPECT_RANK(infoOf(plansA.plan).ctas > 0 && infoOf(plansB.plan).ctas > 0);
              EXPECT_RANK((ownGpus(2) ? 1 : 2) * (infoOf(plansA.plan).ctas + infoOf(plansB.plan).ctas) <=
                          device.multiProcessorCount * (device.maxThreadsPerMultiProcessor / 512));
              settle(meeting);
              for (int i = 0; i < 100; ++i)
                for (const bool first : {rank == 0, rank != 0})
                  EXPECT_OK(first ? execute(plansA.plan, in.data(), a.data(), stream) : execute(plansB.plan, in.data(), b.data(), second));
              EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess && cudaStreamSynchronize(second) == cudaSuccess);
              meeting.wait();
            }
            EXPECT_RANK(a.content() == headSide(t, 2, rank) && a.intact());
            EXPECT_RANK(b.content() == headSide(t, 2, rank) && b.intact());
            EXPECT_OK(ulyssesCommDestroy(other));
            cudaStreamDestroy(second);
            return "";
          }) == "");
}

TEST_CASE("CTAs of communicators that are gone are there again", "[gpu][cases]") {
  NEEDS_GPU;
  const Shape large{1, 4096, 8, 64, 2};
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t, Meeting& meeting) -> std::string {
          int most = 0;
          for (int i = 0; i < 4; ++i) {
            ulyssesComm_t other = nullptr;
            EXPECT_OK(ulyssesCommSplit(comm, 0, rank, &other, nullptr));
            {
              PlanPair plans;
              EXPECT_OK(plans.make(descOf(large), other));
              if (i == 0) most = infoOf(plans.plan).ctas;
              EXPECT_RANK(infoOf(plans.plan).ctas == most);
            }
            EXPECT_OK(ulyssesCommDestroy(other));
            meeting.wait();
          }
          return "";
        }) == "");
}

TEST_CASE("CTAs of a rank that died with them, or before all had theirs, are there again", "[gpu][death]") {
  NEEDS_GPU;
  const Shape large{1, 4096, 8, 64, 2};
  for (const bool early : {false, true})
    CHECK(onDevice(As::Processes, 3, [&](int rank, ulyssesComm_t comm, cudaStream_t, Meeting& meeting) -> std::string {
            ulyssesComm_t doomed = nullptr, left = nullptr;
            EXPECT_OK(ulyssesCommSplit(comm, rank < 2 ? 0 : ULYSSES_SPLIT_NOCOLOR, rank, &doomed, nullptr));
            EXPECT_OK(ulyssesCommSplit(comm, rank != 1 ? 0 : ULYSSES_SPLIT_NOCOLOR, rank, &left, nullptr));
            const auto most = [&] {
              ulyssesComm_t copy = nullptr;
              int ctas = -1;
              if (ulyssesCommSplit(left, 0, rank, &copy, nullptr) != ulyssesSuccess) return ctas;
              {
                PlanPair plans;
                if (plans.make(descOf(large), copy) == ulyssesSuccess) ctas = infoOf(plans.plan).ctas;
              }
              return ulyssesCommDestroy(copy) == ulyssesSuccess ? ctas : -1;
            };
            const int before = rank != 1 ? most() : 0;
            EXPECT_RANK(before >= 0);
            meeting.wait();
            if (rank == 1 && early) hooks::plantDeath(hooks::Stage::Reserved);
            if (rank < 2) {
              const ulyssesA2ADesc_t d = descOf(large);
              ulyssesPlan_t plan = nullptr;
              const ulyssesResult_t made = ulyssesPlanCreate(&plan, 1, &d, doomed);
              if (rank == 1) raise(SIGKILL);
              EXPECT_RANK(made == (early ? ulyssesRemoteError : ulyssesSuccess));
              for (ulyssesResult_t async = made; async != ulyssesRemoteError;)
                EXPECT_OK(ulyssesCommGetAsyncError(doomed, &async));
              EXPECT_OK(ulyssesPlanDestroy(plan));
              EXPECT_OK(ulyssesCommDestroy(doomed));
            }
            EXPECT_RANK(most() == before);
            return "";
          }) == "rank 1: killed by signal 9\n");
}

TEST_CASE("a rank killed while its kernels run: the other is told who", "[gpu][death]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Processes, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting&) -> std::string {
          DeviceTensor in(sequenceSide(kStaged, 2, rank)), out(headSide(kStaged, 2, rank).size());
          const ulyssesA2ADesc_t d = descOf(kStaged);
          ulyssesPlan_t plan = nullptr;
          EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
          ulyssesResult_t result = ulyssesSuccess;
          for (int i = 0; i < 10000 && result == ulyssesSuccess; ++i) {
            result = execute(plan, in.data(), out.data(), stream);
            if (rank == 1 && i == 21) raise(SIGKILL);
            if (i % 10 == 9) EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess);
          }
          EXPECT_RANK(result == ulyssesRemoteError);
          EXPECT_RANK(lastErrorSays("rank 1"));
          EXPECT_RANK(execute(plan, in.data(), out.data(), stream) == ulyssesRemoteError);
          ulyssesResult_t async = ulyssesSuccess;
          EXPECT_OK(ulyssesCommGetAsyncError(comm, &async));
          EXPECT_RANK(async == ulyssesRemoteError);
          EXPECT_OK(ulyssesPlanDestroy(plan));
          return "";
        }) == "rank 1: killed by signal 9\n");
}

}  // namespace ulysses::testing
