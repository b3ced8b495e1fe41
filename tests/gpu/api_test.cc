// The C API on device memory: ranks that are threads or processes, on the GPUs that they are dealt.
#include <unistd.h>

#include "gpu/support/device_ranks.h"
#include "support/catch.h"

namespace ulysses::testing {

TEST_CASE("eager exchanges on device memory: the cases' checksums, plain outputs and windows, and back", "[gpu][cases]") {
  NEEDS_GPU;
  struct Case {
    int P;
    Shape t;
    std::vector<std::string> crcs;
  };
  const Case cases[] = {{2, {2, 4, 4, 3, 4}, {"ebeffc76", "4cf9e012"}},
                        {4, {3, 8, 8, 5, 4}, {"0ef4354e", "34787612", "a85b4901", "26fe5647"}},
                        {3, {2, 6, 6, 1, 2}, {"027d9f49", "64adf51e", "e6019256"}},
                        {5, {1, 10, 5, 3, 4}, {}},
                        {1, {2, 4, 4, 3, 4}, {}},
                        {8, {2, 8, 8, 1, 2}, {"e66fea68", "301409a9", "91e92bab", "4792c86a", "096269ee", "df198a2f", "7ee4a82d", "a89f4bec"}},
                        {4, {1, 2, 8, 3, 4}, {}},
                        {2, {2, 1700, 6, 67, 4}, {}},
                        {4, {2, 2021, 9, 64, 8}, {}},
                        {3, {1, 4999, 7, 129, 2}, {}},
                        {5, {1, 3200, 11, 50, 1}, {}},
                        {8, {1, 4096, 16, 64, 2}, {}}};
  for (const As as : {As::Threads, As::Processes})
    for (const Case& c : cases) {
      if (as == As::Processes && c.P > 4 && !ownGpus(c.P)) continue;  // without MPS every handshake is a time slice
      INFO("P=" << c.P << " [" << c.t.B << "," << c.t.S << "," << c.t.H << "," << c.t.D << "] " << (as == As::Threads ? "threads" : "processes"));
      CHECK(onDevice(as, c.P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
              const Shape& t = c.t;
              EXPECT_RANK(infoOf(comm).memory == ulyssesMemoryCuda);
              DeviceTensor in(sequenceSide(t, c.P, rank)), out(headSide(t, c.P, rank).size(), 16), back(in.content().size());
              void* window = nullptr;
              EXPECT_OK(ulyssesMemAlloc(&window, headSide(t, c.P, rank).size() + 256, comm));
              settle(meeting);
              const auto call = [&](const void* from, void* to, ulyssesDirection_t direction) {
                return ulyssesA2A(from, to, t.B, t.S, t.H, t.D, typeOf(t.elementBytes), direction, comm, stream);
              };
              EXPECT_OK(call(in.data(), out.data(), ulyssesScatterHeads));
              EXPECT_OK(call(out.data(), back.data(), ulyssesGatherHeads));
              EXPECT_OK(call(in.data(), window, ulyssesScatterHeads));
              EXPECT_RANK(finish(stream, meeting));
              EXPECT_RANK(out.content() == headSide(t, c.P, rank) && out.intact());
              EXPECT_RANK(c.crcs.empty() || crc(out.content()) == c.crcs[static_cast<size_t>(rank)]);
              EXPECT_RANK(back.content() == sequenceSide(t, c.P, rank) && back.intact());
              std::vector<unsigned char> got(headSide(t, c.P, rank).size());
              EXPECT_RANK(cudaMemcpy(got.data(), window, got.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
              EXPECT_RANK(got == headSide(t, c.P, rank));
              EXPECT_OK(ulyssesMemFree(window, comm));
              return "";
            }) == "");
    }
}

TEST_CASE("case 2 on device memory: many calls back to back without a host wait, ranks delayed in turn", "[gpu][cases]") {
  NEEDS_GPU;
  const Shape t{3, 8, 8, 5, 4};
  CHECK(onDevice(As::Threads, 4, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          std::vector<std::unique_ptr<DeviceTensor>> ins, outs, backs;
          for (uint64_t k = 0; k < 64; ++k) {
            ins.push_back(std::make_unique<DeviceTensor>(sequenceSide(t, 4, rank, k * 1000003)));
            outs.push_back(std::make_unique<DeviceTensor>(headSide(t, 4, rank).size()));
            backs.push_back(std::make_unique<DeviceTensor>(sequenceSide(t, 4, rank).size()));
          }
          settle(meeting);
          for (uint64_t k = 0; k < 64; ++k) {
            if (static_cast<int>(k % 4) == rank) usleep(2000);
            EXPECT_OK(ulyssesA2A(ins[k]->data(), outs[k]->data(), 3, 8, 8, 5, ulyssesFloat32, ulyssesScatterHeads, comm, stream));
            if (k >= 32) EXPECT_OK(ulyssesA2A(outs[k]->data(), backs[k]->data(), 3, 8, 8, 5, ulyssesFloat32, ulyssesGatherHeads, comm, stream));
          }
          EXPECT_RANK(finish(stream, meeting));
          for (uint64_t k = 0; k < 64; ++k) {
            EXPECT_RANK(outs[k]->content() == headSide(t, 4, rank, k * 1000003) && outs[k]->intact());
            if (k >= 32) EXPECT_RANK(backs[k]->content() == ins[k]->content());
          }
          return "";
        }) == "");
}

TEST_CASE("plans on device memory: strided Q, K, V in one launch, inverse, capture and replay beside eager calls", "[gpu][cases]") {
  NEEDS_GPU;
  for (const As as : {As::Threads, As::Processes})
    for (const size_t S : {size_t{8}, size_t{1000}}) {
      INFO("S=" << S << (as == As::Threads ? " threads" : " processes"));
      CHECK(onDevice(as, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
              const int P = 2;
              const size_t B = 2, D = 16, heads[] = {8, 4, 4}, row = 16 * D;
              const Part seq = balanced(S, P, rank);
              const auto projectionOf = [&](uint64_t salt) {
                std::vector<unsigned char> p(B * seq.second * row * 2);
                for (size_t k = 0, column = 0; k < 3; column += heads[k] * D, ++k) {
                  const std::vector<unsigned char> part = sequenceSide({B, S, heads[k], D, 2}, P, rank, salt + k * 777);
                  for (size_t i = 0; i < B * seq.second; ++i)
                    std::memcpy(&p[(i * row + column) * 2], &part[i * heads[k] * D * 2], heads[k] * D * 2);
                }
                return p;
              };
              DeviceTensor projection(projectionOf(1)), gradient(projection.content().size());
              ulyssesA2ADesc_t descs[3];
              std::vector<std::unique_ptr<DeviceTensor>> outs;
              const void *ins[3], *outsIn[3];
              void *results[3], *gradients[3];
              for (size_t k = 0, column = 0; k < 3; column += heads[k] * D, ++k) {
                descs[k] = ULYSSES_A2A_DESC_INITIALIZER;
                descs[k].batch = B, descs[k].seq = S, descs[k].heads = heads[k], descs[k].headDim = D;
                descs[k].inStride[0] = seq.second * row, descs[k].inStride[1] = row, descs[k].inStride[2] = D;
                outs.push_back(std::make_unique<DeviceTensor>(headSide({B, S, heads[k], D, 2}, P, rank).size()));
                ins[k] = projection.data() + column * 2;
                gradients[k] = gradient.data() + column * 2;
                outsIn[k] = results[k] = outs[k]->data();
              }
              PlanPair plans;
              EXPECT_OK(plans.make(descs, comm));
              settle(meeting);
              const auto exact = [&](uint64_t salt) -> std::string {
                EXPECT_RANK(finish(stream, meeting));
                for (size_t k = 0; k < 3; ++k)
                  EXPECT_RANK(outs[k]->content() == headSide({B, S, heads[k], D, 2}, P, rank, salt + k * 777) && outs[k]->intact());
                EXPECT_RANK(gradient.content() == projectionOf(salt) && gradient.intact());
                for (auto& o : outs) o->poison();
                gradient.poison();
                settle(meeting);
                return "";
              };
              EXPECT_OK(ulyssesPlanExecute(plans.plan, ins, results, stream));
              EXPECT_OK(ulyssesPlanExecute(plans.inverse, outsIn, gradients, stream));
              std::string text = exact(1);
              if (!text.empty()) return text;

              // An eager call that was never made outside: the same refusal on all, before the stream is touched.
              Graph graph;
              text = graph.record(stream, [&]() -> std::string {
                EXPECT_RANK(ulyssesAllGather(ins[0], results[0], 0, ulyssesInt8, comm, stream) == ulyssesInvalidUsage);
                EXPECT_OK(ulyssesPlanExecute(plans.plan, ins, results, stream));
                EXPECT_OK(ulyssesPlanExecute(plans.inverse, outsIn, gradients, stream));
                return "";
              });
              if (!text.empty()) return text;
              meeting.wait();
              for (uint64_t i = 0; i < 10; ++i) {
                projection.set(projectionOf(100 + i));
                settle(meeting);
                EXPECT_RANK(graph.replay(stream));
                text = exact(100 + i);
                if (!text.empty()) return text;
                EXPECT_OK(ulyssesPlanExecute(plans.plan, ins, results, stream));
                EXPECT_OK(ulyssesPlanExecute(plans.inverse, outsIn, gradients, stream));
                text = exact(100 + i);
                if (!text.empty()) return text;
              }
              return "";
            }) == "");
    }
}

