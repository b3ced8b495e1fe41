#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/process_group.h"
#include "common/single_process.h"

namespace ulysses::perf {
namespace {

// The name of an enumerated control variable's value, or nothing.
std::string controlVariable(const char* name) {
  std::string value;
  int provided = 0, index = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return value;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS) {
    char text[256] = {};
    int length = sizeof(text), verbosity = 0, bind = 0, scope = 0, count = 0, item = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_T_enum names = MPI_T_ENUM_NULL;
    MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
    MPI_T_cvar_get_info(index, text, &length, &verbosity, &type, &names, nullptr, nullptr, &bind, &scope);
    if (names != MPI_T_ENUM_NULL && MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
      int number = 0;
      length = sizeof(text);
      MPI_T_cvar_read(handle, &item);
      MPI_T_enum_get_info(names, &count, text, &length);
      for (int i = 0; i < count && value.empty(); ++i) {
        length = sizeof(text);
        MPI_T_enum_get_item(names, i, &number, text, &length);
        if (number == item) value = text;
      }
      MPI_T_cvar_handle_free(&handle);
    }
  }
  MPI_T_finalize();
  return value;
}

class MpiProcesses final : public ProcessGroup {
 public:
  MpiProcesses() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~MpiProcesses() override { MPI_Finalize(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string description() const override {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(version, &length);
    std::string text(version, static_cast<size_t>(length));
    text.resize(std::min(text.find_first_of(",\n"), text.size()));
    // Open MPI's large messages within a host: one copy where the kernel lets it read a peer's memory, else two.
    const std::string singleCopy = controlVariable("btl_vader_single_copy_mechanism");
    return singleCopy.empty() ? text : text + ", single-copy mechanism " + singleCopy;
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void allgather(const void* mine, void* all, size_t bytes) override {
    MPI_Allgather(mine, static_cast<int>(bytes), MPI_BYTE, all, static_cast<int>(bytes), MPI_BYTE, MPI_COMM_WORLD);
  }
  [[noreturn]] void abandon(int exitCode) override {
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, exitCode);
    std::_Exit(exitCode);
  }

 private:
  int rank_ = 0, size_ = 1;
};

}  // namespace

std::unique_ptr<ProcessGroup> openProcessGroup() {
  if (launchedByMpi()) return std::make_unique<MpiProcesses>();
  return std::make_unique<SingleProcess>();
}

}  // namespace ulysses::perf
