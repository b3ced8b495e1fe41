#ifdef ULYSSES_HAVE_CUDA
// Device memory as windows.
#include <cstring>

#include "base/cuda_support.h"
#include "base/format.h"
#include "base/test_hooks.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"
#include "window/ipc.h"
#include "window/provider.h"

namespace ulysses {
namespace {

// What a rank tells of the memory it brings; its own object for ranks of its process, valid until the last stage.
struct Announcement {
  DeviceMemory::Offer offer;
  uint64_t bytes = 0;
  const std::shared_ptr<DeviceMemory>* object = nullptr;
};

class DeviceProvider final : public WindowProvider {
 public:
  explicit DeviceProvider(int device) : device_(device) {}
  const char* name() const override { return "ipc"; }
  bool unmapsAnytime() const override { return false; }

  Status allocate(size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline) override {
    return share(bytes, channel, parts, deadline, [&](auto* mine) { return create(bytes, mine); });
  }

  Status adopts() const override { return {}; }
  Status adopt(void* ptr, size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline) override {
    return share(bytes, channel, parts, deadline, [&](auto* mine) -> Status {
      ULYSSES_ASSIGN(*mine, DeviceMemory::adopt(ptr, bytes, device_));
      return {};
    });
  }

 private:
  // Collective. make(&mine) gives this rank's memory.
  template <class Make>
  Status share(size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline, const Make& make) {
    parts.clear();
    std::shared_ptr<DeviceMemory> mine;
    Status status = hooks::injectedFailure(hooks::Stage::Allocate);
    if (status.ok() && bytes > 0) status = make(&mine);
    std::vector<WindowPart> opened;
    // Undone on all ranks before any goes on: unmapping may wait for kernels, and those of the fallback for all ranks.
    const auto undone = [&](Status failed) {
      opened.clear();
      mine.reset();
      (void)agreeStage(channel, {}, deadline);
      return failed;
    };
    status = agreeStage(channel, status, deadline);
    if (!status.ok()) return undone(std::move(status));

    Announcement hello;
    hello.bytes = bytes;
    hello.object = &mine;
    if (mine) hello.offer = mine->offer();
    hello.offer.process = processToken();
    std::vector<Announcement> hellos;
    ULYSSES_TRY(gatherValues(hello, hellos, channel, deadline));
    std::vector<std::vector<UniqueFd>> fds;
    const int fd = mine ? mine->fd() : -1;
    status = channel.allgatherFds(std::span(&fd, fd >= 0 ? 1 : 0), fds, deadline);
    if (!status.ok()) return undone(std::move(status));  // agreed
    status = hooks::injectedFailure(hooks::Stage::Open);
    if (status.ok()) status = openAll(channel.rank(), mine, hellos, fds, opened);

    // After this stage no rank makes a call that could wait for a kernel, and kernels may be launched again.
    status = agreeStage(channel, status, deadline);
    if (!status.ok()) return undone(std::move(status));
    parts = std::move(opened);
    return {};
  }

  // New memory holds zeros, as host windows do: flags rely on it.
  Status create(size_t bytes, std::shared_ptr<DeviceMemory>* memory) const {
    ULYSSES_ASSIGN(*memory, DeviceMemory::create(bytes, device_));
    const DeviceGuard guard(device_);
    ULYSSES_TRY(guard.status());
    return clearNow((*memory)->data(), bytes);
  }

  Status openAll(int rank, const std::shared_ptr<DeviceMemory>& mine, const std::vector<Announcement>& hellos,
                 std::vector<std::vector<UniqueFd>>& fds, std::vector<WindowPart>& parts) const {
    for (size_t r = 0; r < hellos.size(); ++r) {
      const Announcement& a = hellos[r];
      std::shared_ptr<DeviceMemory> memory;
      if (static_cast<int>(r) == rank) {
        memory = mine;
      } else if (a.bytes > 0 && a.offer.process == processToken()) {
        ULYSSES_ASSIGN(memory, DeviceMemory::open(*a.object, device_));
      } else if (a.bytes > 0) {
        ULYSSES_ASSIGN(memory, DeviceMemory::open(a.offer, fds[r].empty() ? UniqueFd() : std::move(fds[r][0]), device_));
      }
      parts.push_back({memory ? memory->data() : nullptr, a.bytes, memory});
    }
    return {};
  }

  const int device_;
};

}  // namespace

std::unique_ptr<WindowProvider> makeDeviceProvider(int device) { return std::make_unique<DeviceProvider>(device); }

}  // namespace ulysses
#endif
