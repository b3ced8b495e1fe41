// Agreement over the control channel: one allgather a round, decided by the channel's root.
#include "base/format.h"

#include "bootstrap/agreement.h"
#include "bootstrap/control_page.h"

namespace ulysses {
namespace {

class WireAgreement final : public Agreement {
 public:
  explicit WireAgreement(ControlChannel& channel) : channel_(channel) {}

  Status round(std::span<const std::byte> record, Deadline deadline) override {
    if (!sticky_.ok()) return sticky_;
    sticky_ = channel_.allgather(Bytes(record.begin(), record.end()), records_, deadline);
    // What came is as long as the peer says. Whoever reads a record finds zeros behind it, as on the page.
    for (Bytes& theirs : records_) theirs.resize(ControlPage::kRecordBytes);
    return sticky_;
  }
  const std::byte* record(int rank) const override { return records_[static_cast<size_t>(rank)].data(); }

  // Without shared memory a hit is shown in the next record alone (the contract carries the hits since the last round).
  Status post() override { return sticky_; }

  Status asyncError() override {
    if (!sticky_.ok()) return sticky_;
    for (int r = 0; r < channel_.nranks(); ++r)
      if (r != channel_.rank() && channel_.dead(r))
        return Status(ulyssesRemoteError, formatText("rank {} has died or left: its connection is closed", r));
    return {};
  }

  // The peers learn it from the channel, which goes with the communicator.
  void abort() override {}
  void depart() override {}
  Status idle(int, Deadline) override { return {}; }
  void ring(int) override {}

 private:
  ControlChannel& channel_;
  std::vector<Bytes> records_;
  Status sticky_;
};

}  // namespace

std::unique_ptr<Agreement> makeWireAgreement(ControlChannel& channel) {
  return std::make_unique<WireAgreement>(channel);
}

}  // namespace ulysses
