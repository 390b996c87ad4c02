// millrace serve: the OpenAI-compatible server.
#include <fmt/format.h>
#include <malloc.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/pull.h"
#include "core/amounts.h"
#include "core/config.h"
#include "core/error.h"
#include "hub/models.h"
#ifdef MR_SERVE
#include "bench/limit_meter.h"
#include "cli/running_servers.h"
#include "serve/server.h"
#endif

namespace mr {

#ifdef MR_SERVE

namespace {

struct ServeFlags {
  ServeFlags() {
    engine.options.max_seqs = 64;  // a queued client waits for another's whole answer
    options.http.memory = size_t(std::clamp<int64_t>(physical_memory() / 32, 64 << 20, 1 << 30));
  }
  EngineFlags engine;
  ServeOptions options;
  std::string template_file, http_memory, key_file;
};

std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find_first_of("\r\n"));
  check(!line.empty(), "the file of the API key begins with an empty line");
  return line;
}

// Freed memory of requests goes back to the system: by default malloc raises its mmap threshold after the first large block, and
// trims only the top of an arena.
void keep_no_freed_memory(ServeOptions& o) {
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  mallopt(M_ARENA_MAX, 4);
  o.at_rest = [] { malloc_trim(0); };
}

int serve(ServeFlags& f) {
  std::signal(SIGPIPE, SIG_IGN);  // a log whose reader has gone is a log that cannot be written, no more
  ServeOptions& o = f.options;
  keep_no_freed_memory(o);
  pull_unless_here(f.engine.model);
  if (o.model_name.empty()) o.model_name = model_name(f.engine);
  if (!f.http_memory.empty()) o.http.memory = size_t(memory_bytes(f.http_memory));
  if (!f.key_file.empty()) o.gate.api_key = first_line(read_file(f.key_file));
  if (o.gate.api_key.empty()) o.gate.api_key = api_key_from_environment();
  if (!f.template_file.empty()) o.chat_template = read_file(f.template_file);
  auto meter = std::make_shared<LimitMeter>();
  o.limits = [meter] { return meter->read(); };
  f.engine.options.on_step = [meter](const StepWork& work) { meter->note(work); };
  Server server(o);
  ServerEntry entry(o.http.host, server.port(), o.model_name);
  bool loaded = server.load([&f, meter](Server::Progress progress) {
    f.engine.options.progress = std::move(progress);
    auto engine = start_engine(f.engine);
    meter->measure(*engine, f.engine.options.isa.value_or(best_isa()));
    return engine;
  });
  if (loaded) {
    std::string greeting = fmt::format("{0} at http://{1}:{2}/v1\npage: http://{1}:{2}\n{3}", o.model_name, o.http.host, server.port(), server.plan());
    if (f.engine.options.batching == Batching::fixed)
      greeting += fmt::format("static batches: nobody is answered before {} requests are there (--max-seqs)\n", f.engine.options.max_seqs);
    std::fputs(greeting.c_str(), stderr);  // ignores errors: a full disk must not end the server
    std::fflush(stderr);
    server.run();
  }
  entry.remove();
  // Exits without destructors: destroying the server would restore the default signal handlers, and a second SIGTERM would turn a
  // clean exit into a kill.
  server.log().settle();
  std::fflush(stdout);  // not stderr: an unread pipe would block
  std::_Exit(0);
}

void declare(CLI::App& app, ServeFlags& f) {
  ServeOptions& o = f.options;
  add_engine_flags(app, f.engine);
  app.add_option("--host", o.http.host, "the address to listen on")->capture_default_str();
  app.add_option("--port", o.http.port, "0: any free one")->check(CLI::Range(0, 65535))->capture_default_str();
  auto* key = app.add_option(
      "--api-key", o.gate.api_key,
      "required on every route but /health, /ready, /openapi.json and the page's files; or MILLRACE_API_KEY in the environment");
  app.add_option("--api-key-file", f.key_file, "a file whose first line is the key: unlike a flag, not visible to other users")
      ->excludes(key);
  app.add_option("--allow-origin", o.gate.allow_origins, "allow web pages of this origin to send requests; may be repeated")
      ->allow_extra_args(false);
  app.add_option(
         "--allowed-hosts", o.gate.allowed_hosts,
         "names of this server besides localhost: NAME, .NAME with all subdomains, or *; * by default unless --host is a loopback address")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--http-memory", f.http_memory,
                 "memory for connections (bodies, waiting requests, unread answers): bytes (512M) or a share; by default 1/32, at most 1G")
      ->check([](const std::string& text) {
        return memory_bytes(text) >= 1 << 20 ? "" : text + " is neither bytes (like 512M; 1M at least) nor a share (like 0.05)";
      });
  app.add_option("--served-model-name", o.model_name, "the model's name for clients");
  app.add_option("--alias", o.aliases, "other names for it, separated by commas")->delimiter(',')->allow_extra_args(false);
  app.add_flag("--lenient-fields", o.lenient_fields, "log unknown fields of requests instead of rejecting them");
  app.add_flag("--tools-in-system-prompt", o.tools_in_system_prompt,
               "if the chat template does not support tools, describe them there instead of rejecting the request");
  app.add_option("--log-level", o.log.level, "debug, info (one line per request), warn, error or off")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.add_flag("--log-json", o.log.json, "log JSON, one object per line");
  app.add_option("--chat-template", f.template_file, "a Jinja file instead of the model's own template");
  app.add_option("--max-queue", o.max_queue, "answers that may wait for their first token; more are a 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-queue-tokens", o.max_queue_tokens, "the same for the tokens of their prompts")
      ->check(CLI::Range(int64_t(1), int64_t(1) << 40))
      ->capture_default_str();
  app.add_option("--max-body", o.http.max_body, "maximum size of a request, in bytes")
      ->check(CLI::Range(size_t(1024), size_t(1) << 30))
      ->capture_default_str();
  app.add_option("--http-threads", o.http.threads, "I/O threads, and workers of each kind that parse requests")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--drain-seconds", o.drain_seconds, "seconds that running requests have left after SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  app.footer(
      "Sampling defaults come from the model's generation_config.json, if it has one.\n"
      "The limits of memory_limit_ratio and compute_limit_ratio at /metrics are measured once, in a tenth of a second, when the model is "
      "loaded: on a busy machine they are too low, and the ratios too high. They are metrics too: *_limit_*_per_second.");
}

}  // namespace

#else

namespace {

struct ServeFlags {};
void declare(CLI::App& app, ServeFlags&) { app.allow_extras(); }
int serve(ServeFlags&) { fail("this program was built without its server: the Boost headers (1.81 or later) were not there"); }

}  // namespace

#endif

void add_serve(CLI::App& program, Action& chosen) {
  add_command<ServeFlags>(program, chosen, "serve", "a page for the browser, and an OpenAI-compatible server", declare, serve);
}

}  // namespace mr
