# What every target of this project is compiled with.
find_package(Threads REQUIRED)

add_library(ulysses_options INTERFACE)
target_compile_features(ulysses_options INTERFACE cxx_std_20)
target_compile_options(ulysses_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # gcc 12 sees overlapping copies inside std::string where there are none.
  target_compile_options(ulysses_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(ULYSSES_WERROR)
  target_compile_options(ulysses_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
if(ULYSSES_SANITIZE)
  target_compile_options(ulysses_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${ULYSSES_SANITIZE} -fno-omit-frame-pointer -g>)
  if(ULYSSES_SANITIZE MATCHES undefined)
    # C callers may put any number into an enum; the library checks and refuses it.
    target_compile_options(ulysses_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize=enum>)
  endif()
  target_link_options(ulysses_options INTERFACE -fsanitize=${ULYSSES_SANITIZE})
  if(ULYSSES_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # gcc cannot instrument fences; the atomics beside them carry the order that TSan follows.
    target_compile_options(ulysses_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()
if(ULYSSES_BUILD_FUZZ)
  target_compile_options(ulysses_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>)
endif()
target_link_libraries(ulysses_options INTERFACE Threads::Threads)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
