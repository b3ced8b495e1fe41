# ulysses_topo looks inside the library, so it is made of the library's objects.
add_executable(ulysses_topo ulysses_topo.cc)
target_link_libraries(ulysses_topo PRIVATE ulysses_objects_product ulysses_objects_common
  $<TARGET_NAME_IF_EXISTS:ulysses_device> fmt::fmt-header-only CLI11::CLI11)
install(TARGETS ulysses_topo RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

if(ULYSSES_BUILD_TESTS)
  function(ulysses_topo_test name pattern)
    add_test(NAME "topo: ${name}" COMMAND ulysses_topo ${ARGN})
    set_tests_properties("topo: ${name}" PROPERTIES LABELS unit PASS_REGULAR_EXPRESSION "${pattern}"
      ENVIRONMENT "ULYSSES_TOPO_FILE=;ULYSSES_MEMORY=auto")
  endfunction()
  set(FACTS ${PROJECT_SOURCE_DIR}/tests/data/topology)
  ulysses_topo_test("this machine" "Verdict: ")
  ulysses_topo_test("facts of this machine" "\"format\": \"ulysses-facts\"" --json)
  ulysses_topo_test("environment" "ULYSSES_TOPO_FILE" --env)
  ulysses_topo_test("matrix" "0 +- +NVS +NVS +NVS.*Verdict: fused.*8 ranks on 8 GPUs"
    --facts ${FACTS}/nvswitch_8_gpus.json)
  ulysses_topo_test("direct links" "2 +NV1 +NV2 +- +NV2 +x +x +NV1 +x.*Verdict: fallback"
    --facts ${FACTS}/partial_nvlink_cube_mesh.json)
  ulysses_topo_test("a facts file that is not there" "/nonexistent: the facts file can't be opened"
    --facts /nonexistent)
endif()
