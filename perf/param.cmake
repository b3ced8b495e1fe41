# param_gather_perf: persistent parameters.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS params_wan14b.csv)
file(READ params_wan14b.csv ULYSSES_MODELS)
configure_file(param/models.cc.in param/models.cc @ONLY)
add_library(perf_param OBJECT param_gather_perf.cc param/model.cc param/forward.cc param/gather.cc
  flat/flat_collective.cc ${CMAKE_CURRENT_BINARY_DIR}/param/models.cc)
target_link_libraries(perf_param PUBLIC perf_common)
add_executable(param_gather_perf common/measure.cc)
target_link_libraries(param_gather_perf PRIVATE perf_param)
set_target_properties(param_gather_perf PROPERTIES INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
install(TARGETS param_gather_perf RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

if(ULYSSES_BUILD_TESTS)
  damaged(param_gather_perf)
  target_link_libraries(param_gather_perf_damaged PRIVATE perf_param)
  add_test(NAME "perf: a model's forwards" COMMAND param_gather_perf -t 3 --model wan14b --scale 1/65536 --forwards 3)
  add_test(NAME "perf: parameter gathers" COMMAND param_gather_perf -t 2 -b 1K -e 64K -f 8 --baseline --rounds 3)
  set_tests_properties("perf: a model's forwards" "perf: parameter gathers" PROPERTIES LABELS perf TIMEOUT 300)
endif()
