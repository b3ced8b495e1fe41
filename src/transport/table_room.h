// Room for work tables, and a stream to fill them by, from before the program fills the device's memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/cuda_support.h"
#include "device/work.h"
#include "device/work_table.h"

namespace ulysses {

class TableRoom {
 public:
  // For tables of at most a block for every pair of ranks.
  Status reserve(size_t tables, int nranks) {
    const size_t bytes = sizeof(device::WorkTable) + 2 * static_cast<size_t>(nranks) * sizeof(device::Block);
    each_ = (bytes + device::kUnit - 1) / device::kUnit * device::kUnit;
    left_ = tables;
    ULYSSES_ASSIGN(memory_, deviceBuffer(tables * each_));
    ULYSSES_ASSIGN(stream_, ownStream());
    return {};
  }

  bool fits(const std::vector<unsigned char>& table) const { return left_ != 0 && table.size() <= each_; }
  // Complete on return. The room lives as long as any table in it.
  Status upload(const std::vector<unsigned char>& table, std::shared_ptr<void>* at) {
    std::byte* place = static_cast<std::byte*>(memory_.get()) + --left_ * each_;
    *at = std::shared_ptr<void>(memory_, place);
    ULYSSES_CUDA(cudaMemcpyAsync(place, table.data(), table.size(), cudaMemcpyHostToDevice, stream_.get()));
    return cudaStatus(cudaStreamSynchronize(stream_.get()), "copying a work table");
  }

 private:
  std::shared_ptr<void> memory_;
  OwnStream stream_;
  size_t each_ = 0, left_ = 0;
};

}  // namespace ulysses
