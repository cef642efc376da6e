# SPDX-License-Identifier: Apache-2.0
# Installs BUILD_DIR below WORK_DIR, then builds and runs the consumers against it.
set(prefix ${WORK_DIR}/prefix)
set(build ${WORK_DIR}/build)
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${build} -G ${GENERATOR}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${prefix} -D WITH_MPI=${WITH_MPI})
run(${CMAKE_COMMAND} --build ${build})
run(${build}/consumer)
if(WITH_MPI)
  run(${build}/mpi_consumer)
endif()
