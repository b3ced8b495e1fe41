# CUDA, where it is wanted and found. Sets ULYSSES_HAS_CUDA and makes ulysses_device, the kernels and their launchers.
set(ULYSSES_HAS_CUDA OFF)
if(NOT ULYSSES_CUDA STREQUAL OFF)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 120)  # the last with PTX, for what comes later
  endif()
  if(NOT CMAKE_CUDA_COMPILER)  # it may be off PATH: in /usr/local, or where `scripts/setup --cuda` put it
    list(GET CMAKE_CUDA_ARCHITECTURES -1 NEWEST)
    string(REGEX REPLACE "-.*" "" NEWEST ${NEWEST})
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/find_cuda ${NEWEST}
      OUTPUT_VARIABLE NVCC OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE PASSED_OVER)
    if(NVCC)
      set(CMAKE_CUDA_COMPILER ${NVCC} CACHE FILEPATH "CUDA compiler")
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(ULYSSES_HAS_CUDA ON)
    file(GLOB WHEELS ${PROJECT_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/nvidia/nccl)
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${WHEELS}/include)
  elseif(ULYSSES_CUDA STREQUAL ON)
    message(FATAL_ERROR "ULYSSES_CUDA=ON, but no CUDA compiler was found that builds for ${NEWEST}. Start "
      "scripts/setup --cuda, put nvcc on PATH, or set CMAKE_CUDA_COMPILER.\n${PASSED_OVER}")
  else()
    message(STATUS "Without CUDA: no compiler was found that builds for ${NEWEST}. ${PASSED_OVER}")
  endif()
endif()

if(ULYSSES_HAS_CUDA)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  # CMake 3.25 drops C++20 for nvcc silently: it is passed by hand, and CMake kept from adding a standard behind it.
  set(CMAKE_CUDA_EXTENSIONS ON)
  add_library(ulysses_cuda_options INTERFACE)
  target_compile_options(ulysses_cuda_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>)
  if(ULYSSES_WERROR)
    target_compile_options(ulysses_cuda_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Werror>)
  endif()

  add_library(ulysses_device OBJECT ${PROJECT_SOURCE_DIR}/device/exchange.cu ${PROJECT_SOURCE_DIR}/device/flags.cu
    ${PROJECT_SOURCE_DIR}/device/staging_copy.cu ${PROJECT_SOURCE_DIR}/device/cast.cu)
  target_include_directories(ulysses_device PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(ulysses_device PRIVATE ulysses_cuda_options PUBLIC CUDA::cudart_static)
endif()
