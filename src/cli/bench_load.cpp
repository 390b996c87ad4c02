#include "cli/bench_load.h"

#include "cli/options.h"
#include "core/error.h"

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
  auto seconds = CLI::Range(1e-6, 1e6);
  auto* url =
      app.add_option("--url", f.url, "drive this OpenAI server with the load: http://host:port; MODEL is its name there")->group(group);
  app.add_option("--api-key", f.api_key, "the server's API key")->needs(url)->group(group);
  app.add_option("--vocab", f.vocab, "upper bound of the token ids in prompts")
      ->needs(url)
      ->check(positive)
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup", f.warmup, "requests before the first row, which do not count")
      ->needs(url)
      ->check(CLI::Range(0, 1 << 20))
      ->group(group);
  app.add_option("--ttft-deadline", f.ttft_deadline, "seconds to the first token for goodput")->needs(url)->check(seconds)->group(group);
  app.add_option("--tpot-deadline", f.tpot_deadline, "seconds for each further token for goodput")
      ->needs(url)
      ->check(seconds)
      ->group(group);
  app.add_option("--timeout", f.timeout, "seconds after which a request counts as failed")
      ->needs(url)
      ->check(seconds)
      ->capture_default_str()
      ->group(group);
  app.add_flag("--chat", f.chat, "use /v1/chat/completions")->needs(url)->group(group);
  app.add_flag("--text", f.text, "send prompts as text, not as token ids")->needs(url)->group(group);
  app.add_option("--label", f.label, "name of this run in tables and plots; the URL by default")->needs(url)->group(group);
  app.add_option("--compare", f.compare, "show rows of an earlier run (--json) with this one's; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--html", f.html, "write a page with the latency-throughput curves")->group(group);
  app.add_option("--svg", f.svg, "write only its plots into this folder: ttft.svg and tpot.svg")->group(group);
}

void add_load_flags(CLI::App& app, LoadFlags& f) {
  const char* group = "A load: requests of many lengths, here or on a server";
  auto positive = CLI::Range(1, 1 << 24);
  app.add_flag("--load", f.here, "run the load on the engine in this process, with this machine's limits")->group(group);
  app.add_option(
         "--load-file", f.file,
         "take the requests from here, one JSON object a line: prompt_tokens or prompt (text or ids), and output_tokens (--max-tokens "
         "if absent); without --url on the engine in this process")
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--prompt-tokens", f.prompt_tokens, "length of the prompts: 128; 64-512, uniform; or lognormal:128:0.8, median and sigma")
      ->check(refuse_lengths)
      ->excludes(app.get_option("--load-file"))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-tokens", f.max_tokens, "length of the answers, likewise; with --load-file the default")
      ->check(refuse_lengths)
      ->capture_default_str()
      ->group(group);
  app.add_option("--requests", f.requests,
                 "requests per row; by default the file's, or 4 times the streams (at least 16), or 64 with --rate")
      ->check(positive)
      ->group(group);
  auto* streams = app.add_option("--streams", f.streams, "requests open at any time: 1,4,16; by default 1 on a server, else all of them")
                      ->delimiter(',')
                      ->allow_extra_args(false)
                      ->check(CLI::Range(1, 16384))
                      ->group(group);
  app.add_option("--rate", f.rates, "Poisson arrivals, requests a second: 0.5,2,8")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1e-6, 1e6))
      ->excludes(streams)
      ->group(group);
  app.add_option("--shared-prefix", f.shared_prefix, "tokens of a prefix that all prompts share")->check(positive)->group(group);
  app.add_option("--seed", f.seed, "seed of prompts, lengths and arrivals; the same seed gives the same load")
      ->capture_default_str()
      ->group(group);
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

#ifdef MR_SERVE

static Json earlier_rows(const LoadFlags& f) {
  Json rows = Json::array();
  for (const std::string& file : f.compare) {
    Json more = Json::parse(read_file(file), nullptr, false);
    check(more.is_array(), "{} is not a list of rows written by bench --url --json", file);
    for (const Json& row : more) {
      check(row.is_object() && row.contains("label") && row.contains("ttft_s") && row.contains("tpot_s"),
            "{} has a row that bench --url --json did not write", file);
      rows.push_back(row);
    }
  }
  return rows;
}

int bench_url(const LoadFlags& f, const std::string& model, const Patience& patience, bool json) {
  Json rows = earlier_rows(f);
  Workload work = workload_of(f);
  work.model = model;
  const int answered = load_server(f, std::move(work), patience, json, rows);
  if (!f.html.empty()) write_file(f.html, load_page(rows));
  if (!f.svg.empty()) {
    make_folder(f.svg);
    write_file(std::filesystem::path(f.svg) / "ttft.svg", ttft_svg(rows));
    write_file(std::filesystem::path(f.svg) / "tpot.svg", tpot_svg(rows));
  }
  if (json) fmt::print("{}\n", rows.dump());
  return f.url.empty() || answered > 0 ? 0 : 1;
}

#else

int bench_url(const LoadFlags&, const std::string&, const Patience&, bool) {
  fail("this program was built without bench --url: the Boost headers (1.81 or later) were not there");
}

#endif

}  // namespace mr
