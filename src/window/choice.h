// Which provider maps windows of device memory. Pure: the same on all ranks that hold the same facts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/parameters.h"
#include "topology/nccl_library.h"

namespace ulysses {

// What one rank asks for and has. Plain bytes.
struct WindowFacts {
  WindowsFrom from = WindowsFrom::Auto;  // ULYSSES_WINDOWS
  NcclFacts nccl;
};

struct WindowChoice {
  bool nccl = false;
  std::string reason;  // why not NCCL; "" where it is
};

// NCCL between GPUs of the ranks' own, where it can. A rank that asks for ipc has it on all; one that asks for nccl has
// it tried also where ranks share a GPU.
WindowChoice chooseWindows(std::span<const WindowFacts> ranks, int ranksPerDevice);

// Why the LSA teams that NCCL tells, by rank, are not one of all ranks in their order; "" where they are.
std::string whyNotOneTeam(std::span<const NcclLibrary::Team> teams);

}  // namespace ulysses
