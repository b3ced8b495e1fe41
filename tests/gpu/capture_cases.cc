// What graphs record, on device memory, through the C API: case 25, captures that forbid, groups.
#include "gpu/support/device_ranks.h"
#include "gpu/support/shapes.h"
#include "support/catch.h"

namespace ulysses::testing {

TEST_CASE("case 25 on device memory: an eager call under capture is refused on all, the stream as it was", "[gpu][cases]") {
  NEEDS_GPU;
  for (const As as : {As::Threads, As::Processes})
    for (const bool onAll : {true, false}) {
      INFO((as == As::Threads ? "threads" : "processes") << (onAll ? ", captured on all" : ", captured on rank 0"));
      CHECK(onDevice(as, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
              DeviceTensor in(sequenceSide(kStaged, 2, rank)), out(headSide(kStaged, 2, rank).size());
              settle(meeting);
              const bool captures = onAll || rank == 0;
              if (captures) EXPECT_RANK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
              EXPECT_RANK(exchange(kStaged, in.data(), out.data(), ulyssesScatterHeads, comm, stream) == ulyssesInvalidUsage);
              EXPECT_RANK(lastErrorSays("rank 0"));
              if (captures) {
                cudaGraph_t graph = nullptr;
                size_t nodes = 1;
                EXPECT_RANK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
                EXPECT_RANK(graph == nullptr || cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
                EXPECT_RANK(graph == nullptr || nodes == 0);
                if (graph != nullptr) cudaGraphDestroy(graph);
              }
              EXPECT_RANK(cudaGetLastError() == cudaSuccess);
              meeting.wait();
              EXPECT_RANK(out.untouched());
              return roundTrip(kStaged, 2, rank, comm, stream, meeting);
            }) == "");
    }
}

TEST_CASE("case 25 on device memory: after a warm-up eager calls are recorded, replayed with new inputs, made beside it", "[gpu][cases]") {
  NEEDS_GPU;
  for (const As as : {As::Threads, As::Processes})
    for (const Shape& t : {kSmall, kMedium})
      for (const bool inWindow : {false, true}) {
        INFO((as == As::Threads ? "threads" : "processes") << " S=" << t.S << (inWindow ? " window" : " plain"));
        CHECK(onDevice(as, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                const size_t bytes = headSide(t, 2, rank).size();
                DeviceTensor in(sequenceSide(t, 2, rank)), plain(bytes), back(in.content().size());
                void* window = nullptr;
                EXPECT_OK(ulyssesMemAlloc(&window, bytes, comm));
                void* out = inWindow ? window : plain.data();
                const auto there = [&] { return exchange(t, in.data(), out, ulyssesScatterHeads, comm, stream); };
                const auto andBack = [&] { return exchange(t, out, back.data(), ulyssesGatherHeads, comm, stream); };
                settle(meeting);
                EXPECT_OK(there());
                EXPECT_OK(andBack());
                EXPECT_RANK(finish(stream, meeting));

                // On one rank alone: the same refusal on both, and nothing recorded.
                if (rank == 0) EXPECT_RANK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
                EXPECT_RANK(there() == ulyssesInvalidUsage && lastErrorSays("rank 0 records a graph and rank 1 does not"));
                if (rank == 0) {
                  cudaGraph_t graph = nullptr;
                  EXPECT_RANK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
                  if (graph != nullptr) cudaGraphDestroy(graph);
                }
                meeting.wait();

                Graph graph;
                std::string text = graph.record(stream, [&]() -> std::string {
                  EXPECT_OK(there());
                  EXPECT_OK(andBack());
                  // A shape that was never made outside cannot be recorded.
                  Shape other = t;
                  other.S += 2;
                  EXPECT_RANK(exchange(other, in.data(), plain.data(), ulyssesScatterHeads, comm, stream) == ulyssesInvalidUsage);
                  return "";
                });
                if (!text.empty()) return text;
                EXPECT_RANK(graph.nodes() == 2);
                for (uint64_t i = 0; i < 10; ++i) {
                  in.set(sequenceSide(t, 2, rank, 50 + i));
                  plain.poison();
                  back.poison();
                  settle(meeting);
                  EXPECT_RANK(graph.replay(stream));
                  if (i % 2 == 1) {
                    EXPECT_OK(there());
                    EXPECT_OK(andBack());
                  }
                  EXPECT_RANK(finish(stream, meeting));
                  std::vector<unsigned char> got(bytes);
                  EXPECT_RANK(cudaMemcpy(got.data(), out, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
                  EXPECT_RANK(got == headSide(t, 2, rank, 50 + i) && plain.intact());
                  EXPECT_RANK(back.content() == in.content() && back.intact());
                  meeting.wait();
                }
                EXPECT_OK(ulyssesMemFree(window, comm));
                return "";
              }) == "");
      }
}

TEST_CASE("a capture that forbids its thread and all others to allocate or to wait does not mind what the library does",
          "[gpu][cases]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          DeviceTensor in(sequenceSide(kStaged, 2, rank)), out(headSide(kStaged, 2, rank).size());
          PlanPair plans;
          void* window = nullptr;
          Graph graph;
          settle(meeting);
          const std::string text = graph.record(
              stream,
              [&]() -> std::string {
                meeting.wait();
                EXPECT_OK(plans.make(descOf(kStaged), comm));
                EXPECT_OK(execute(plans.plan, in.data(), out.data(), stream));
                PlanPair others;
                EXPECT_OK(others.make(descOf(kSmall), comm));
                EXPECT_OK(ulyssesMemAlloc(&window, 1 << 20, comm));
                EXPECT_OK(ulyssesMemFree(window, comm));
                meeting.wait();
                return "";
              },
              cudaStreamCaptureModeGlobal, [&] { meeting.wait(); });
          if (!text.empty()) return text;
          meeting.wait();
          EXPECT_RANK(graph.nodes() == 1 && graph.replay(stream) && finish(stream, meeting));
          EXPECT_RANK(out.content() == headSide(kStaged, 2, rank) && out.intact());
          meeting.wait();
          return "";
        }) == "");
}

TEST_CASE("a group under capture records its calls and waits for none", "[gpu][cases]") {
  NEEDS_GPU;
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          DeviceTensor in(sequenceSide(kMedium, 2, rank)), out(headSide(kMedium, 2, rank).size()), back(in.content().size());
          PlanPair plans;
          EXPECT_OK(plans.make(descOf(kMedium), comm));
          settle(meeting);
          Graph graph;
          const std::string text = graph.record(stream, [&]() -> std::string {
            EXPECT_OK(ulyssesGroupStart());
            EXPECT_OK(execute(plans.plan, in.data(), out.data(), stream));
            EXPECT_OK(execute(plans.inverse, out.data(), back.data(), stream));
            EXPECT_OK(ulyssesGroupEnd());
            return "";
          });
          if (!text.empty()) return text;
          meeting.wait();
          EXPECT_RANK(graph.nodes() == 2 && graph.replay(stream));
          EXPECT_RANK(finish(stream, meeting));
          EXPECT_RANK(back.content() == in.content() && back.intact());
          meeting.wait();
          return "";
        }) == "");
}

}  // namespace ulysses::testing
