// A folder for a Unix socket that has to have a path.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace ulysses {

// Below TMPDIR, else /tmp; only this user may enter it. It goes with this object, and with it the socket. Best effort:
// a process that is killed meanwhile leaves it behind.
class PrivateFolder {
 public:
  static Result<std::unique_ptr<PrivateFolder>> create();
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  std::string socketPath() const { return path_ + "/socket"; }

 private:
  explicit PrivateFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace ulysses
