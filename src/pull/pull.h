// From a name to a model on disk.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "hub/reference.h"
#include "pull/download.h"

namespace mr {

struct PullOptions {
  int connections = 8;
  std::function<void(const DownloadState&)> on_state;
  std::function<void(const std::string&)> on_note;  // what is being fetched or waited for; any thread
};

struct Pulled {
  std::filesystem::path path;  // for the loader
  std::string name, commit;
  int64_t bytes = 0, fetched = 0;  // of the model; downloaded
};

// Throws SeveralModels if the name is ambiguous, and Errors that say what to do.
Pulled pull_model(const Reference&, const PullOptions&);

std::vector<std::string> search_hub(const std::string& words);  // names; none: the hub cannot be reached

}  // namespace mr
