#include "cli/bench_load.h"

#include <unistd.h>

#include <fstream>

#include "cli/options.h"
#include "core/error.h"
#ifdef MR_SERVE
#include "serve/load.h"
#endif

namespace mr {

static std::string refuse_lengths(const std::string& text) {
  try {
    parse_lengths(text);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

static void add_server_flags(CLI::App& app, LoadFlags& f) {
  const char* group = "A load on a server";
  auto positive = CLI::Range(1, 1 << 24);
  app.add_option("--url", f.url, "drive this OpenAI server with the load: http://host:port; MODEL is its name there")->group(group);
  app.add_option("--api-key", f.api_key, "the key that the server asks for")->group(group);
  app.add_option("--vocab", f.vocab, "token ids in prompts are below it")->check(positive)->capture_default_str()->group(group);
  app.add_option("--warmup", f.warmup, "requests before the first row, which do not count")->check(CLI::Range(0, 1 << 20))->group(group);
  app.add_option("--ttft-deadline", f.ttft_deadline, "seconds to the first token for goodput")->check(CLI::PositiveNumber)->group(group);
  app.add_option("--tpot-deadline", f.tpot_deadline, "seconds for each further token for goodput")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--timeout", f.timeout, "seconds after which a request has failed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  app.add_flag("--chat", f.chat, "use /v1/chat/completions")->group(group);
  app.add_flag("--text", f.text, "prompts as text, not as token ids")->group(group);
  app.add_option("--label", f.label, "name of this run in tables and pictures; the URL if not given")->group(group);
  app.add_option("--compare", f.compare, "rows of an earlier run (--json) beside this one's; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--html", f.html, "write a page with the latency-throughput curves")->group(group);
}

void add_load_flags(CLI::App& app, LoadFlags& f) {
  const char* group = "A load: requests of many lengths, here or on a server";
  auto positive = CLI::Range(1, 1 << 24);
  app.add_flag("--load", f.here, "run the load on the engine here, beside this machine's limits")->group(group);
  app.add_option("--load-file", f.file,
                 "take the requests from here, one JSON object a line: prompt_tokens or prompt (text or ids), and output_tokens; "
                 "without --url on the engine here")
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--prompt-tokens", f.prompt_tokens,
                 "length of the prompts: 128; 64-512, evenly; or lognormal:128:0.8, median and deviation of the logarithm")
      ->check(refuse_lengths)
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-tokens", f.max_tokens, "length of the answers, likewise")
      ->check(refuse_lengths)
      ->capture_default_str()
      ->group(group);
  app.add_option("--requests", f.requests, "of each row; the file's, or 4 times the streams (at least 16), or 64 with --rate, if not given")
      ->check(positive)
      ->group(group);
  app.add_option("--streams", f.streams, "requests open at any time: 1,4,16; not given: 1 on a server, all of them here")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 16384))
      ->group(group);
  app.add_option("--rate", f.rates, "requests a second, at random moments, whatever was answered: 0.5,2,8")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1e-6, 1e6))
      ->group(group);
  app.add_option("--shared-prefix", f.shared_prefix, "tokens with which all prompts begin")->check(positive)->group(group);
  app.add_option("--seed", f.seed, "of prompts, lengths and arrivals; the same seed, the same load")->capture_default_str()->group(group);
  add_server_flags(app, f);
}

Workload workload_of(const LoadFlags& f) {
  Workload w{.prompt = parse_lengths(f.prompt_tokens), .answer = parse_lengths(f.max_tokens), .vocab = f.vocab};
  w.shared_prefix = f.shared_prefix;
  w.chat = f.chat;
  w.text = f.text;
  w.seed = f.seed;
  if (!f.file.empty()) w.items = parse_load(read_file(f.file), f.file);
  return w;
}

int n_requests(const LoadFlags& f, const Workload& w, int streams, double rate) {
  if (f.requests) return f.requests;
  if (!w.items.empty()) return int(w.items.size());
  return rate > 0 ? 64 : std::max(16, 4 * streams);
}

#ifdef MR_SERVE

namespace {

Json earlier_rows(const LoadFlags& f) {
  Json rows = Json::array();
  for (const std::string& file : f.compare) {
    Json more = Json::parse(read_file(file), nullptr, false);
    check(more.is_array(), "{} is no list of rows that bench --url --json wrote", file);
    for (const Json& row : more) {
      check(row.is_object() && row.contains("label") && row.contains("ttft_s") && row.contains("tpot_s"),
            "{} has a row that bench --url --json did not write", file);
      rows.push_back(row);
    }
  }
  return rows;
}

std::string first_model(const Target& target) {
  Reply reply = http_get(target, "/v1/models");
  check(reply.status == 200, "{}:{} answers /v1/models with status {}", target.host, target.port, reply.status);
  Json list = Json::parse(reply.body, nullptr, false);
  Json::json_pointer id("/data/0/id");
  check(list.is_object() && list.contains(id) && list[id].is_string(), "{}:{} lists no model at /v1/models", target.host, target.port);
  return list[id];
}

// Drives one server; every load gets prompts of its own.
class Bench {
 public:
  Bench(const LoadFlags& f, const std::string& model) : f_(f), target_(parse_url(f.url)), deadlines_{f.ttft_deadline, f.tpot_deadline} {
    target_.api_key = f.api_key;
    work_ = workload_of(f);
    work_.model = model.empty() ? first_model(target_) : model;
  }

