// Plans on host memory: cases 16, 17 and 19.
#include "support/catch.h"
#include "support/ranks.h"
#include "support/tensors.h"

namespace ulysses::testing {
namespace {

ulyssesA2ADesc_t descOf(const Shape& t, ulyssesDataType_t dtype, ulyssesDirection_t direction = ulyssesScatterHeads) {
  ulyssesA2ADesc_t d = ULYSSES_A2A_DESC_INITIALIZER;
  d.batch = t.B;
  d.seq = t.S;
  d.heads = t.H;
  d.headDim = t.D;
  d.dtype = dtype;
  d.direction = direction;
  return d;
}

// One strided [B, S/P, row] buffer: writes heads [first, first + count) of the global tensor into columns from `column`.
void fillColumns(std::vector<float>& buffer, size_t rowElements, size_t column, const Shape& t, Part seq, uint64_t salt) {
  const std::vector<unsigned char> part = tensor(t, seq, {0, t.H}, salt);
  const size_t width = t.H * t.D;
  for (size_t row = 0; row < t.B * seq.second; ++row)
    std::memcpy(&buffer[row * rowElements + column], &part[row * width * 4], width * 4);
}

std::string planPath(ulyssesPlan_t plan) {
  ulyssesPlanInfo_t info = ULYSSES_PLAN_INFO_INITIALIZER;
  return ulyssesPlanGetInfo(plan, &info) == ulyssesSuccess ? info.path : "";
}

}  // namespace

TEST_CASE("case 16: uneven sequences and heads, balanced and explicit", "[host][cases]") {
  const Shape t{2, 11, 6, 3, 4};
  const size_t seqSplits[] = {3, 3, 3, 2}, headSplits[] = {0, 4, 1, 1};
  const auto partOf = [](const size_t* splits, int r) {
    size_t begin = 0;
    for (int i = 0; i < r; ++i) begin += splits[i];
    return Part{begin, splits[r]};
  };
  for (const As as : {As::Threads, As::Processes})
    CHECK(failures(runComms(as, 4, [&](int rank, ulyssesComm_t comm) -> std::string {
            ulyssesA2ADesc_t d = descOf(t, ulyssesFloat32);
            d.seqSplits = seqSplits;
            d.headSplits = headSplits;
            ulyssesPlan_t plan = nullptr, inverse = nullptr;
            EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
            EXPECT_OK(ulyssesPlanInverse(plan, nullptr, &inverse));
            EXPECT_RANK(planPath(plan) == "fused");
            Fenced in(tensor(t, partOf(seqSplits, rank), {0, t.H}));
            const std::vector<unsigned char> expected = tensor(t, {0, t.S}, partOf(headSplits, rank));
            Fenced out(expected.size()), back(in.content().size());
            const void* ins[] = {in.data()};
            void* outs[] = {out.data()};
            EXPECT_OK(ulyssesPlanExecute(plan, ins, outs, nullptr));
            EXPECT_RANK(out.content() == expected && out.intact());
            const void* ins2[] = {out.data()};
            void* outs2[] = {back.data()};
            EXPECT_OK(ulyssesPlanExecute(inverse, ins2, outs2, nullptr));
            EXPECT_RANK(back.content() == in.content() && back.intact());
            EXPECT_OK(ulyssesPlanDestroy(plan));
            EXPECT_OK(ulyssesPlanDestroy(inverse));
            return "";
          })) == "");
}

TEST_CASE("case 17: packed QKV equals three calls, grouped queries come straight out of one projection", "[host][cases]") {
  const size_t B = 2, S = 8, D = 3;
  for (const int P : {2, 4}) {
    CHECK(failures(runComms(As::Threads, P, [&](int rank, ulyssesComm_t comm) -> std::string {
            // Three planes in one call against three calls.
            const Shape packed{3 * B, S, 8, D, 4}, one{B, S, 8, D, 4};
            Fenced in(3 * B * balanced(S, P, rank).second * 8 * D * 4), out(headSide(packed, P, rank).size());
            std::vector<unsigned char> expected;
            for (uint64_t k = 0; k < 3; ++k) {
              const std::vector<unsigned char> part = sequenceSide(one, P, rank, k * 100000);
              std::memcpy(in.data() + k * part.size(), part.data(), part.size());
              Fenced single(part), result(headSide(one, P, rank).size());
              EXPECT_OK(ulyssesA2A(single.data(), result.data(), B, S, 8, D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
              EXPECT_RANK(result.content() == headSide(one, P, rank, k * 100000));
              const std::vector<unsigned char> r = result.content();
              expected.insert(expected.end(), r.begin(), r.end());
            }
            EXPECT_OK(ulyssesA2A(in.data(), out.data(), 3 * B, S, 8, D, ulyssesFloat32, ulyssesScatterHeads, comm, nullptr));
            EXPECT_RANK(out.content() == expected);

            // Q with 8 heads, K and V with 4, out of [B, S/P, 16 * D], and back into it.
            const size_t heads[] = {8, 4, 4}, row = 16 * D;
            const Part seq = balanced(S, P, rank);
            std::vector<float> projection(B * seq.second * row), gradient(projection.size(), -1.0f);
            ulyssesA2ADesc_t descs[3];
            std::vector<Fenced> outs;
            const void* ins[3];
            void *results[3], *gradients[3];
            const void* resultsIn[3];
            outs.reserve(3);
            for (size_t k = 0, column = 0; k < 3; column += heads[k] * D, ++k) {
              const Shape t{B, S, heads[k], D, 4};
              fillColumns(projection, row, column, t, seq, k * 100000);
              descs[k] = descOf(t, ulyssesFloat32);
              descs[k].inStride[0] = seq.second * row;
              descs[k].inStride[1] = row;
              descs[k].inStride[2] = D;
              outs.emplace_back(headSide(t, P, rank).size());
              ins[k] = projection.data() + column;
              gradients[k] = gradient.data() + column;
              resultsIn[k] = results[k] = outs[k].data();
            }
            ulyssesPlan_t plan = nullptr, inverse = nullptr;
            EXPECT_OK(ulyssesPlanCreate(&plan, 3, descs, comm));
            EXPECT_RANK(planPath(plan) == "fused");
            EXPECT_OK(ulyssesPlanExecute(plan, ins, results, nullptr));
            for (size_t k = 0; k < 3; ++k)
              EXPECT_RANK(outs[k].content() == headSide({B, S, heads[k], D, 4}, P, rank, k * 100000) && outs[k].intact());
            EXPECT_OK(ulyssesPlanInverse(plan, nullptr, &inverse));
            EXPECT_OK(ulyssesPlanExecute(inverse, resultsIn, gradients, nullptr));
            EXPECT_RANK(gradient == projection);
            EXPECT_OK(ulyssesPlanDestroy(inverse));
            EXPECT_OK(ulyssesPlanDestroy(plan));
            return "";
          })) == "");
  }
}

TEST_CASE("case 17: 28 query heads over 4 KV heads on 8 ranks meet their KV head", "[host][cases]") {
  CHECK(failures(runComms(As::Threads, 8, [&](int rank, ulyssesComm_t comm) -> std::string {
          const Shape q{1, 16, 28, 4, 2}, kv{1, 16, 4, 4, 2};
          ulyssesA2ADesc_t descs[2] = {descOf(q, ulyssesBfloat16), descOf(kv, ulyssesBfloat16)};
          descs[0].headGroups = 4;
          descs[1].replicateHeads = 1;
          ulyssesPlan_t plan = nullptr, inverse = nullptr;
          EXPECT_OK(ulyssesPlanCreate(&plan, 2, descs, comm));
          const size_t group = static_cast<size_t>(rank) / 2, first = rank % 2 == 0;
          const Part queryHeads{group * 7 + (first ? 0 : 4), first ? 4u : 3u};
          Fenced qIn(sequenceSide(q, 8, rank)), kvIn(sequenceSide(kv, 8, rank));
          const std::vector<unsigned char> qOut = tensor(q, {0, 16}, queryHeads), kvOut = tensor(kv, {0, 16}, {group, 1});
          Fenced qGot(qOut.size()), kvGot(kvOut.size());
          const void* ins[] = {qIn.data(), kvIn.data()};
          void* outs[] = {qGot.data(), kvGot.data()};
          EXPECT_OK(ulyssesPlanExecute(plan, ins, outs, nullptr));
          EXPECT_RANK(qGot.content() == qOut && kvGot.content() == kvOut);
          // Backward: queries as they were; of each KV head both replicas, adjacent.
          Fenced qBack(qIn.content().size()), kvBack(kvIn.content().size() * 2);
          const void* ins2[] = {qGot.data(), kvGot.data()};
          void* outs2[] = {qBack.data(), kvBack.data()};
          EXPECT_OK(ulyssesPlanInverse(plan, nullptr, &inverse));
          EXPECT_OK(ulyssesPlanExecute(inverse, ins2, outs2, nullptr));
          EXPECT_RANK(qBack.content() == qIn.content());
          const std::vector<unsigned char> source = kvIn.content(), doubled = kvBack.content();
          const size_t head = 4 * 2;
          for (size_t i = 0; i < source.size() / head; ++i)
            for (size_t copy = 0; copy < 2; ++copy)
              EXPECT_RANK(std::memcmp(&doubled[(i * 2 + copy) * head], &source[i * head], head) == 0);
          EXPECT_OK(ulyssesPlanDestroy(plan));
          EXPECT_OK(ulyssesPlanDestroy(inverse));
          return "";
        })) == "");
}

TEST_CASE("case 19: strided views, one rank alone strided, head and sequence transposed", "[host][cases]") {
  for (const size_t B : {size_t{1}, size_t{2}})
    for (const bool large : {false, true})
      CHECK(failures(runComms(As::Processes, 2, [&](int rank, ulyssesComm_t comm) -> std::string {
              const Shape t{B, large ? size_t{600} : size_t{8}, 4, large ? size_t{64} : size_t{3}, 4};
              const Part seq = balanced(t.S, 2, rank), heads = balanced(t.H, 2, rank);
              const std::vector<unsigned char> source = sequenceSide(t, 2, rank), expected = headSide(t, 2, rank);
              for (int variant = 0; variant < 4; ++variant) {
                ulyssesA2ADesc_t d = descOf(t, ulyssesFloat32);
                const size_t rowIn = t.H * t.D, rowOut = heads.second * t.D;
                // Where element (b, s, h) of the input and of the output lies, in elements.
                size_t in[3] = {seq.second * rowIn, rowIn, t.D}, out[3] = {t.S * rowOut, rowOut, t.D}, first = 0;
                if (variant == 1 || (variant == 2 && rank == 1)) {  // rows 4.. of a longer buffer
                  in[0] = (seq.second + 9) * rowIn;
                  first = 4 * rowIn;
                }
                if (variant == 2 && rank == 1) out[1] = rowOut + 5, out[0] = t.S * out[1] + 3;
                if (variant == 3) {  // head before sequence
                  in[2] = seq.second * t.D, in[1] = t.D;
                  out[2] = t.S * t.D, out[1] = t.D;
                }
                std::memcpy(d.inStride, in, sizeof in);
                std::memcpy(d.outStride, out, sizeof out);
                Fenced inBuffer((first + B * in[0] + 64) * 4), outBuffer((B * out[0] + 64) * 4);
                const auto each = [&](Part s, size_t h, const auto& visit) {
                  size_t at = 0;
                  for (size_t b = 0; b < B; ++b)
                    for (size_t i = 0; i < s.second; ++i)
                      for (size_t j = 0; j < h; ++j, at += t.D * 4) visit(b, i, j, at);
                };
                each(seq, t.H, [&](size_t b, size_t i, size_t j, size_t at) {
                  std::memcpy(inBuffer.data() + (first + b * in[0] + i * in[1] + j * in[2]) * 4, &source[at], t.D * 4);
                });
                ulyssesPlan_t plan = nullptr;
                EXPECT_OK(ulyssesPlanCreate(&plan, 1, &d, comm));
                EXPECT_RANK(planPath(plan) == "fused");
                const void* ins[] = {inBuffer.data() + first * 4};
                void* outs[] = {outBuffer.data()};
                EXPECT_OK(ulyssesPlanExecute(plan, ins, outs, nullptr));
                bool right = true;
                std::vector<unsigned char> rest = outBuffer.content();
                each({0, t.S}, heads.second, [&](size_t b, size_t i, size_t j, size_t at) {
                  unsigned char* got = &rest[(b * out[0] + i * out[1] + j * out[2]) * 4];
                  right = right && std::memcmp(got, &expected[at], t.D * 4) == 0;
                  std::memset(got, 0xEE, t.D * 4);
                });
                EXPECT_RANK(right);
                for (unsigned char byte : rest) EXPECT_RANK(byte == 0xEE);  // nothing beside the elements was written
                EXPECT_RANK(outBuffer.intact());
                EXPECT_OK(ulyssesPlanDestroy(plan));
              }
              return "";
            })) == "");
}

TEST_CASE("descriptors that differ are named, wrong ones are everybody's error, and the next plan works", "[host][cases]") {
  CHECK(failures(runComms(As::Threads, 3, [&](int rank, ulyssesComm_t comm) -> std::string {
          const Shape t{1, 9, 6, 4, 4};
          ulyssesPlan_t plan = nullptr;
          const auto create = [&](const ulyssesA2ADesc_t& d) { return ulyssesPlanCreate(&plan, 1, &d, comm); };
          const auto names = [](const char* field) { return std::string(ulyssesGetLastError()).find(field) != std::string::npos; };
          const size_t even[] = {3, 3, 3}, odd[] = {3, 2, 4}, wrong[] = {3, 3, 4};
          ulyssesA2ADesc_t d = descOf(t, ulyssesFloat32);
          d.seqSplits = rank == 2 ? odd : even;
          EXPECT_RANK(create(d) == ulyssesMismatch && names("seqSplits") && plan == nullptr);
          d = descOf(t, rank == 1 ? ulyssesInt32 : ulyssesFloat32);
          EXPECT_RANK(create(d) == ulyssesMismatch && names("dtype") && names("int32"));
          d = descOf(t, ulyssesFloat32);
          d.gradTracked = rank == 1;
          EXPECT_RANK(create(d) == ulyssesMismatch && names("gradTracked"));
          d = descOf(t, ulyssesFloat32);
          if (rank == 1) d.seqSplits = wrong;
          EXPECT_RANK(create(d) == ulyssesInvalidArgument && names("rank 1") && names("seq"));
          d = descOf(t, ulyssesFloat32);
          d.outStride[0] = 1, d.outStride[1] = 1, d.outStride[2] = 1;
          EXPECT_RANK(create(d) == ulyssesInvalidArgument);
          EXPECT_RANK(ulyssesPlanCreate(&plan, rank == 0 ? 1 : 0, &d, comm) == ulyssesInvalidArgument);
          d = descOf(t, ulyssesFloat32);
          EXPECT_OK(create(d));
          Fenced in(sequenceSide(t, 3, rank)), out(headSide(t, 3, rank).size());
          const void* ins[] = {in.data()};
          void* outs[] = {out.data()};
          EXPECT_OK(ulyssesPlanExecute(plan, ins, outs, nullptr));
          EXPECT_RANK(out.content() == headSide(t, 3, rank));
          return ulyssesPlanDestroy(plan) == ulyssesSuccess ? "" : "destroy";
        })) == "");
}

}  // namespace ulysses::testing
