#include <cuda_runtime.h>

#include <bit>
#include <map>

#include "soak/buffer.h"

namespace ulysses::testing {
namespace {

struct Place {
  uint64_t seqOf, headsOf, D, firstSeq, seq, firstHead, heads, salt, n;
};

Place placeOf(const Content& c) {
  return {c.shape.S,     c.shape.H,      c.shape.D, c.seq.first, c.seq.second,
          c.heads.first, c.heads.second, c.salt,    c.elements()};
}

template <class Element>
__device__ Element elementAt(const Place& p, uint64_t i) {
  const uint64_t d = i % p.D, h = i / p.D % p.heads, s = i / p.D / p.heads % p.seq, b = i / p.D / p.heads / p.seq;
  return static_cast<Element>(((b * p.seqOf + p.firstSeq + s) * p.headsOf + p.firstHead + h) * p.D + d + p.salt);
}

template <class Element>
__global__ void fill(Element* to, Place p) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < p.n; i += uint64_t{gridDim.x} * blockDim.x)
    to[i] = elementAt<Element>(p, i);
}
template <class Element>
__global__ void findWrong(const Element* at, Place p, int* wrong) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < p.n; i += uint64_t{gridDim.x} * blockDim.x)
    if (at[i] != elementAt<Element>(p, i)) *wrong = 1;
}

template <class Work>
void asElements(size_t bytes, const Work& work) {
  if (bytes == 1)
    work(uint8_t{});
  else if (bytes == 2)
    work(uint16_t{});
  else if (bytes == 4)
    work(uint32_t{});
  else
    work(uint64_t{});
}

// Few enough that the ranks' own kernels find their place beside them.
constexpr int kMostBlocks = 64, kThreads = 256;
unsigned blocksFor(uint64_t n) {
  return static_cast<unsigned>(std::min<uint64_t>((n + kThreads - 1) / kThreads, kMostBlocks));
}

// By powers of two. Ranks are processes of one thread.
std::multimap<size_t, void*> kept;
size_t sizeFor(size_t bytes) {
  return std::bit_ceil(std::max<size_t>(bytes, 256));
}

int* flag() {
  static int* const memory = [] {
    void* made = nullptr;
    return cudaHostAlloc(&made, sizeof(int), cudaHostAllocMapped) == cudaSuccess ? static_cast<int*>(made) : nullptr;
  }();
  return memory;
}

}  // namespace

void* takeOnDevice(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (const auto found = kept.find(sizeFor(bytes)); found != kept.end()) {
    void* const memory = found->second;
    kept.erase(found);
    return memory;
  }
  void* made = nullptr;
  return cudaMalloc(&made, sizeFor(bytes)) == cudaSuccess ? made : nullptr;
}

void giveBackOnDevice(void* memory, size_t bytes) {
  kept.emplace(sizeFor(bytes), memory);
}

void fillOnDevice(void* to, const Content& content) {
  const Place p = placeOf(content);
  if (p.n == 0) return;
  asElements(content.shape.elementBytes,
             [&](auto element) { fill<<<blocksFor(p.n), kThreads>>>(static_cast<decltype(element)*>(to), p); });
}

size_t usedOnDevice() {
  size_t free = 0, all = 0;
  return cudaMemGetInfo(&free, &all) == cudaSuccess ? all - free : 0;
}

void chooseDevice(int rank) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) (void)cudaSetDevice(rank % count);
}

bool heldOnDevice(const void* at, const Content& content) {
  int* const wrong = flag();
  if (at == nullptr || wrong == nullptr) return false;
  *wrong = 0;
  const Place p = placeOf(content);
  asElements(content.shape.elementBytes, [&](auto element) {
    findWrong<<<blocksFor(p.n), kThreads>>>(static_cast<const decltype(element)*>(at), p, wrong);
  });
  return cudaDeviceSynchronize() == cudaSuccess && *wrong == 0;
}

}  // namespace ulysses::testing
