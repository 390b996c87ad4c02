#include "hub/models.h"

#include <algorithm>

#include "core/amounts.h"
#include "core/config.h"
#include "core/error.h"
#include "core/words.h"
#include "io/file_names.h"

namespace mr {

namespace fs = std::filesystem;

namespace {

constexpr int kSnapshotDepth = 2;  // folders: a repository may have one for each quantization

// The part after the colon; a quantization that two files have is ambiguous.
std::string selector(const LocalModel& m, const std::vector<LocalModel>& all, const fs::path& folder) {
  const bool is_unique = std::ranges::count_if(all, [&](const LocalModel& o) { return o.is_gguf && o.label == m.label; }) == 1;
  return !m.label.empty() && is_unique ? m.label : m.path.lexically_relative(folder).string();
}

void add_snapshot(const Snapshot& s, std::vector<PresentModel>& out) {
  const std::vector<LocalModel> models = models_in(s.folder, kSnapshotDepth);
  for (const LocalModel& m : models) {
    PresentModel p{m};
    p.name = s.repo + (m.is_gguf ? ":" + selector(m, models, s.folder) : "") + (s.is_current ? "" : "@" + s.commit.substr(0, 7));
    p.snapshot = s;
    out.push_back(std::move(p));
  }
}

void add_own_folder(std::vector<PresentModel>& out) {
  for (const LocalModel& m : models_in(models_dir())) {
    PresentModel p{m};
    p.name = part_name(m.path.stem().string()).whole;
    out.push_back(std::move(p));
  }
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(models_dir(), ignored)) {
    if (!entry.is_directory(ignored)) continue;
    const std::vector<LocalModel> models = models_in(entry.path());
    for (const LocalModel& m : models) {
      PresentModel p{m};
      p.name = entry.path().filename().string() + (models.size() > 1 && m.is_gguf ? ":" + selector(m, models, entry.path()) : "");
      out.push_back(std::move(p));
    }
  }
}

// Letters and digits in lower case, for loose comparison.
std::string bare(std::string_view text) {
  std::string out;
  for (char c : ascii_lower(text))
    if (std::isalnum(static_cast<unsigned char>(c))) out += c;
  return out;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (char c : ascii_lower(text))
    if (std::isalnum(static_cast<unsigned char>(c)))
      words.back() += c;
    else if (!words.back().empty())
      words.emplace_back();
  if (words.back().empty()) words.pop_back();
  return words;
}

// How well a loose name fits, from best to worst: the file's or the full name, the name without its owner, without its quantization, a
// part of it; 0: not at all. With an owner or a file extension a mere part does not fit.
int fit(const std::string& asked, const PresentModel& m) {
  const std::string name = bare(m.name), wanted = bare(asked);
  const size_t slash = m.name.find('/'), colon = m.name.find(':');
  const std::string short_name = slash == m.name.npos ? m.name : m.name.substr(slash + 1);
  if (wanted.empty()) return 0;
  if (name == wanted || ascii_lower(m.path.filename().string()) == ascii_lower(asked)) return 4;
  if (bare(short_name) == wanted) return 3;
  if (bare(short_name.substr(0, short_name.find(':'))) == wanted || (colon != m.name.npos && bare(m.name.substr(0, colon)) == wanted))
    return 2;
  if (!m.label.empty() && name == wanted + bare(m.label)) return 2;
  const std::vector<std::string> words = words_of(asked);
  if (wanted.size() < 3 || asked.find('/') != asked.npos || asked.ends_with(".gguf")) return 0;
  return std::ranges::all_of(words, [&](const std::string& w) { return name.find(w) != name.npos; }) ? 1 : 0;
}

bool matches_selector(const PresentModel& m, const std::string& select) {
  const std::string wanted = ascii_lower(select), file = ascii_lower(m.path.lexically_relative(m.snapshot->folder).string());
  return m.is_gguf && (ascii_lower(m.label) == wanted || file == wanted || ascii_lower(m.path.filename().string()) == wanted);
}

[[noreturn]] void refuse_choice(const std::string& name, const std::vector<PresentModel>& models) {
  std::string names;
  for (const PresentModel& m : models) names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", m.name, bytes_text(m.bytes));
  fail("'{}' could be any of {} models: {}", name, models.size(), names);
}

std::optional<PresentModel> one_of(const std::string& name, std::vector<PresentModel> models) {
  if (models.empty()) return std::nullopt;
  if (models.size() > 1) refuse_choice(name, models);
  return std::move(models.front());
}

std::optional<PresentModel> by_reference(const Reference& r, const std::string& name) {
  const HubCache cache(hub_settings().cache);
  const std::optional<Snapshot> snapshot = cache.find(r.repo, r.revision_or_main());
  if (!snapshot) return std::nullopt;
  std::vector<PresentModel> models;
  add_snapshot(*snapshot, models);
  if (!r.select.empty()) {
    std::erase_if(models, [&](const PresentModel& m) { return !matches_selector(m, r.select); });
  } else if (!models.empty() && !models.front().is_gguf) {
    models.resize(1);
  }
  return one_of(name, std::move(models));
}

std::optional<PresentModel> by_part_of_name(const std::string& name) {
  std::vector<PresentModel> best;
  int most = 1;
  for (PresentModel& m : present_models()) {
    const int f = fit(name, m);
    if (f > most) best.clear();
    most = std::max(most, f);
    if (f == most) best.push_back(std::move(m));
  }
  return one_of(name, std::move(best));
}

std::optional<PresentModel> look_up(const std::string& name) {
  const std::optional<Reference> reference = parse_reference(name);
  if (reference)
    if (auto found = by_reference(*reference, name)) return found;
  return by_part_of_name(name);
}

std::string suggestion(const std::string& name) {
  std::vector<PresentModel> models = present_models();
  if (models.empty()) return "";
  std::vector<std::string> bare_names;
  for (const PresentModel& m : models) {
    bare_names.push_back(bare(m.name));
    bare_names.push_back(bare(m.name.substr(m.name.find('/') + 1)));
  }
  const std::vector<std::string_view> known(bare_names.begin(), bare_names.end());
  const std::string wanted = bare(name);
  const std::string_view nearest = nearest_word(wanted, known);
  for (size_t i = 0; i < bare_names.size(); i++)
    if (!nearest.empty() && bare_names[i] == nearest) return models[i / 2].name;
  return "";
}

[[noreturn]] void refuse_unknown(const std::string& name) {
  const std::string near = suggestion(name);
  const std::string meant = near.empty() ? "" : sentence(": did you mean '{}'?", near);
  const std::optional<Reference> r = parse_reference(name);
  check(name.find(' ') == name.npos || name.find('/') != name.npos,
        "there is no model '{}': the first word names a model, a prompt for the default one goes after -p", name);
  if (is_meant_as_path(name))
    fail("there is no file or folder '{}'{} `millrace list` shows the models on this machine, `millrace pull {}` fetches others", name,
         meant.empty() ? ":" : meant, r ? "hf.co/" + r->text() : "OWNER/NAME");
  if (r) fail("the model '{}' is not on this machine{} `millrace pull {}` fetches it", name, meant.empty() ? ":" : meant, r->text());
  fail("there is no model '{}'{} `millrace list` shows those on this machine, `millrace pull {}` looks for others at the hub", name,
       meant.empty() ? ":" : meant, name);
}

void check_whole(const PresentModel& m) {
  check(m.problem.empty(), "the model '{}' is not complete: {}{}", m.name, m.problem,
        m.snapshot ? "; `millrace pull " + m.name + "` fetches the rest" : "");
}

}  // namespace

