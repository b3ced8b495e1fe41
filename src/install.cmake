# The static library and what an outside project finds: CMake packages and pkg-config files, free of absolute paths.
include(CMakePackageConfigHelpers)

# By name, so that a project in C alone can link it.
set(PRIVATE_LIBRARIES stdc++ m ${CMAKE_DL_LIBS})
if(ULYSSES_HAS_CUDA)
  list(APPEND PRIVATE_LIBRARIES rt)
endif()

# One object with everything in it, of which only the C API is visible: a version script hides nothing in an archive.
# Not of builds with sanitizers, which nobody installs.
if(NOT ULYSSES_SANITIZE)
  find_program(ULYSSES_LD NAMES ld REQUIRED)
  find_program(ULYSSES_OBJCOPY NAMES objcopy REQUIRED)
  set(OBJECTS $<TARGET_OBJECTS:ulysses_objects_common> $<TARGET_OBJECTS:ulysses_objects_product>)
  if(ULYSSES_HAS_CUDA)
    list(APPEND OBJECTS $<TARGET_OBJECTS:ulysses_device> $<TARGET_FILE:CUDA::cudart_static>)
  endif()
  set(MERGED ${CMAKE_CURRENT_BINARY_DIR}/ulysses_static.o)
  add_custom_command(OUTPUT ${MERGED}
    # Without groups: a local symbol must not vanish because the program has a group of the same name.
    COMMAND ${ULYSSES_LD} -r --force-group-allocation -o ${MERGED} ${OBJECTS}
    COMMAND ${ULYSSES_OBJCOPY} --wildcard --keep-global-symbol=ulysses* ${MERGED}
    DEPENDS ulysses_objects_common ulysses_objects_product ${OBJECTS} COMMENT "Merging the objects of libulysses.a"
    COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties(${MERGED} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(ulysses_static STATIC ${MERGED})
  set_target_properties(ulysses_static PROPERTIES OUTPUT_NAME ulysses LINKER_LANGUAGE C)
  target_include_directories(ulysses_static PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(ulysses_static INTERFACE PkgConfig::HWLOC Threads::Threads ${PRIVATE_LIBRARIES})
endif()

# libulysses_mpi finds libulysses beside it, wherever both are moved.
if(TARGET ulysses_mpi)
  set_target_properties(ulysses_mpi PROPERTIES INSTALL_RPATH "\$ORIGIN")
endif()

set(PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ulysses)
file(GLOB ULYSSES_HEADERS ${PROJECT_SOURCE_DIR}/include/ulysses/*.h)
if(NOT TARGET ulysses_mpi)
  list(FILTER ULYSSES_HEADERS EXCLUDE REGEX "ulysses_mpi\\.h$")
endif()
install(FILES ${ULYSSES_HEADERS} ${PROJECT_BINARY_DIR}/include/ulysses/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ulysses)

# Each target has an export of its own: what one of them needs must not be missed where another is wanted.
foreach(target ulysses ulysses_static ulysses_mpi)
  if(TARGET ${target})
    add_library(ulysses::${target} ALIAS ${target})
    install(TARGETS ${target} EXPORT ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT ${target} NAMESPACE ulysses:: FILE ${target}-targets.cmake DESTINATION ${PACKAGE_DIR})
  endif()
endforeach()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ulysses-config.cmake.in ulysses-config.cmake
  INSTALL_DESTINATION ${PACKAGE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(ulysses-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ulysses-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/ulysses-config-version.cmake
        DESTINATION ${PACKAGE_DIR})

# pkg-config knows the folder of its file; the prefix is as far above as the library folder is deep.
file(RELATIVE_PATH PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" PREFIX_FROM_PC "${PREFIX_FROM_PC}")
list(TRANSFORM PRIVATE_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE PRIVATE_FLAGS)
list(JOIN PRIVATE_FLAGS " " PRIVATE_FLAGS)
foreach(target ulysses ulysses_mpi)
  if(TARGET ${target})
    configure_file(${PROJECT_SOURCE_DIR}/cmake/${target}.pc.in ${target}.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${target}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  endif()
endforeach()