TEST_CASE("case 4 on device memory: what differs is named, nothing is touched, the next call is exact", "[gpu][cases]") {
  NEEDS_GPU;
  const Shape t{2, 4, 4, 3, 4};
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          DeviceTensor in(sequenceSide(t, 2, rank)), out(headSide(t, 2, rank).size());
          ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
          d.batch = 2, d.seq = 4, d.heads = 4, d.headDim = 3, d.dtype = ulyssesFloat32;
          ulyssesPlan_t plan = nullptr, other = nullptr;
          EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
          EXPECT_OK(ulyssesPlanCreate(&other, 1, &d, comm));
          settle(meeting);
          const auto a2a = [&](size_t S) {
            return ulyssesA2A(in.data(), out.data(), 2, S, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comm, stream);
          };
          EXPECT_RANK(a2a(rank == 1 ? 8 : 4) == ulyssesMismatch);
          EXPECT_RANK(lastErrorSays("seq"));
          EXPECT_RANK(ulyssesA2A(rank == 1 ? nullptr : in.data(), out.data(), 2, 4, 4, 3, ulyssesFloat32, ulyssesScatterHeads, comm, stream) == ulyssesInvalidArgument);
          // Plans agree on the device: the wrong plan on rank 1 stores nothing anywhere, and is told at the next call.
          const void* ins[] = {in.data()};
          void* outs[] = {out.data()};
          EXPECT_OK(ulyssesPlanExecute(rank == 1 ? other : plan, ins, outs, stream));
          EXPECT_RANK(finish(stream, meeting));
          EXPECT_RANK(out.untouched());
          ulyssesResult_t async = ulyssesSuccess;
          EXPECT_OK(ulyssesCommGetAsyncError(comm, &async));
          EXPECT_RANK(async == ulyssesMismatch);
          settle(meeting);
          EXPECT_OK(ulyssesPlanExecute(plan, ins, outs, stream));
          EXPECT_OK(a2a(4));
          EXPECT_RANK(finish(stream, meeting));
          EXPECT_RANK(out.content() == headSide(t, 2, rank));
          EXPECT_OK(ulyssesPlanDestroy(plan));
          EXPECT_OK(ulyssesPlanDestroy(other));
          return "";
        }) == "");
}

