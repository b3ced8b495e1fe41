// What one rank of a GPU test owns: a stream, a channel, a window for direct outputs, on the GPU that it is dealt.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "device/exchange.h"
#include "device/work_table.h"
#include "gpu/support/gpus.h"
#include "gpu/support/party.h"
#include "layout/operand.h"

namespace ulysses::testing {

void check(cudaError_t error, const char* what);

// Device memory of this rank alone, freed at the end.
std::shared_ptr<void> deviceBytes(size_t bytes);

struct RankSizes {
  size_t windowBytes = 0;  // for outputs
  size_t stagingBytes = 0;
  size_t lineBytes = 0;  // per pair
};

class GpuRank {
 public:
  GpuRank(Party& party, const RankSizes& sizes);
  ~GpuRank();
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  Party& party() const { return party_; }
  int rank() const { return party_.rank(); }
  int nranks() const { return party_.nranks(); }
  cudaStream_t stream() const { return stream_; }
  device::HostWords& host() const { return *host_; }
  const device::Channel& channel() const { return channel_; }
  std::byte* window() const { return window(rank()); }
  std::byte* window(int ofRank) const { return window_[static_cast<size_t>(ofRank)]->data(); }  // as mapped here

  // As if `epoch` launches had been made. Collective.
  void presetEpoch(uint32_t epoch);

  // Waits for the stream; aborts the kernels and throws when it takes longer.
  void finish(int timeoutMs = 20000);

 private:
  Party& party_;
  std::vector<std::shared_ptr<DeviceMemory>> flags_, staging_, window_;
  std::shared_ptr<void> epoch_, rows_;
  device::HostWords* host_ = nullptr;
  device::Channel channel_{};
  cudaStream_t stream_ = nullptr;
};

// A work table in device memory.
std::shared_ptr<void> uploadTable(const std::vector<unsigned char>& table);

}  // namespace ulysses::testing
