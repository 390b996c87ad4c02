// millrace pull: a model by name from a hub.
#include "cli/pull.h"

#include <fmt/format.h>

#include "cli/cli.h"
#include "core/amounts.h"
#include "core/error.h"
#include "core/json.h"
#include "hub/models.h"
#ifdef MR_NET
#include "cli/pull_progress.h"
#include "cli/table.h"
#include "pull/pull.h"
#endif

namespace mr {

namespace {

struct PullFlags {
  std::string name;
  int connections = 8;
  bool json = false;
};

#ifdef MR_NET

Pulled pull_with_progress(const Reference& reference, int connections) {
  PullProgress progress;
  PullOptions options{.connections = connections};
  options.on_state = [&](const DownloadState& s) { progress.show(s); };
  options.on_note = [&](const std::string& sentence) { progress.note(sentence); };
  Pulled pulled = pull_model(reference, options);
  progress.finish();
  return pulled;
}

[[noreturn]] void refuse_name(const std::string& name) {
  std::string known;
  for (const std::string& hit : search_hub(name)) known += (known.empty() ? "" : ", ") + hit;
  fail("'{}' is not of the form OWNER/NAME[:QUANTIZATION][@REVISION]{}{}", name, known.empty() ? "" : "; the hub has ", known);
}

std::string name_of(const Reference& r, const SeveralModels::Option& o) {
  return r.repo + ":" + o.select + (r.revision.empty() ? "" : "@" + r.revision);
}

void print_options(const Reference& r, const SeveralModels& e) {
  Table table({"", "SIZE"});
  for (const SeveralModels::Option& o : e.options) table.add({printable(name_of(r, o)), bytes_text(o.bytes)});
  fmt::print(stderr, "{}", table.text());
}

int pull(PullFlags& f) {
  const std::optional<Reference> reference = parse_reference(f.name);
  if (!reference) refuse_name(f.name);
  try {
    const Pulled p = pull_with_progress(*reference, f.connections);
    if (f.json)
      fmt::print("{}\n",
                 OrderedJson{{"name", p.name}, {"commit", p.commit}, {"path", p.path.string()}, {"bytes", p.bytes}, {"fetched", p.fetched}}
                     .dump());
    else
      fmt::print("{}\n", p.path.string());
    fmt::print(stderr, "{} {}: `millrace chat {}`\n", p.name, p.fetched ? "is here" : "was here already", p.name);
    return 0;
  } catch (const SeveralModels& e) {
    fmt::print(stderr, "millrace: {}\n", e.what());
    print_options(*reference, e);
    return 1;
  }
}

#else

int pull(PullFlags&) { fail("this program was built without the hub: OpenSSL or the Boost headers (1.81 or later) were not there"); }

#endif

}  // namespace

#ifdef MR_NET

void pull_unless_here(const std::string& model) {
  if (look_up_model(model)) return;
  const std::optional<Reference> reference = parse_reference(model.empty() ? default_model_name : model);
  if (!reference || is_meant_as_path(model)) return;  // opening it reports the error
  fmt::print(stderr, "{} is not on this machine yet: pulling it\n", printable(reference->text()));
  try {
    pull_with_progress(*reference, PullFlags().connections);
  } catch (const SeveralModels& e) {
    std::string names;
    for (const SeveralModels::Option& o : e.options)
      names += fmt::format("{}{} ({})", names.empty() ? " " : ", ", name_of(*reference, o), bytes_text(o.bytes));
    throw Error(e.what() + printable(names, 4000));
  }
}

#else

void pull_unless_here(const std::string&) {}

#endif

void add_pull(CLI::App& program, Action& chosen) {
  add_command<PullFlags>(
      program, chosen, "pull", "download a model by name from the hub",
      [](CLI::App& app, PullFlags& f) {
        app.add_option("NAME", f.name, "OWNER/NAME[:QUANTIZATION or FILE][@REVISION]")->required();
        app.add_option("--connections", f.connections, "parallel connections")->check(CLI::Range(1, 64))->capture_default_str();
        app.add_flag("--json", f.json, "one JSON object");
        app.footer(
            "Models go to the cache shared with Hugging Face's tools (HF_HUB_CACHE, HF_HOME). HF_TOKEN gives access to gated ones, "
            "HF_ENDPOINT names a mirror, HTTPS_PROXY and NO_PROXY the proxies. An interrupted download resumes where it stopped.");
      },
      pull);
}

}  // namespace mr