TEST_CASE("wrong executions of a plan, on one rank or on all: nothing is touched, told once, and the next is made", "[gpu][cases]") {
  NEEDS_GPU;
  for (const Shape& t : {Shape{2, 4, 4, 3, 4}, Shape{2, 900, 4, 31, 4}})  // the small path, and not
    for (const As as : {As::Threads, As::Processes})
      for (const bool onAll : {false, true}) {
        INFO("S=" << t.S << (as == As::Threads ? " threads" : " processes") << (onAll ? ", on all" : ", on rank 1"));
        CHECK(onDevice(as, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
                DeviceTensor in(sequenceSide(t, 2, rank)), out(headSide(t, 2, rank).size());
                PlanPair plans;
                EXPECT_OK(plans.make(descOf(t), comm));
                settle(meeting);
                const bool wrong = onAll || rank == 1;
                for (int round = 0; round < 3; ++round) {
                  EXPECT_RANK(execute(plans.plan, wrong ? nullptr : in.data(), out.data(), stream) == (wrong ? ulyssesInvalidArgument : ulyssesSuccess));
                  EXPECT_RANK(finish(stream, meeting));
                  EXPECT_RANK(out.untouched());
                  settle(meeting);
                  // Told by the next call, which is made all the same; where the call was wrong everywhere, everybody knew.
                  EXPECT_RANK(execute(plans.plan, in.data(), out.data(), stream) == (onAll ? ulyssesSuccess : ulyssesMismatch));
                  EXPECT_RANK(onAll || lastErrorSays("rank 1"));
                  EXPECT_OK(execute(plans.plan, in.data(), out.data(), stream));
                  EXPECT_RANK(finish(stream, meeting));
                  EXPECT_RANK(out.content() == headSide(t, 2, rank) && out.intact());
                  out.poison();
                  settle(meeting);
                }
                EXPECT_RANK(cudaGetLastError() == cudaSuccess);
                return "";
              }) == "");
      }
}