std::vector<PresentModel> present_models() {
  std::vector<PresentModel> out;
  add_own_folder(out);
  for (const Snapshot& s : HubCache(hub_settings().cache).snapshots()) add_snapshot(s, out);
  std::ranges::stable_sort(out, {}, [](const PresentModel& m) { return ascii_lower(m.name); });
  return out;
}

bool is_meant_as_path(const std::string& name) {
  const std::optional<Reference> r = parse_reference(name);
  if (!r) return name.find('/') != name.npos || name.ends_with(".gguf");
  const std::string first = name.substr(0, name.find('/'));
  std::error_code ignored;
  return first == "models" || first == "datasets" || first == "spaces" || r->repo.ends_with(".gguf") || fs::is_directory(first, ignored);
}

std::optional<fs::path> look_up_model(const std::string& name) {
  std::error_code ignored;
  if (name.empty()) return fs::exists(default_model(), ignored) ? std::optional(default_model()) : look_up_model(default_model_name);
  if (fs::exists(name, ignored)) return name;
  const std::optional<PresentModel> found = look_up(name);
  if (!found) return std::nullopt;
  check_whole(*found);
  return found->path;
}

fs::path find_model(const std::string& name) {
  if (auto found = look_up_model(name)) return *found;
  check(!name.empty(), "the default model is not on this machine: `millrace pull {}` fetches it; or name another", default_model_name);
  refuse_unknown(name);
}

PresentModel find_present(const std::string& name) {
  if (auto found = look_up(name)) return std::move(*found);
  refuse_unknown(name);
}

std::string model_name_at(const fs::path& path) {
  std::error_code ignored;
  const fs::path there = fs::absolute(path, ignored).lexically_normal();
  for (const PresentModel& m : present_models())
    if (m.snapshot && fs::absolute(m.path, ignored).lexically_normal() == there) return m.name;
  std::string name = (there.has_filename() ? there : there.parent_path()).filename().string();
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

}  // namespace mr
