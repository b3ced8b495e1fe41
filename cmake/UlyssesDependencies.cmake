# Finds what the project is built with. hwloc and fmt are needed; MPI, CUDA, Catch2, CLI11 and nlohmann-json where
# their part is built.
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
find_package(fmt REQUIRED)

if(NOT ULYSSES_MPI STREQUAL OFF)
  find_package(MPI COMPONENTS C)
  if(ULYSSES_MPI STREQUAL ON AND NOT MPI_C_FOUND)
    message(FATAL_ERROR "ULYSSES_MPI=ON, but no MPI was found. Install libopenmpi-dev and openmpi-bin.")
  endif()
endif()
