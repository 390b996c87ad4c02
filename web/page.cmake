# The page goes into the program: bundled from web/src where its tools are (npm ci in web/), else as web/dist has it, the same bytes.
set(page_names index.html app.js style.css icon.svg)
set(page_folder ${CMAKE_SOURCE_DIR}/web/dist)
find_program(MR_NODE node)
if(MR_NODE AND EXISTS ${CMAKE_SOURCE_DIR}/web/node_modules/esbuild)
  set(page_folder ${CMAKE_BINARY_DIR}/page)
  file(GLOB page_sources CONFIGURE_DEPENDS web/src/*)
  list(TRANSFORM page_names PREPEND ${page_folder}/ OUTPUT_VARIABLE page_outputs)
  add_custom_command(OUTPUT ${page_outputs} COMMAND ${MR_NODE} ${CMAKE_SOURCE_DIR}/web/build.mjs ${page_folder}
                     DEPENDS ${page_sources} web/build.mjs web/package-lock.json COMMENT "Bundling the page")
else()
  message(STATUS "the page is taken from web/dist: no node, or no npm ci in web/")
endif()
list(TRANSFORM page_names PREPEND ${page_folder}/ OUTPUT_VARIABLE page_inputs)
set(page_code ${CMAKE_BINARY_DIR}/page_files.cpp)
add_custom_command(OUTPUT ${page_code} COMMAND ${CMAKE_COMMAND} -DFROM=${page_folder} -DTO=${page_code} -P ${CMAKE_SOURCE_DIR}/web/embed.cmake
                   DEPENDS ${page_inputs} web/embed.cmake)
target_sources(mr_serve PRIVATE ${page_code})