  void warm_up() {
    if (f_.warmup == 0) return;
    std::vector<Outcome> outcomes = send(f_.warmup, 1, {}, "warming up");
    const Outcome& o = outcomes.back();
    check(o.error.empty(), "{} does not answer a request for {}: {} {}", f_.url, work_.model, o.error, o.detail);
  }

  Json row(int streams, double rate) {
    int n = n_requests(f_, work_, streams, rate);
    std::vector<double> arrivals = rate > 0 ? poisson_arrivals(rate, size_t(n), f_.seed) : std::vector<double>{};
    std::string what = rate > 0 ? fmt::format("{} requests a second", rate) : fmt::format("{} streams", streams);
    LoadReport report = summarize(send(n, streams, std::move(arrivals), what), deadlines_);
    Json out{{"workload", "serve"},
             {"label", f_.label.empty() ? f_.url : f_.label},
             {"url", f_.url},
             {"model", work_.model},
             {"api", path_of(work_)},
             {"prompt_length", f_.prompt_tokens},
             {"output_length", f_.max_tokens},
             {"load_file", f_.file.empty() ? Json() : Json(f_.file)},
             {"shared_prefix", f_.shared_prefix},
             {"seed", f_.seed},
             {"streams", rate > 0 ? Json() : Json(streams)},
             {"rate", rate > 0 ? Json(rate) : Json()}};
    out.update(report_json(report, deadlines_));
    return out;
  }

 private:
  std::vector<Outcome> send(int n, int streams, std::vector<double> arrivals, const std::string& what) {
    Load load{.path = path_of(work_), .streams = streams, .arrivals = std::move(arrivals), .timeout = f_.timeout};
    for (int i = 0; i < n; i++) load.bodies.push_back(request_body(work_, uint32_t(i)));
    work_.first += uint32_t(n);
    bool shown = isatty(STDERR_FILENO);
    auto outcomes = drive(target_, load, [&](int done) {
      if (shown) fmt::print(stderr, "\r\033[K{}: {} of {} answers", what, done, n);
    });
    if (shown) fmt::print(stderr, "\r\033[K");
    return outcomes;
  }

  const LoadFlags& f_;
  Target target_;
  Deadlines deadlines_;
  Workload work_;
};

std::string load_of(const Json& row) {
  return row["rate"].is_null() ? fmt::format("{}", row["streams"].get<int>()) : fmt::format("{:g}/s", row["rate"].get<double>());
}

void print_table(const Json& rows) {
  size_t width = 6;
  for (const Json& r : rows) width = std::max(width, r["label"].get_ref<const std::string&>().size());
  fmt::print("{:<{}} {:>8} {:>8} {:>6} {:>9} | {:^26} | {:^26} | {:^26} | {:>8}\n", "", width, "", "", "", "output", "first token, s",
             "time per output token, ms", "end to end, s", "goodput");
  fmt::print("{:<{}} {:>8} {:>8} {:>6} {:>9} |", "server", width, "streams", "requests", "failed", "tok/s");
  for (int i = 0; i < 3; i++) fmt::print(" {:>5} {:>6} {:>6} {:>6} |", "mean", "p50", "p90", "p99");
  fmt::print(" {:>8}\n", "req/s");
  for (const Json& r : rows) {
    fmt::print("{:<{}} {:>8} {:>8} {:>6} {:>9.1f} |", r["label"].get<std::string>(), width, load_of(r), r["requests"].get<int>(),
               r["failed"].get<int>(), r["tokens_per_s"].get<double>());
    for (auto [name, unit, digits] : {std::tuple{"ttft_s", 1.0, 3}, {"tpot_s", 1e3, 1}, {"e2e_s", 1.0, 2}}) {
      auto value = [&](const char* p) { return unit * r[name][p].get<double>(); };
      fmt::print(" {:>5.{}f} {:>6.{}f} {:>6.{}f} {:>6.{}f} |", value("mean"), digits, value("p50"), digits, value("p90"), digits,
                 value("p99"), digits);
    }
    fmt::print(" {:>8.2f}\n", r["goodput_requests_per_s"].get<double>());
    for (auto& [error, n] : r["errors"].items()) fmt::print("{:<{}}   {} x {}\n", "", width, n.get<int>(), error);
  }
}

}  // namespace

int bench_url(const LoadFlags& f, const std::string& model, bool json) {
  Json rows = earlier_rows(f);
  int answered = 0;
  if (!f.url.empty()) {
    Bench bench(f, model);
    bench.warm_up();
    auto add = [&](int streams, double rate) {
      rows.push_back(bench.row(streams, rate));
      answered += rows.back()["requests"].get<int>() - rows.back()["failed"].get<int>();
    };
    for (double rate : f.rates) add(1, rate);
    if (f.rates.empty())
      for (int streams : f.streams.empty() ? std::vector<int>{1} : f.streams) add(streams, 0);
  }
  if (!f.html.empty()) {
    std::ofstream out(f.html);
    out << load_page(rows);
    out.close();
    check(out.good(), "cannot write {}", f.html);
  }
  json ? fmt::print("{}\n", rows.dump()) : print_table(rows);
  return f.url.empty() || answered > 0 ? 0 : 1;
}

#else

int bench_url(const LoadFlags&, const std::string&, bool) {
  fail("this program was built without bench --url: the Boost headers (1.81 or later) were not there");
}

#endif

}  // namespace mr
