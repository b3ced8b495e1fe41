// Ranks for tests: threads of this process, or forked processes that may die.
#pragma once

#include <ulysses/ulysses.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/rendezvous_process.h"

namespace ulysses::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

enum class As { Threads, Processes };

// What one rank does; "" when all went well, else what did not.
using RankBody = std::function<std::string(int rank)>;
using CommBody = std::function<std::string(int rank, ulyssesComm_t comm)>;

// Runs body(0..nranks-1) at once and returns their texts. A forked rank that dies gives "killed by signal N" or
// "exited with N"; one that is not back after `seconds` is killed and gives "hung".
std::vector<std::string> runRanks(As as, int nranks, const RankBody& body, int seconds = 60);

// The same with a communicator made from one unique id, after `first` where there is one, and destroyed after the body.
std::vector<std::string> runComms(As as, int nranks, const CommBody& body, const ulyssesConfig_t* config = nullptr,
                                  int seconds = 60, const RankBody& first = {});

// An environment variable for the life of this object, and as it was after it; ranks read it as their communicator is made.
class Environment {
 public:
  Environment(const char* name, const std::string& value);
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment();

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

// All texts that are not empty, one a line: "" is what a test wants.
std::string failures(const std::vector<std::string>& texts);

std::string describeFailure(const char* file, int line, const char* what);

}  // namespace ulysses::testing

// In a RankBody: leaves with a text where `condition` does not hold.
#define EXPECT_RANK(condition) \
  if (!(condition)) return ::ulysses::testing::describeFailure(__FILE__, __LINE__, #condition)
#define EXPECT_OK(call) EXPECT_RANK((call) == ulyssesSuccess)
