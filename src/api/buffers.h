// What a call's buffers must be, before any is touched.
#pragma once

#include "plan/schedule.h"

namespace ulysses {

// What is wrong with the buffers on this rank; in and out have schedule.operands entries.
Status checkBuffers(const Schedule& schedule, const void* const in[], void* const out[]);

}  // namespace ulysses
