// A stage of setup whose outcome is agreed.
#pragma once

#include "bootstrap/bootstrap.h"

namespace ulysses {

// Collective: shows this rank's outcome of a stage and returns the first failing rank's on all. The text names the rank.
Status agreeStage(ControlChannel& channel, const Status& mine, Deadline deadline);

}  // namespace ulysses
