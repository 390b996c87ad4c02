// Models by name: what is on this machine, and which of it a user means. Every command that takes a MODEL asks find_model().
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/folder.h"

namespace mr {

struct PresentModel : LocalModel {
  std::string name;                  // OWNER/NAME, OWNER/NAME:Q4_K_M, or a file's own name in millrace's folder
  std::optional<Snapshot> snapshot;  // where it comes from a hub
};

// Of the hub's cache and of millrace's own folder, by name. Other commits than the current one are OWNER/NAME@COMMIT.
std::vector<PresentModel> present_models();

// A path as it is; OWNER/NAME[:FILE or quantization][@REVISION] that was pulled; a part of a name that only one model has
// ("smollm2"); empty: the default model. Nothing: it is not here. Throws where several could be meant, naming them.
std::optional<std::filesystem::path> look_up_model(const std::string& name);

// "models/llama" has the form of a hub's name, but no owner is called so there; nor is one meant by a folder that is here. An address
// (hf.co/models/llama) is never a path.
bool is_meant_as_path(const std::string& name);

// Like look_up_model(), or an Error that says which names are near, or how to get it.
std::filesystem::path find_model(const std::string& name);

// The one of present_models() that is meant; throws like find_model(). Paths outside of the caches are none of them.
PresentModel find_present(const std::string& name);

// What to call a model that lies there: OWNER/NAME[:QUANTIZATION] in the hub's cache, else the file's or the directory's name.
std::string model_name_at(const std::filesystem::path&);

}  // namespace mr
