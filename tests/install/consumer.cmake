# Installs the build into a fresh prefix, configures and builds the consumer against it, and runs what it made.
file(REMOVE_RECURSE ${WORK})
include(${CMAKE_CURRENT_LIST_DIR}/../expect.cmake)
expect(0 ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
expect(0 ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_BUILD_TYPE=Release)
expect(0 ${CMAKE_COMMAND} --build ${WORK}/build)
expect(0 ${WORK}/build/own_test)
expect(0 ${WORK}/build/own_kernel fuzz softmax --kernel mine --cases 2000 --quiet)

# The same kernel with the maximum's 1 added first must not pass.
expect(1 ${WORK}/build/own_kernel fuzz cross_entropy --kernel mine.collapsing --cases 600 --quiet)
expect(0 ${WORK}/prefix/bin/sumzero list)

# The installed tool serves kernels in Python and from a library that was compiled against the installed header.
file(MAKE_DIRECTORY ${WORK}/plugin)
expect(0 ${CC} -shared -fPIC -O2 -I ${WORK}/prefix/include/sumzero ${SOURCE}/plugin/softmax.c -o ${WORK}/plugin/libsoftmax.so -lm)
expect(0 ${WORK}/prefix/bin/sumzero fuzz softmax --kernel ${WORK}/plugin/libsoftmax.so --cases 300 --quiet)

# A consumer that voids the bounds is refused by the compiler.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/fast_math -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_CXX_FLAGS=-ffast-math
                OUTPUT_QUIET)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/fast_math RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(code EQUAL 0 OR NOT text MATCHES "voids every error bound")
  message(FATAL_ERROR "-ffast-math was not refused:\n${text}")
endif()

execute_process(COMMAND ${PYTHON} -c "import numpy" RESULT_VARIABLE without_numpy OUTPUT_QUIET ERROR_QUIET)
if(without_numpy)
  message(STATUS "skipped: ${PYTHON} has no NumPy")
  return()
endif()
expect(0 ${CMAKE_COMMAND} -E env SUMZERO_PYTHON=${PYTHON} ${WORK}/prefix/bin/sumzero probe softmax --kernel ${SOURCE}/python/numpy_softmax.py)
