// millrace list: the models on this machine.
#include <chrono>

#include "cli/cli.h"
#include "cli/table.h"
#include "core/amounts.h"
#include "core/error.h"
#include "core/json.h"
#include "core/words.h"
#include "hub/models.h"

namespace mr {

namespace {

struct ListFlags {
  std::string pattern;
  bool json = false;
};

double age_s(const PresentModel& m) {
  return std::chrono::duration<double>(std::filesystem::file_time_type::clock::now() - m.when).count();
}

std::string time_text(const PresentModel& m) {  // UTC, ISO 8601
  const auto since = std::filesystem::file_time_type::clock::to_sys(m.when);
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::system_clock::duration>(since));
  std::tm utc{};
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
  return text;
}

Json row_json(const PresentModel& m) {
  return {{"name", m.name},
          {"bytes", m.bytes},
          {"format", m.format()},
          {"modified", time_text(m)},
          {"path", m.path.string()},
          {"commit", m.snapshot ? Json(m.snapshot->commit) : Json()},
          {"problem", m.problem.empty() ? Json() : Json(m.problem)}};
}

int list(ListFlags& f) {
  std::vector<PresentModel> models = present_models();
  const std::string wanted = ascii_lower(f.pattern);
  std::erase_if(models, [&](const PresentModel& m) { return ascii_lower(m.name).find(wanted) == std::string::npos; });
  if (f.json) {
    Json rows = Json::array();
    for (const PresentModel& m : models) rows.push_back(row_json(m));
    fmt::print("{}\n", rows.dump(-1, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  if (models.empty()) {
    fmt::print(stderr, "No model{} is on this machine: `millrace pull OWNER/NAME` fetches one\n", f.pattern.empty() ? "" : " of that name");
    return 0;
  }
  Table table{{"NAME", "SIZE", "FORMAT", "MODIFIED"}};
  for (const PresentModel& m : models)
    table.add({printable(m.name), bytes_text(m.bytes), printable(m.problem.empty() ? m.format() : m.format() + ", " + m.problem),
               age_text(age_s(m)) + " ago"});
  fmt::print("{}", table.text());
  return 0;
}

}  // namespace

void add_list(CLI::App& program, Action& chosen) {
  add_command<ListFlags>(
      program, chosen, "list", "the models on this machine",
      [](CLI::App& app, ListFlags& f) {
        app.add_option("PART", f.pattern, "only names that contain this");
        app.add_flag("--json", f.json, "one JSON list");
      },
      list);
}

}  // namespace mr
