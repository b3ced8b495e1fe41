// Catch2 of either major version, and a skip that ctest sees as one.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#define ULYSSES_SKIP(reason) SKIP(reason)
#else
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
// Version 2 knows no skip: leave with the code that ctest maps to "skipped" (each test case runs in its own process).
#define ULYSSES_SKIP(reason)                                                    \
  do {                                                                          \
    std::fprintf(stderr, "SKIPPED: %s\n", std::string(reason).c_str());         \
    std::fflush(nullptr);                                                       \
    std::_Exit(4);                                                              \
  } while (0)
#endif
