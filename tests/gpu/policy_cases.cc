// The policy's table through real plans on device memory: what they say of themselves, and what they register.
#include "base/test_hooks.h"
#include "gpu/support/device_ranks.h"
#include "support/catch.h"
#include "support/policy_table.h"
#include "support/rendezvous_process.h"
#include "topology/nccl_library.h"

namespace ulysses::testing {
namespace {

// A plan's own words about one row. Where ranks share a GPU, CTAs are as many as are resident together; where they do
// not, NCCL takes what is not fused.
std::string planOf(const PolicyCase& c, int rank, ulyssesComm_t comm, cudaStream_t stream) {
  ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
  d.batch = c.facts.planes, d.seq = c.facts.seq, d.heads = c.facts.heads, d.headDim = c.facts.headDim;
  d.dtype = c.facts.dtype, d.direction = c.facts.direction, d.gradTracked = c.facts.gradTracked;
  const size_t p = static_cast<size_t>(c.facts.ranks), row = d.heads * d.headDim;
  if (!c.facts.contiguous && rank == 0)
    d.inStride[0] = d.seq / p * 2 * row, d.inStride[1] = 2 * row, d.inStride[2] = d.headDim;
  const size_t before = infoOf(comm).windowBytes;
  // Before any rank launches: an allocation may wait for kernels, and they for this rank.
  DeviceTensor in(256);
  PlanPair plans;
  EXPECT_OK(plans.make(d, comm));
  const std::string text = [&]() -> std::string {
    for (const ulyssesPlan_t plan : {plans.plan, plans.inverse}) {
      const ulyssesPlanInfo_t info = infoOf(plan);
      const bool byNccl = haveNccl(c.facts.ranks);
      EXPECT_RANK(std::string(info.path) == (c.path == "fused" ? "fused" : byNccl ? "nccl" : "fallback"));
      if (byNccl && c.path != "fused") continue;
      EXPECT_RANK(info.windowBytes <= c.maxWindowBytes);
      EXPECT_RANK((info.windowBytes > 0) == (c.path == "fused"));
      const std::string reason = info.reason;
      EXPECT_RANK((reason.find("tuned for GB200") != std::string::npos) == c.tuned);
      EXPECT_RANK((reason.find("one window of") != std::string::npos) == c.original);
      EXPECT_RANK(info.ctas > 0 && info.ctas <= (c.tuned ? 144 : 36) && (c.facts.gpu == "GB200" || info.ctas <= 36));
      // Held whole by the original launch: one chunk, or as many as there are slots.
      if (c.original) EXPECT_RANK(info.chunks <= 3);
      if (c.path == "fused") continue;
      EXPECT_RANK(execute(plan, in.data(), in.data() + (size_t{1} << 45), stream) == ulyssesNotSupported);
      EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess);
    }
    const ulyssesCommInfo_t info = infoOf(comm);
    EXPECT_RANK(info.windowBytes <= info.windowCapBytes && info.windowBytes >= before);
    return "";
  }();
  return text.empty() ? "" : text + " of the plan (" + infoOf(plans.plan).path + ", " + infoOf(plans.plan).reason + ")";
}

}  // namespace

TEST_CASE("the policy's table through plans on device memory", "[gpu][policy][large]") {
  NEEDS_GPU;
  for (const PolicyCase& c : readPolicyTable()) {
    INFO(c.line);
    ulyssesConfig_t config = deviceConfig();
    config.windowCapBytes = c.facts.capBytes;
    setenv("ULYSSES_A2A_LONG_TRAINING", c.facts.longTraining == LongTraining::Auto ? "auto" : "chunked", 1);
    CHECK(onDevice(
              As::Threads, c.facts.ranks,
              [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                const std::string text = planOf(c, rank, comm, stream);
                meeting.wait();
                return text;
              },
              config, c.facts.gpu) == "");
  }
  unsetenv("ULYSSES_A2A_LONG_TRAINING");
}

TEST_CASE("long-training differs by rank: all stage as the careful one", "[gpu][policy]") {
  NEEDS_GPU;
  const RendezvousProcess rendezvous;
  CHECK(failures(runRanks(As::Processes, 2, [&](int rank) -> std::string {
          setenv("ULYSSES_A2A_LONG_TRAINING", rank == 0 ? "chunked" : "auto", 1);
          EXPECT_RANK(takeDeviceOf(rank));
          const ulyssesConfig_t config = deviceConfig();
          ulyssesComm_t comm = nullptr;
          EXPECT_OK(ulyssesCommInitRankConfig(&comm, 2, rendezvous.id(), rank, &config));
          ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
          d.batch = 3, d.seq = 160000, d.heads = 56, d.headDim = 128, d.gradTracked = 1;
          {
            PlanPair plans;
            EXPECT_OK(plans.make(d, comm));
            EXPECT_RANK(std::string(infoOf(plans.plan).path) == (haveNccl(2) ? "nccl" : "fallback"));
          }
          EXPECT_OK(ulyssesCommDestroy(comm));
          return "";
        })) == "");
}

}  // namespace ulysses::testing
