# expect(CODE COMMAND...): runs a command that must exit with this code.
function(expect expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL ${expected})
    message(FATAL_ERROR "${ARGN} exited with ${code} instead of ${expected}:\n${text}")
  endif()
endfunction()
