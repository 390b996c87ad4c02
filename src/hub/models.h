// Models by name: those on this machine, and the one that a user means. Every command that takes a MODEL calls find_model().
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/folder.h"

namespace mr {

// What a command without a MODEL takes where quickstart's file (default_model()) is not: the same model, as the hub has it.
inline constexpr const char* default_model_name = "HuggingFaceTB/SmolLM2-135M-Instruct";

struct PresentModel : LocalModel {
  std::string name;                  // OWNER/NAME, OWNER/NAME:Q4_K_M, or a file's own name in millrace's folder
  std::optional<Snapshot> snapshot;  // set if it comes from a hub
};

// In the hub's cache and millrace's own folder, by name. Commits other than the current one are OWNER/NAME@COMMIT.
std::vector<PresentModel> present_models();

// `name` is a path; OWNER/NAME[:FILE or quantization][@REVISION] that was pulled; a part of a name that only one model has
// ("smollm2"); or empty for the default model. None: not on this machine. Throws if it is ambiguous, naming the candidates.
std::optional<std::filesystem::path> look_up_model(const std::string& name);

// "models/llama" has the form of a hub's name, but "models" cannot be an owner there; nor is an existing folder meant as one. A hub's
// address (hf.co/models/llama) is never a path.
bool is_meant_as_path(const std::string& name);

// Like look_up_model(), or an Error that suggests similar names or how to get it.
std::filesystem::path find_model(const std::string& name);

// The one of present_models() that is meant; throws like find_model(). Paths outside of the caches are not among them.
PresentModel find_present(const std::string& name);

// The name of the model at a path: OWNER/NAME[:QUANTIZATION] in the hub's cache, else the file's or directory's name.
std::string model_name_at(const std::filesystem::path&);

}  // namespace mr
