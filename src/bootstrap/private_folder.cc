#include "bootstrap/private_folder.h"

#include <unistd.h>

#include <cstdlib>

#include "base/format.h"
#include "bootstrap/socket.h"

namespace ulysses {

Result<std::unique_ptr<PrivateFolder>> PrivateFolder::create() {
  const char* chosen = std::getenv("TMPDIR");
  std::string path = formatText("{}/ulysses-XXXXXX", chosen != nullptr && *chosen == '/' ? chosen : "/tmp");
  if (::mkdtemp(path.data()) == nullptr) return systemError(formatText("creating a folder {}", path));
  return std::unique_ptr<PrivateFolder>(new PrivateFolder(std::move(path)));
}

PrivateFolder::~PrivateFolder() {
  ::unlink(socketPath().c_str());
  ::rmdir(path_.c_str());
}

}  // namespace ulysses
