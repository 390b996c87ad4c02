#include <algorithm>

#include "analyze/report.h"
#include "bench/load.h"
#include "bench/requests.h"
#include "core/error.h"
#include "core/progress.h"

namespace mr {

namespace {

// The message of an error response: OpenAI's field if there is one, else the body.
std::string said(const std::string& body) {
  Json j = Json::parse(body, nullptr, false);
  for (const char* path : {"/error/message", "/message", "/detail"})
    if (Json::json_pointer at(path); j.is_object() && j.contains(at) && j[at].is_string()) return j[at];
  return body.substr(0, 200);
}

// millrace's answer while it loads its model.
bool is_loading(const std::string& body) {
  Json j = Json::parse(body, nullptr, false);
  Json::json_pointer code("/error/code");
  return j.is_object() && j.contains(code) && j[code] == "loading";
}

std::string first_model(const Target& target) {
  Reply reply = http_get(target, "/v1/models");
  check(reply.status != 503 || !is_loading(reply.body), "{}:{} is still loading ({}): try again when its /ready answers 200", target.host,
        target.port, said(reply.body));
  check(reply.status == 200, "{}:{} answers /v1/models with status {}: {}", target.host, target.port, reply.status, said(reply.body));
  Json list = Json::parse(reply.body, nullptr, false);
  Json::json_pointer id("/data/0/id");
  check(list.is_object() && list.contains(id) && list[id].is_string(), "{}:{} lists no model at /v1/models", target.host, target.port);
  return list[id];
}

// The server's processes, if it runs on this machine.
std::vector<int> processes_of(const Target& target) {
  const bool here = target.host == "localhost" || target.host == "::1" || target.host.starts_with("127.");
  return here ? listeners(target.port) : std::vector<int>{};
}

// Loads one server; every run has new prompts.
class ServerBench {
 public:
  ServerBench(const LoadOptions& f, Workload work, const Patience& patience)
      : f_(f), patience_(patience), target_(parse_url(f.url)), deadlines_{f.ttft_deadline, f.tpot_deadline}, work_(std::move(work)) {
    target_.api_key = f.api_key;
    processes_ = processes_of(target_);
    // A file's requests are the same in every run: a prefix cache would answer the second one.
    if (!f.file.empty() && !patience_.repeat) patience_.repeat = 1;
    if (work_.model.empty()) work_.model = first_model(target_);
  }

  void warm_up() {
    if (f_.warmup == 0) return;
    std::vector<Outcome> outcomes = send(f_.warmup, 1, {}, "warming up");
    const Outcome& o = outcomes.back();
    check(!is_loading(o.detail), "{} is still loading ({}): try again when its /ready answers 200", f_.url, said(o.detail));
    check(o.error.empty(), "{} does not answer a request for {}: {} {}", f_.url, work_.model, o.error, o.detail);
  }

  // The median of runs repeated until they agree; a run with failures ends the repetition and is shown.
  Json row(int streams, double rate) {
    const int n = f_.n_requests(work_, streams, rate);
    const std::string what =
        rate > 0 ? fmt::format("{} requests a second", rate) : fmt::format("{} stream{}", streams, streams == 1 ? "" : "s");
    std::vector<LoadReport> reports;
    Measured m;
    OtherPrograms others(processes_);
    const Clock::time_point begin = Clock::now();
    auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    do {
      std::vector<double> arrivals = rate > 0 ? poisson_arrivals(rate, size_t(n), f_.seed) : std::vector<double>{};
      reports.push_back(summarize(send(n, streams, std::move(arrivals), what), deadlines_));
      m.seconds.push_back(reports.back().seconds);
    } while (!reports.back().failed && !is_enough(m, patience_, spent()));
    Json out = about_row(streams, rate);
    out.update(report_json(reports.back().failed ? reports.back() : m.median_of(reports), deadlines_));
    out["repeat"] = m.seconds.size();
    out["best_seconds"] = m.best();
    out["spread"] = m.spread() ? Json(*m.spread()) : Json();
    out["others_share"] = processes_.empty() ? Json() : Json(others.share());
    return out;
  }

 private:
  Json about_row(int streams, double rate) const {
    return {{"workload", "serve"},
            {"label", f_.label.empty() ? f_.url : f_.label},
            {"url", f_.url},
            {"model", work_.model},
            {"api", path_of(work_)},
            {"prompt_length", f_.file.empty() ? Json(f_.prompt_tokens) : Json()},
            {"output_length", f_.file.empty() ? Json(f_.max_tokens) : Json()},
            {"load_file", f_.file.empty() ? Json() : Json(f_.file)},
            {"shared_prefix", f_.shared_prefix},
            {"seed", f_.seed},
            {"streams", rate > 0 ? Json() : Json(streams)},
            {"rate", rate > 0 ? Json(rate) : Json()}};
  }

  std::vector<Outcome> send(int n, int streams, std::vector<double> arrivals, const std::string& what) {
    Load load{.path = path_of(work_), .streams = streams, .arrivals = std::move(arrivals), .timeout = f_.timeout};
    for (int i = 0; i < n; i++) load.bodies.push_back(request_body(work_, uint32_t(i)));
    work_.first += uint32_t(n);
    Progress progress;
    return drive(target_, load, [&](int done) { progress.show(fmt::format("{}: {} of {} answers", what, done, n)); });
  }

