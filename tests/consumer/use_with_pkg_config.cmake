# SPDX-License-Identifier: Apache-2.0
# Installs BUILD_DIR, moves the installation to another place below WORK_DIR, then builds and runs
# the consumers against it without CMake, by what pkg-config says.
set(prefix ${WORK_DIR}/moved)
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Sets `name` to what pkg-config answers.
function(ask name)
  execute_process(COMMAND ${PKG_CONFIG} ${ARGN} OUTPUT_VARIABLE answer
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${name} ${answer} PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix)
file(RENAME ${WORK_DIR}/prefix ${prefix})
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIB_DIR}/pkgconfig)  # and Highway's is in the usual place

ask(version --modversion tidegate)
if(NOT version STREQUAL VERSION)
  message(FATAL_ERROR "pkg-config says version ${version}, CMakeLists.txt ${VERSION}")
endif()
ask(flags --cflags --libs tidegate)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${COMPILER} -std=c++20 ${CMAKE_CURRENT_LIST_DIR}/main.cpp ${flags} -o ${WORK_DIR}/consumer)
run(${WORK_DIR}/consumer)
if(WITH_MPI)
  ask(flags --cflags --libs tidegate-mpi)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${MPI_COMPILER} -std=c++20 ${CMAKE_CURRENT_LIST_DIR}/mpi_main.cpp ${flags}
      -o ${WORK_DIR}/mpi_consumer)
  run(${WORK_DIR}/mpi_consumer)
endif()
