#include "base/format.h"

#include <cstring>

#include "base/mapping.h"
#include "base/process.h"
#include "bootstrap/gather_values.h"
#include "bootstrap/stage.h"
#include "window/provider.h"
#include "base/test_hooks.h"

namespace ulysses {
namespace {

// What a rank tells of the memory it brings. Ranks of one process share the object itself: one mapping, one address.
struct Announcement {
  ProcessToken process;
  uint64_t bytes = 0;
  const std::shared_ptr<Mapping>* object = nullptr;  // valid in that process, until the last stage
};

class HostProvider final : public WindowProvider {
 public:
  const char* name() const override { return "host"; }

  Status allocate(size_t bytes, ControlChannel& channel, std::vector<WindowPart>& parts, Deadline deadline) override {
    parts.clear();
    // Stage 1: memory.
    std::shared_ptr<Mapping> mine;
    Status status = hooks::injectedFailure(hooks::Stage::Allocate);
    if (status.ok() && bytes > 0) {
      Result<std::shared_ptr<Mapping>> created = Mapping::create(bytes);
      if (created.ok()) mine = created.take();
      else status = created.status();
    }
    ULYSSES_TRY(agreeStage(channel, status, deadline));

    // Stage 2: everybody's, opened.
    const Announcement hello{processToken(), bytes, &mine};
    std::vector<Announcement> hellos;
    ULYSSES_TRY(gatherValues(hello, hellos, channel, deadline));
    std::vector<std::vector<UniqueFd>> fds;
    const int fd = mine ? mine->fd() : -1;
    ULYSSES_TRY(channel.allgatherFds(std::span(&fd, mine ? 1 : 0), fds, deadline));
    std::vector<WindowPart> opened;
    status = hooks::injectedFailure(hooks::Stage::Open);
    if (status.ok()) status = openAll(hello.process, hellos, fds, opened);

    // Stage 3: commit. Until here every rank keeps its object alive.
    ULYSSES_TRY(agreeStage(channel, status, deadline));
    parts = std::move(opened);
    return {};
  }

 private:
  static Status openAll(const ProcessToken& me, const std::vector<Announcement>& hellos,
                        std::vector<std::vector<UniqueFd>>& fds, std::vector<WindowPart>& parts) {
    for (size_t r = 0; r < hellos.size(); ++r) {
      const Announcement& a = hellos[r];
      std::shared_ptr<Mapping> mapping;
      if (a.bytes > 0) {
        if (a.process == me) {
          mapping = *a.object;
        } else if (fds[r].size() == 1) {
          ULYSSES_ASSIGN(mapping, Mapping::open(std::move(fds[r][0]), a.bytes));
        } else {
          return Status(ulyssesSystemError, formatText("no descriptor came for the memory of rank {}", r));
        }
      }
      parts.push_back({mapping ? mapping->data() : nullptr, a.bytes, mapping});
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<WindowProvider> makeHostProvider() { return std::make_unique<HostProvider>(); }

}  // namespace ulysses