TEST_CASE("plans that differ by rank in the number of operands: nobody waits for what never comes", "[gpu][cases]") {
  NEEDS_GPU;
  const Shape t{2, 4, 4, 3, 4};
  CHECK(onDevice(As::Threads, 3, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          DeviceTensor in(sequenceSide(t, 3, rank)), out(headSide(t, 3, rank).size()), more(headSide(t, 3, rank).size());
          const ulyssesA2ADesc_t two[] = {descOf(t), descOf(t)};
          PlanPair single, pair;
          EXPECT_OK(single.make(descOf(t), comm));
          EXPECT_OK(pair.make(two, comm));
          settle(meeting);
          const void* ins[] = {in.data(), rank == 0 ? nullptr : in.data()};
          void* outs[] = {out.data(), more.data()};
          // Rank 0's is wrong by itself, rank 2's another plan.
          const ulyssesResult_t result = ulyssesPlanExecute(rank == 2 ? single.plan : pair.plan, ins, outs, stream);
          EXPECT_RANK(result == (rank == 0 ? ulyssesInvalidArgument : ulyssesSuccess));
          EXPECT_RANK(finish(stream, meeting));
          EXPECT_RANK(out.untouched() && more.untouched());
          ulyssesResult_t async = ulyssesSuccess;
          EXPECT_OK(ulyssesCommGetAsyncError(comm, &async));
          EXPECT_RANK(async == ulyssesMismatch && lastErrorSays("rank 0"));
          settle(meeting);
          EXPECT_OK(execute(single.plan, in.data(), out.data(), stream));
          EXPECT_RANK(finish(stream, meeting));
          EXPECT_RANK(out.content() == headSide(t, 3, rank));
          meeting.wait();
          return "";
        }) == "");
}

