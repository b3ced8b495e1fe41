// One thread that drives several ranks: its calls are kept between GroupStart and GroupEnd and run there, all
// communicators at once.
#pragma once

#include <functional>

#include "base/status.h"

namespace ulysses::group {

void start();
// Runs what was kept, when this ends the outermost group; the first error in the order of the calls.
Status end();
bool active();
// In a call that a group runs: it returns when its data is there.
bool running();

// Keeps a call. Calls with one key run in order; different keys run at once. Null: a key of its own.
void add(const void* key, std::function<Status()> call);

}  // namespace ulysses::group
