// What the surroundings say: folders, threads. The only place that reads the environment.
#pragma once

#include <filesystem>
#include <string>

namespace mr {

std::filesystem::path cache_dir();      // ${XDG_CACHE_HOME:-~/.cache}/millrace
std::filesystem::path default_model();  // where quickstart puts SmolLM2-135M-Instruct; it may not be there yet
int default_threads();                  // physical cores that this process may use
int64_t physical_memory();              // bytes, as limited by the control group

std::string api_key_from_environment();  // MILLRACE_API_KEY; empty: none

// A path as it is, or a short name of a model in the cache folder; empty: the default model. Throws when nothing is there.
std::filesystem::path find_model(const std::string& name);

}  // namespace mr