  const LoadOptions& f_;
  Patience patience_;
  Target target_;
  std::vector<int> processes_;  // the server's; empty: on another machine, or unknown
  Deadlines deadlines_;
  Workload work_;
};

// Prints rows as they arrive, in columns wide enough for all labels. Goodput is by the legend's deadlines: rows measured under others
// have none.
class LoadTable {
 public:
  LoadTable(const Json& earlier, const std::string& label, std::optional<Deadlines> deadlines)
      : width_(std::max<size_t>(6, label.size())), deadlines_(deadlines) {
    for (const Json& r : earlier) width_ = std::max(width_, r["label"].get_ref<const std::string&>().size());
    fmt::print("{:<{}} {:>8} {:>8} {:>6} {:>5} {:>6} {:>9} | {:^31} | {:^31} | {:^31} | {:>8}\n", "", width_, "", "", "", "", "", "output",
               "first token, s", "time per output token, ms", "end to end, s", "goodput");
    fmt::print("{:<{}} {:>8} {:>8} {:>6} {:>5} {:>6} {:>9} |", "server", width_, "streams", "requests", "failed", "runs", "spread",
               "tok/s");
    for (int i = 0; i < 3; i++) fmt::print(" {:>7} {:>7} {:>7} {:>7} |", "mean", "p50", "p90", "p99");
    fmt::print(" {:>8}\n", "req/s");
    for (const Json& r : earlier) print(r);
    std::fflush(stdout);
  }

  void print(const Json& r) const {
    const Json spread = r.value("spread", Json());
    auto measured = [&](double value, int decimals) { return about(fmt::format("{:.{}f}", value, decimals), is_busy(r)); };
    fmt::print("{:<{}} {:>8} {:>8} {:>6} {:>5} {:>6} {:>9} |", r["label"].get<std::string>(), width_, load_of(r), r["requests"].get<int>(),
               r["failed"].get<int>(), r.value("repeat", 1), spread.is_null() ? "" : fmt::format("{:.1f}%", 100 * spread.get<double>()),
               measured(r["tokens_per_s"], 1));
    for (auto [name, unit, decimals] : {std::tuple{"ttft_s", 1.0, 3}, {"tpot_s", 1e3, 1}, {"e2e_s", 1.0, 2}}) {
      for (const char* p : {"mean", "p50", "p90", "p99"}) fmt::print(" {:>7}", measured(unit * r[name][p].get<double>(), decimals));
      fmt::print(" |");
    }
    fmt::print(" {:>8}\n", is_under_others(r) ? "-" : measured(r["goodput_requests_per_s"], 2));
    for (auto& [error, n] : r["errors"].items()) fmt::print("{:<{}}   {} x {}\n", "", width_, n.get<int>(), error);
    std::fflush(stdout);
  }

  bool is_under_others(const Json& r) const {
    return deadlines_ && (r.value("ttft_deadline_s", 0.0) != deadlines_->ttft || r.value("tpot_deadline_s", 0.0) != deadlines_->tpot);
  }

 private:
  size_t width_;
  std::optional<Deadlines> deadlines_;
};

void print_legend(const LoadOptions& f, bool others) {
  std::string within;
  if (f.ttft_deadline > 0) within += fmt::format(" with the first token within {:g} s", f.ttft_deadline);
  if (f.tpot_deadline > 0) within += fmt::format("{} with {:g} ms a further token", within.empty() ? "" : " and", 1e3 * f.tpot_deadline);
  fmt::print("  of the median run; goodput: answers a second{}{}; n/s: requests a second at random moments, instead of streams\n",
             within.empty() ? ", no deadline being set" : within, others ? " (-: measured under other deadlines)" : "");
}

}  // namespace

int load_server(const LoadOptions& f, Workload work, const Patience& patience, bool json, Json& rows) {
  std::optional<LoadTable> table;
  int answered = 0;
  double others = 0;
  if (!f.url.empty()) {
    ServerBench bench(f, std::move(work), patience);
    bench.warm_up();
    if (!json) table.emplace(rows, f.label.empty() ? f.url : f.label, Deadlines{f.ttft_deadline, f.tpot_deadline});
    auto add = [&](int streams, double rate) {
      const Json& row = rows.emplace_back(bench.row(streams, rate));
      answered += row["requests"].get<int>() - row["failed"].get<int>();
      if (table) table->print(row);
      if (row["others_share"].is_number()) others = std::max(others, row["others_share"].get<double>());
    };
    for (double rate : f.rates) add(1, rate);
    if (f.rates.empty())
      for (int streams : f.streams.empty() ? std::vector<int>{1} : f.streams) add(streams, 0);
  }
  if (!json && !table) table.emplace(rows, "", std::nullopt);
  if (!json && !f.url.empty()) print_legend(f, std::ranges::any_of(rows, [&](const Json& r) { return table->is_under_others(r); }));
  warn_if_busy(others, json, "times and speeds");
  return answered;
}

}  // namespace mr
