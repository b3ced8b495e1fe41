// The few questions that only CUDA can answer: which GPUs this process sees, in its own numbering, and peer access.
#pragma once

#include "topology/facts.h"

#include <optional>

namespace ulysses {

// Functions of libcuda under their own names, declared here because the toolkit may be missing where this is built.
struct CudaDriver {
  using Result = int;  // CUresult
  using Device = int;  // CUdevice
  struct Uuid {
    unsigned char bytes[16];
  };

  Result (*cuInit)(unsigned flags) = nullptr;
  Result (*cuDeviceGetCount)(int* count) = nullptr;
  Result (*cuDeviceGet)(Device* device, int ordinal) = nullptr;
  Result (*cuDeviceGetName)(char* name, int length, Device device) = nullptr;
  Result (*cuDeviceGetUuid)(Uuid* uuid, Device device) = nullptr;  // cuDeviceGetUuid_v2 where there is one
  Result (*cuDeviceGetAttribute)(int* value, int attribute, Device device) = nullptr;
  Result (*cuDeviceGetPCIBusId)(char* id, int length, Device device) = nullptr;
  Result (*cuDeviceCanAccessPeer)(int* can, Device device, Device peer) = nullptr;
  Result (*cuGetErrorString)(Result result, const char** text) = nullptr;
};

// Nothing where the machine has no libcuda.
std::optional<CudaDriver> loadCudaDriver();

// GPUs that CUDA shows to this process; a driver that does not start shows none, and the query goes to failedQueries.
int countGpus(const CudaDriver& cuda, std::vector<FailedQuery>& failed);

// Adds to `facts` the GPU count and GPU number `ordinal` with its peer access to every other visible GPU. A GPU whose
// UUID can't be had is left out: without identity it can't be compared with anybody's.
void queryCuda(const CudaDriver& cuda, int ordinal, RankFacts& facts);

// "GPU-" and the UUID in the usual groups of digits.
std::string gpuUuidText(const unsigned char (&bytes)[16]);

}  // namespace ulysses
