// millrace rm: deletes a model from the caches.
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "cli/cli.h"
#include "core/amounts.h"
#include "core/config.h"
#include "core/error.h"
#include "core/words.h"
#include "hub/models.h"

namespace mr {

namespace {

namespace fs = std::filesystem;

struct RmFlags {
  std::vector<std::string> models;
  bool yes = false;
};

// The files that only this model has: a directory with its configuration, a quantization alone. With the last model of a snapshot,
// everything else in it.
std::vector<fs::path> files_to_delete(const PresentModel& m) {
  const auto others = std::ranges::count_if(
      present_models(), [&](const PresentModel& o) { return o.snapshot && o.snapshot->folder == m.snapshot->folder && o.path != m.path; });
  if (others > 0) return m.files;
  std::vector<fs::path> all;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(m.snapshot->folder))
    if (!entry.is_directory() || entry.is_symlink()) all.push_back(entry.path());
  return all;
}

// Of links, to files or to the folder, the links alone.
int64_t remove_own(const PresentModel& m) {
  const fs::path folder = m.is_gguf ? m.path.parent_path() : m.path;
  const bool is_linked = folder != models_dir() && fs::is_symlink(folder);
  int64_t freed = 0;
  for (const fs::path& file : is_linked ? std::vector{folder} : m.files) {
    std::error_code failed;
    if (fs::is_regular_file(fs::symlink_status(file))) freed += int64_t(fs::file_size(file));
    fs::remove(file, failed);
    check(!failed, "cannot delete '{}': {}", file.string(), failed.message());
  }
  std::error_code not_empty;
  if (folder != models_dir()) fs::remove(folder, not_empty);
  return freed;
}

bool is_agreed(const PresentModel& m) {
  fmt::print(stderr, "Delete {} ({})? [y/N] ", printable(m.name), bytes_text(m.bytes));
  std::fflush(stderr);
  std::string answer;
  std::getline(std::cin, answer);
  return ascii_lower(answer) == "y" || ascii_lower(answer) == "yes";
}

// As `millrace list` shows it, or the repository's.
bool is_whole_name(const std::string& asked, const PresentModel& m) {
  return ascii_lower(asked) == ascii_lower(m.name) || (m.snapshot && ascii_lower(asked) == ascii_lower(m.snapshot->repo));
}

int remove_models(RmFlags& f) {
  std::vector<PresentModel> chosen;
  for (const std::string& name : f.models) chosen.push_back(find_present(name));
  for (size_t i = 0; i < chosen.size(); i++) {
    const PresentModel& m = chosen[i];
    const bool is_whole = is_whole_name(f.models[i], m);
    if (!f.yes || !is_whole) {
      check(isatty(STDIN_FILENO) || is_whole, "'{}' is a part of the name '{}': where nobody can be asked, only the whole name deletes",
            f.models[i], m.name);
      check(isatty(STDIN_FILENO), "'{}' is deleted only after a yes: say --yes where nobody can be asked", m.name);
      if (!is_agreed(m)) {
        fmt::print(stderr, "{} stays\n", printable(m.name));
        continue;
      }
    }
    const int64_t freed = m.snapshot ? HubCache(hub_settings().cache).remove(*m.snapshot, files_to_delete(m)) : remove_own(m);
    fmt::print("deleted {}, {} are free again\n", printable(m.name), bytes_text(freed));
  }
  return 0;
}

}  // namespace

void add_rm(CLI::App& program, Action& chosen) {
  add_command<RmFlags>(
      program, chosen, "rm", "delete models from this machine's caches",
      [](CLI::App& app, RmFlags& f) {
        app.add_option("MODEL", f.models, "names, as `millrace list` shows them")->required();
        app.add_flag("-y,--yes", f.yes, "do not ask for confirmation, if the name is whole");
      },
      remove_models);
}

}  // namespace mr
