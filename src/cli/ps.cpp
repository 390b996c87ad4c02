// millrace ps: the servers running on this machine.
#include <fmt/format.h>

#include <map>
#include <optional>

#include "cli/cli.h"
#include "cli/running_servers.h"
#include "cli/table.h"
#include "core/amounts.h"
#include "core/config.h"
#include "core/error.h"
#include "core/json.h"
#ifdef MR_SERVE
#include "bench/client.h"
#endif

namespace mr {

namespace {

struct PsFlags {
  bool json = false;
};

struct Busy {
  double running = 0, waiting = 0;
};

#ifdef MR_SERVE

// The sum of a metric's samples; none: absent.
std::optional<double> metric(const std::string& text, const std::string& name) {
  std::optional<double> sum;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(name) || line.size() == name.size() || (line[name.size()] != ' ' && line[name.size()] != '{')) continue;
    sum = sum.value_or(0) + std::atof(line.c_str() + line.rfind(' '));
  }
  return sum;
}

// None: it is loading, needs another key than MILLRACE_API_KEY, or hangs.
std::optional<Busy> ask(const RunningServer& s) {
  const bool is_any = s.host == "0.0.0.0" || s.host == "::";
  Target target{.host = is_any ? (s.host == "::" ? "::1" : "127.0.0.1") : s.host, .port = s.port, .api_key = api_key_from_environment()};
  try {
    const Reply reply = http_get(target, "/metrics", 2);
    const auto running = metric(reply.body, "millrace_num_requests_running"), waiting = metric(reply.body, "millrace_num_requests_waiting");
    if (reply.status == 200 && running) return Busy{*running, waiting.value_or(0)};
  } catch (const Error&) {
  }
  return std::nullopt;
}

#else

std::optional<Busy> ask(const RunningServer&) { return std::nullopt; }

#endif

std::string address_of(const RunningServer& s) {
  return fmt::format("http://{}:{}", s.host.find(':') == s.host.npos ? s.host : "[" + s.host + "]", s.port);
}

int ps(PsFlags& f) {
  const std::vector<RunningServer> servers = running_servers();
  Json rows = Json::array();
  Table table({"PID", "MODEL", "ADDRESS", "UPTIME", "MEMORY", "RUNNING", "WAITING"});
  for (const RunningServer& s : servers) {
    const std::optional<Busy> busy = ask(s);
    auto number = [&](double Busy::*field) { return busy ? fmt::format("{:.0f}", *busy.*field) : "-"; };
    rows.push_back({{"pid", s.pid},
                    {"model", s.model},
                    {"address", address_of(s)},
                    {"uptime_s", s.uptime_s},
                    {"memory_bytes", s.memory},
                    {"running", busy ? Json(busy->running) : Json()},
                    {"waiting", busy ? Json(busy->waiting) : Json()}});
    table.add({std::to_string(s.pid), printable(s.model), printable(address_of(s)), age_text(s.uptime_s), bytes_text(s.memory),
               number(&Busy::running), number(&Busy::waiting)});
  }
  if (f.json)
    fmt::print("{}\n", rows.dump(-1, ' ', false, Json::error_handler_t::replace));
  else if (servers.empty())
    fmt::print(stderr, "No server runs: `millrace serve MODEL` starts one\n");
  else
    fmt::print("{}", table.text());
  return 0;
}

}  // namespace

void add_ps(CLI::App& program, Action& chosen) {
  add_command<PsFlags>(
      program, chosen, "ps", "the servers running on this machine",
      [](CLI::App& app, PsFlags& f) { app.add_flag("--json", f.json, "one JSON list"); }, ps);
}

}  // namespace mr
