// millrace analyze: what the arithmetic says before anything runs.
#include "analyze/local.h"
#include "analyze/report.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/plan_text.h"
#include "core/error.h"
#include "core/progress.h"

namespace mr {

namespace {

struct AnalyzeFlags {
  std::string model, config, hardware = "local", link, weight_format, kv_format, state_format, experts, draft, html, svg;
  Question question;
  WhatIf what_if;
  double acceptance = 0.7;
  int lookahead = 4, threads = 0;
  bool probe = false, formats = false, json = false;
};

Subject subject_from(const AnalyzeFlags& f) {
  if (f.config.empty()) return subject_of(f.model);
  check(f.model.empty(), "both a model ({}) and --config {} were given", f.model, f.config);
  const Preset* preset = find_preset(f.config);
  if (!preset && std::filesystem::exists(f.config)) return subject_of(f.config);
  check(preset, "there is no preset '{}' and no such file: {} are known", f.config, preset_names());
  return subject_of(*preset);
}

// "8:2": 8 experts, 2 of them active.
void read_experts(const std::string& text, WhatIf& w) {
  if (text.empty()) return;
  int used = 0;
  bool ok = std::sscanf(text.c_str(), "%d:%d%n", &w.experts, &w.experts_used, &used) == 2 && used == int(text.size());
  check(ok && w.experts > 0 && w.experts <= 4096, "--experts {} is not of the form EXPERTS:USED, like 8:2", text);
}

Chip chip_from(const AnalyzeFlags& f) {
  Chip chip;
  if (f.hardware == "local") {
    Progress progress;
    progress.show("measuring this machine");
    chip = local_machine(f.threads, f.probe);
  } else {
    chip = chip_named(f.hardware);
    check(!f.probe && !f.threads, "{} is about this machine, and --hardware {} names a chip whose limits are its maker's",
          f.probe ? "--probe" : "--threads", f.hardware);
  }
  if (!f.link.empty()) chip.link = link_named(f.link).bytes_per_s;
  return chip;
}

void store(Subject& s, const AnalyzeFlags& f, const Chip& chip) {
  s.storage.activation = chip.activation_bytes;
  if (!f.weight_format.empty()) store_weights_as(s.storage, f.weight_format);
  // By default the engine's format there: Backend::kv_dtype.
  s.storage.scan = f.state_format.empty() ? s.spec.scan_state : dtype_from(f.state_format);
  store_keys_as(s.storage, !f.kv_format.empty() ? f.kv_format : chip.name == "local" ? "f16" : "bf16");
}

int analyze_question(AnalyzeFlags& f) {
  if (f.formats && !f.json) {
    fmt::print("{}", formats_table());
    return 0;
  }
  Question& q = f.question;
  q.subject = subject_from(f);
  read_experts(f.experts, f.what_if);
  check(f.what_if.window || !f.what_if.global_every, "--global-every {} needs --window", f.what_if.global_every);
  describe_as(q.subject, apply(f.what_if, q.subject.spec));
  q.on.chip = chip_from(f);
  check(f.kv_format.empty() || keeps_keys(q.subject.spec), "--kv-format {}: {} keeps no keys and values", f.kv_format, q.subject.name);
  store(q.subject, f, q.on.chip);
  if (!f.draft.empty()) {
    q.draft = {subject_of(f.draft), f.acceptance, f.lookahead};
    store(q.draft->subject, f, q.on.chip);
  }
  Analysis analysis = analyze(std::move(q));
  if (const Chip& chip = analysis.question.on.chip; chip.busy())
    fmt::print(stderr,
               "millrace: other programs used {:.0f} % of the processors while this machine was measured: its limits are too low, and not "
               "kept\n",
               100 * chip.others);
  if (!f.html.empty()) write_file(f.html, html_report(analysis));
  if (!f.svg.empty()) {
    make_folder(f.svg);
    write_file(std::filesystem::path(f.svg) / "roofline.svg", roofline_svg(analysis));
    write_file(std::filesystem::path(f.svg) / "throughput.svg", throughput_svg(analysis));
    write_file(std::filesystem::path(f.svg) / "memory.svg", memory_svg(analysis));
  }
  fmt::print("{}", f.json ? json_report(analysis).dump() + "\n" : text_report(analysis));
  if (const Subject& s = analysis.question.subject; !f.json && f.hardware == "local" && s.outline)
    fmt::print("\nWhat the engine would allocate here, with its usual options:\n{}",
               indented(plan_text(*s.outline, {.threads = f.threads}), "  "));
  if (!f.json && f.model.empty() && f.config.empty())
    fmt::print(
        "\nThis was the default model. Others: --config NAME, a path; other chips: --hardware NAME; what if: --help lists the flags.\n");
  return 0;
}

void add_what_if(CLI::App& app, AnalyzeFlags& f) {
  const char* group = "What if";
  app.add_option("--kv-heads", f.what_if.kv_heads, "key/value heads in every layer")->check(CLI::Range(1, 65536))->group(group);
  app.add_option("--window", f.what_if.window, "sliding window of every layer, in tokens")->check(CLI::Range(1, 1 << 30))->group(group);
  app.add_option("--global-every", f.what_if.global_every, "but every n-th layer has global attention")
      ->check(CLI::Range(1, 4096))
      ->group(group);
  app.add_option("--kv-share", f.what_if.kv_share, "successive layers of one kind that share keys and values")
      ->check(CLI::Range(1, 4096))
      ->group(group);
  app.add_option("--experts", f.experts, "EXPERTS:USED, like 8:2, instead of every feed-forward")->group(group);
  app.add_option("--weight-format", f.weight_format, "how weights are stored: bf16, fp8, int8, int4, ...; --formats lists them")
      ->group(group);
  app.add_option("--kv-format,--kv-dtype", f.kv_format, "how keys and values are stored")->group(group);
  app.add_option("--state-format,--state-dtype", f.state_format, "how the state of recurrent layers is stored: f32, bf16 or f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->group(group);
  auto* tp = app.add_option("--tp", f.question.on.tp, "chips that share every layer")->check(CLI::Range(1, 4096))->group(group);
  app.add_option("--link", f.link, "their interconnect: nvlink4, pcie5, ...; the chip's own by default")->needs(tp)->group(group);
  app.add_option("--replicas", f.question.on.replicas, "groups of such chips")->check(CLI::Range(1, 1 << 20))->group(group);
  auto* draft = app.add_option("--draft", f.draft, "a smaller model that drafts tokens for this one to verify")->group(group);
  app.add_option("--acceptance", f.acceptance, "share of drafted tokens that are accepted")
      ->needs(draft)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--lookahead", f.lookahead, "tokens drafted at a time")
      ->needs(draft)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_analyze(CLI::App& program, Action& chosen) {
  add_command<AnalyzeFlags>(
      program, chosen, "analyze", "what the arithmetic says before anything runs: memory, speed, what fits",
      [](CLI::App& app, AnalyzeFlags& f) {
        Question& q = f.question;
        app.add_option("MODEL", f.model, "a Hugging Face directory, config.json, .gguf file or short name; the default model if omitted");
        app.add_option("--config", f.config, "a model by name (or the path of a config.json) instead of MODEL: " + preset_names());
        app.add_option("--hardware", f.hardware, "local (this machine, measured once), " + chip_names())->capture_default_str();
        app.add_option("--batch", q.batches, "sequences at once: 1,16,64")->delimiter(',')->allow_extra_args(false)->capture_default_str();
        app.add_option("--context", q.contexts, "tokens of each: 1024,8192")
            ->delimiter(',')
            ->allow_extra_args(false)
            ->capture_default_str();
        app.add_option("--user-speed", q.user_tokens_per_s, "tokens/s for every user")->capture_default_str();
        app.add_option("--deadline", q.deadline_s, "seconds to the first token")->capture_default_str();
        app.add_option("--price", q.price, "dollars per hour and chip")->capture_default_str();
        app.add_option("--demand", q.demand_words, "words a day to serve, like 100e9: how many chips?")->check([](const std::string& text) {
          return std::string(std::atof(text.c_str()) > 0 ? "" : text + " words a day need no chip");
        });
        app.add_option("--threads", f.threads, "threads of this machine; 0: one per core")->check(CLI::Range(0, 1024));
        app.add_flag("--probe", f.probe, "measure this machine again");
        add_what_if(app, f);
        app.add_flag("--formats", f.formats, "the number formats: bytes and ranges");
        app.add_flag("--json", f.json, "one JSON object");
        app.add_option("--html", f.html, "write a page with plots to this file");
        app.add_option("--svg", f.svg, "write only the plots into this folder");
      },
      analyze_question);
}

}  // namespace mr
