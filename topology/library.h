// Libraries that may or may not be on the machine, looked up at run time.
#pragma once

#include <dlfcn.h>

#include <initializer_list>

namespace ulysses {

// The first of `names` that loads, or null; a copy already in the process is taken first. It is never unloaded:
// drivers keep threads and exit handlers.
inline void* openLibrary(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

// Fills one entry of a function table; null where this version of the library lacks the function.
template <class Function>
void lookUp(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace ulysses
