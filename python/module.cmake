# millrace._engine, for the wheel. `install_nanobind` of scripts/setup.sh puts nanobind where it is looked for.
if(MR_SANITIZE)
  return()
endif()
find_package(Python3 QUIET COMPONENTS Interpreter)
set(Python_EXECUTABLE ${Python3_EXECUTABLE})
find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
if(Python_FOUND)
  find_package(nanobind CONFIG QUIET PATHS build/nanobind/nanobind/cmake NO_DEFAULT_PATH)
endif()
if(NOT nanobind_FOUND)
  message(STATUS "the Python module is left out: no nanobind in build/nanobind, or no headers of Python (3.10 or later)")
  return()
endif()
nanobind_add_module(mr_python STABLE_ABI NB_STATIC python/module.cpp)  # which Python has from 3.12 on; before, it is for this one alone
set_target_properties(mr_python PROPERTIES OUTPUT_NAME _engine)
target_link_libraries(mr_python PRIVATE mr_engine mr_hub)
target_link_options(mr_python PRIVATE LINKER:--exclude-libs,ALL)  # nothing of it meets other libraries in the same process
