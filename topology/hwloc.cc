#include "topology/hwloc.h"

#include <hwloc.h>

#include <cstdlib>
#include <memory>

namespace ulysses {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;

Topology load(bool withIo) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Topology topology(raw);
  // hwloc's GPU plugins start the GPU runtimes in this process, which a host-memory run must not do. Its PCI plugin
  // leaks, and on Linux hwloc lists the devices without it.
  for (const char* plugin : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl", "pci"})
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  hwloc_topology_set_io_types_filter(raw, withIo ? HWLOC_TYPE_FILTER_KEEP_IMPORTANT : HWLOC_TYPE_FILTER_KEEP_NONE);
  if (hwloc_topology_load(raw) != 0) return nullptr;
  return topology;
}

std::string listText(hwloc_const_bitmap_t set) {
  char* raw = nullptr;
  if (!set || hwloc_bitmap_list_asprintf(&raw, set) < 0) return {};
  std::string text = raw;
  std::free(raw);
  return text;
}

std::string boundProcessors(hwloc_topology_t topology) {
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> set(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  if (!set || hwloc_get_cpubind(topology, set.get(), HWLOC_CPUBIND_THREAD) != 0) return {};
  return listText(set.get());
}

}  // namespace

void queryHwloc(RankFacts& facts) {
  const Topology topology = load(facts.gpu.has_value());
  if (!topology) {
    facts.warnings.push_back("hwloc could not read this machine's topology: processors and NUMA nodes are unknown");
    return;
  }
  if (!hwloc_topology_is_thissystem(topology.get())) {
    facts.warnings.push_back(
        "hwloc was told to describe another machine (HWLOC_XMLFILE or HWLOC_SYNTHETIC is set): "
        "processors and NUMA nodes of this one are unknown");
    return;
  }
  facts.numaNodes = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE);
  facts.cpuset = boundProcessors(topology.get());
  if (facts.cpuset.empty()) facts.warnings.push_back("hwloc could not tell which processors this rank may run on");
  if (!facts.gpu) return;

  const hwloc_obj_t pci = hwloc_get_pcidev_by_busidstring(topology.get(), facts.gpu->pciId.c_str());
  const hwloc_obj_t near = pci ? hwloc_get_non_io_ancestor_obj(topology.get(), pci) : nullptr;
  if (!near) {
    facts.warnings.push_back("hwloc does not list the GPU at " + facts.gpu->pciId +
                             " (no I/O objects in this topology?): its NUMA node is unknown");
    return;
  }
  facts.gpu->cpuset = listText(near->cpuset);
  // More than one node above the GPU means that the firmware does not say which is near.
  if (near->nodeset && hwloc_bitmap_weight(near->nodeset) == 1) facts.gpu->numaNode = hwloc_bitmap_first(near->nodeset);
}

}  // namespace ulysses
