// Grouped-query attention: Q, K and V of different head counts go straight out of one strided projection, by one plan
// (one agreement, one synchronisation), and their gradients go back into one by its inverse.
//
//   projection [B, S/P, (Hq + 2 Hkv) * D]  ->  q [B, S, Hq/P, D], k and v [B, S, Hkv/P, D]  ->  gradient, as projection
//
// Ranks are threads here; the calls are the same in processes.
#include <ulysses/ulysses.h>

#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 4;
constexpr size_t kBatch = 2, kSeq = 64, kQueryHeads = 8, kKvHeads = 4, kHeadDim = 16;
constexpr size_t kHeads[3] = {kQueryHeads, kKvHeads, kKvHeads};
constexpr size_t kRow = (kQueryHeads + 2 * kKvHeads) * kHeadDim;  // elements of one position of the projection
constexpr size_t kFirst[3] = {0, kQueryHeads* kHeadDim, (kQueryHeads + kKvHeads) * kHeadDim};

// Element (b, s, head, d) of operand `which`; the exchange moves bits, so integers stand in for bfloat16.
uint16_t element(size_t which, size_t b, size_t s, size_t head, size_t d) {
  return static_cast<uint16_t>((((which * kBatch + b) * kSeq + s) * kQueryHeads + head) * kHeadDim + d);
}

bool ok(ulyssesResult_t result, int rank) {
  if (result != ulyssesSuccess) std::fprintf(stderr, "rank %d: %s\n", rank, ulyssesGetLastError());
  return result == ulyssesSuccess;
}

// Returns whether everything was as it should be.
bool runRank(int rank, ulyssesComm_t comm) {
  const size_t r = static_cast<size_t>(rank), mySeq = kSeq / kRanks;
  std::vector<uint16_t> projection(kBatch * mySeq * kRow);
  for (size_t b = 0; b < kBatch; ++b) {
    for (size_t s = 0; s < mySeq; ++s) {
      for (size_t which = 0; which < 3; ++which) {
        for (size_t i = 0; i < kHeads[which] * kHeadDim; ++i) {
          projection[(b * mySeq + s) * kRow + kFirst[which] + i] =
              element(which, b, r * mySeq + s, i / kHeadDim, i % kHeadDim);
        }
      }
    }
  }

  ulyssesA2ADesc_t descs[3];
  std::vector<uint16_t> outputs[3];
  const void* in[3];
  void* out[3];
  for (size_t which = 0; which < 3; ++which) {
    ulyssesA2ADesc_t desc = ULYSSES_A2A_DESC_INITIALIZER;
    desc.batch = kBatch;
    desc.seq = kSeq;
    desc.heads = kHeads[which];
    desc.headDim = kHeadDim;
    desc.inStride[0] =
        mySeq * kRow;  // from one batch entry to the next, one position to the next, one head to the next
    desc.inStride[1] = kRow;
    desc.inStride[2] = kHeadDim;
    descs[which] = desc;
    outputs[which].resize(kBatch * kSeq * kHeads[which] / kRanks * kHeadDim);
    in[which] = projection.data() + kFirst[which];
    out[which] = outputs[which].data();
  }
  ulyssesPlan_t forward = nullptr, backward = nullptr;
  if (!ok(ulyssesPlanCreate(&forward, 3, descs, comm), rank)) return false;
  bool good = ok(ulyssesPlanExecute(forward, in, out, nullptr), rank);
  for (size_t which = 0; which < 3 && good; ++which) {
    const size_t mine = kHeads[which] / kRanks;
    for (size_t i = 0; i < outputs[which].size(); ++i) {
      const size_t d = i % kHeadDim, head = i / kHeadDim % mine, s = i / kHeadDim / mine % kSeq;
      good = good && outputs[which][i] == element(which, i / kHeadDim / mine / kSeq, s, r * mine + head, d);
    }
  }

  // The backward: gradients of q, k, v (here their own values) into a gradient shaped as the projection.
  std::vector<uint16_t> gradient(projection.size());
  const void* gradientsIn[3] = {out[0], out[1], out[2]};
  void* gradientsOut[3] = {gradient.data() + kFirst[0], gradient.data() + kFirst[1], gradient.data() + kFirst[2]};
  // Not only where this rank's forward was right: the other ranks wait for it.
  const bool moved = ok(ulyssesPlanInverse(forward, nullptr, &backward), rank) &&
                     ok(ulyssesPlanExecute(backward, gradientsIn, gradientsOut, nullptr), rank);
  good = good && moved && gradient == projection;

  ulyssesPlanInfo_t info = ULYSSES_PLAN_INFO_INITIALIZER;
  ulyssesPlanGetInfo(forward, &info);
  if (rank == 0) std::printf("path %s%s%s\n", info.path, info.reason[0] ? ": " : "", info.reason);
  ulyssesPlanDestroy(forward);
  if (backward) ulyssesPlanDestroy(backward);
  return good;
}

}  // namespace

int main() {
  ulyssesComm_t comms[kRanks];
  ulyssesConfig_t config = ULYSSES_CONFIG_INITIALIZER;
  config.memory = ulyssesMemoryHost;
  if (!ok(ulyssesCommInitAllConfig(comms, kRanks, nullptr, &config), 0)) return 1;
  bool good[kRanks] = {};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&good, &comms, rank] { good[rank] = runRank(rank, comms[rank]); });
  }
  bool all = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks[static_cast<size_t>(rank)].join();
    all = all && good[rank];
  }
  for (ulyssesComm_t comm : comms) ulyssesCommDestroy(comm);
  std::printf("packed Q, K, V by one plan, and back: %s\n", all ? "exact" : "FAILED");
  return all ? 0 : 1;
}
