#include "topology/probe.h"

#include <sys/stat.h>

#include "base/format.h"
#include "base/process.h"
#include "topology/cuda_driver.h"
#include "topology/hwloc.h"
#include "topology/nccl_library.h"
#include "topology/nvml.h"

namespace ulysses {
namespace {

uint64_t namespaceInode(const char* path) {
  struct stat info {};
  return stat(path, &info) == 0 ? info.st_ino : 0;
}

void queryGpu(int cudaDevice, RankFacts& facts) {
  const std::optional<CudaDriver> cuda = loadCudaDriver();
  if (!cuda) {
    facts.failedQueries.push_back(
        {"libcuda.so.1", formatText("device {} was asked for, and the driver's library can't be loaded", cudaDevice)});
    return;
  }
  queryCuda(*cuda, cudaDevice, facts);
  if (!facts.gpu) return;
  if (const std::optional<Nvml> nvml = loadNvml())
    queryNvml(*nvml, facts);
  else
    facts.failedQueries.push_back(
        {"libnvidia-ml.so.1", "the library can't be loaded; in a container, add the driver capability 'utility'"});
  const std::optional<NcclLibrary> nccl = loadNccl();
  facts.ncclVersion = nccl ? nccl->version : 0;
}

}  // namespace

RankFacts probe(int cudaDevice) {
  RankFacts facts;
  facts.hostId = hostIdentity();
  facts.hostName = hostName();
  facts.namespaces.mnt = namespaceInode("/proc/self/ns/mnt");
  facts.namespaces.pid = namespaceInode("/proc/self/ns/pid");
  facts.namespaces.net = namespaceInode("/proc/self/ns/net");
  facts.namespaces.ipc = namespaceInode("/proc/self/ns/ipc");
  if (cudaDevice >= 0) queryGpu(cudaDevice, facts);
  queryHwloc(facts);
  return facts;
}

int visibleGpuCount() {
  const std::optional<CudaDriver> cuda = loadCudaDriver();
  std::vector<FailedQuery> failed;
  return cuda ? countGpus(*cuda, failed) : 0;
}

}  // namespace ulysses