TEST_CASE("flat collectives on device memory, in place and not", "[gpu]") {
  NEEDS_GPU;
  for (const int P : rankCounts({2, 4}))
    for (const size_t count : {size_t{0}, size_t{7}, size_t{100003}})
      CHECK(onDevice(As::Threads, P, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
              const size_t n = static_cast<size_t>(P), bytes = count * 4;
              std::vector<unsigned char> all, mine, swapped;
              for (size_t p = 0; p < n; ++p)
                for (size_t i = 0; i < count; ++i) {
                  const auto put = [](std::vector<unsigned char>& v, size_t x) {
                    const auto u = static_cast<uint32_t>(x);
                    v.insert(v.end(), reinterpret_cast<const unsigned char*>(&u), reinterpret_cast<const unsigned char*>(&u) + 4);
                  };
                  put(all, p * 1000000 + i);
                  put(mine, static_cast<size_t>(rank) * 1000000 + p * count + i);
                  put(swapped, p * 1000000 + static_cast<size_t>(rank) * count + i);
                }
              DeviceTensor out(n * bytes), send(mine), got(n * bytes);
              cudaMemcpy(out.data() + bytes * static_cast<size_t>(rank), all.data() + bytes * static_cast<size_t>(rank), bytes, cudaMemcpyHostToDevice);
              settle(meeting);
              EXPECT_OK(ulyssesAllGather(out.data() + bytes * static_cast<size_t>(rank), out.data(), count, ulyssesUint32, comm, stream));
              EXPECT_OK(ulyssesAlltoAll(send.data(), got.data(), count, ulyssesUint32, comm, stream));
              EXPECT_RANK(finish(stream, meeting));
              EXPECT_RANK(out.content() == all && out.intact());
              EXPECT_RANK(got.content() == swapped && got.intact());
              return "";
            }) == "");
}

TEST_CASE("two streams of one thread, one communicator: calls are chained", "[gpu][cases]") {
  NEEDS_GPU;
  const Shape t{1, 64, 4, 16, 4};
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          cudaStream_t second = nullptr;
          cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
          DeviceTensor in(sequenceSide(t, 2, rank)), a(headSide(t, 2, rank).size()), b(headSide(t, 2, rank).size());
          settle(meeting);
          for (int i = 0; i < 200; ++i)
            for (const bool first : {true, false})
              EXPECT_OK(ulyssesA2A(in.data(), first ? a.data() : b.data(), 1, 64, 4, 16, ulyssesFloat32, ulyssesScatterHeads, comm, first ? stream : second));
          EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess && cudaStreamSynchronize(second) == cudaSuccess);
          meeting.wait();
          EXPECT_RANK(a.content() == headSide(t, 2, rank) && b.content() == headSide(t, 2, rank));
          cudaStreamDestroy(second);
          return "";
        }) == "");
}

TEST_CASE("a rank that never launches a planned exchange is named after the deadline", "[gpu][cases]") {
  NEEDS_GPU;
  const Shape t{2, 4, 4, 3, 4};
  CHECK(onDevice(As::Threads, 2, [&](int rank, ulyssesComm_t comm, cudaStream_t stream, Meeting& meeting) -> std::string {
          DeviceTensor in(sequenceSide(t, 2, rank)), out(headSide(t, 2, rank).size());
          ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
          d.batch = 2, d.seq = 4, d.heads = 4, d.headDim = 3, d.dtype = ulyssesFloat32;
          ulyssesPlan_t plan = nullptr;
          EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
          settle(meeting);
          const void* ins[] = {in.data()};
          void* outs[] = {out.data()};
          if (rank == 0) {
            EXPECT_OK(ulyssesPlanExecute(plan, ins, outs, stream));
            EXPECT_RANK(cudaStreamSynchronize(stream) == cudaSuccess);
            ulyssesResult_t async = ulyssesSuccess;
            EXPECT_OK(ulyssesCommGetAsyncError(comm, &async));
            EXPECT_RANK(async == ulyssesTimeout && lastErrorSays("rank 1"));
          }
          meeting.wait();
          EXPECT_OK(ulyssesPlanDestroy(plan));
          return "";
        }, deviceConfig(1500)) == "");
}

}  // namespace ulysses::testing
