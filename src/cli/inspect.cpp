// millrace inspect: the contents of a model's files, and what running it needs. Loads nothing.
#include <map>

#include "cli/cli.h"
#include "cli/inspect_formats.h"
#include "cli/inspect_program.h"
#include "cli/options.h"
#include "cli/plan_text.h"
#include "core/config.h"
#include "core/error.h"
#include "hub/models.h"
#include "io/other_formats.h"
#include "model/arch/arch.h"

namespace mr {

namespace {

struct InspectFlags {
  std::string model, kv_dtype = "f16", state_dtype;
  bool tensors = false, json = false, formats = false;
  ProgramQuestion program;
};

struct FormatSum {
  int64_t tensors = 0, bytes = 0;
};

// Runs of equal layers: "0-29: ...".
std::vector<std::pair<std::string, std::string>> layer_runs(const ModelSpec& spec) {
  std::vector<std::pair<std::string, std::string>> runs;
  for (size_t i = 0, begin = 0; i < spec.layers.size(); i++) {
    std::string text = text_of(spec.layers[i], spec);
    if (i + 1 < spec.layers.size() && text_of(spec.layers[i + 1], spec) == text) continue;
    runs.emplace_back(begin == i ? std::to_string(i) : fmt::format("{}-{}", begin, i), text);
    begin = i + 1;
  }
  return runs;
}

Json describe_json(const Checkpoint& files, const ModelSpec& spec, const std::map<std::string, FormatSum>& formats,
                   const StateLayout& layout) {
  Json out{{"path", files.path().string()},
           {"architecture", spec.arch},
           {"layers", spec.layers.size()},
           {"dim", spec.dim},
           {"vocabulary", spec.vocab},
           {"context", spec.max_context},
           {"parameters", parameters(spec)},
           {"tied", spec.tied},
           {"state_bytes_per_token", layout.bytes_per_token()},
           {"state_bytes_per_sequence", layout.bytes_per_sequence()}};
  if (const std::string text = quantization_text(files.quantization()); !text.empty()) out["quantization"] = text;
  for (auto& [name, sum] : formats) out["formats"][name] = {{"tensors", sum.tensors}, {"bytes", sum.bytes}};
  for (auto& [range, text] : layer_runs(spec)) out["layer_kinds"].push_back({{"layers", range}, {"kind", text}});
  return out;
}

ModelOptions model_options(const InspectFlags& f) {
  ModelOptions options{.kv_dtype = kv_format_named(f.kv_dtype).element};
  if (!f.state_dtype.empty()) options.state_dtype = dtype_from(f.state_dtype);
  return options;
}

int inspect_program(const Checkpoint& files, const InspectFlags& f) {
  auto backend = make_cpu_backend(best_isa(), 1);
  auto model = Model::outline(files, *backend, model_options(f));
  fmt::print("{}", f.json ? program_json(*model, f.program).dump() + "\n" : program_text(*model, f.program));
  return 0;
}

void print_plan(const Checkpoint& files, const InspectFlags& f) {
  const ModelOptions options = model_options(f);
  std::string plan;
  try {
    plan =
        plan_text(*Model::outline(files, *make_ref_backend(), options), {.kv_dtype = options.kv_dtype, .state_dtype = options.state_dtype});
  } catch (const Error& e) {  // still shows the contents of the files
    plan = printable(e.what(), 4000) + "\n";
  }
  fmt::print("  memory plan, usual options:\n{}", indented(plan, "    "));
}

int inspect(InspectFlags& f) {
  if (f.formats) {
    fmt::print("{}", formats_page());
    return 0;
  }
  auto files = Checkpoint::open(find_model(f.model));
  if (f.program.asked) return inspect_program(*files, f);
  ModelSpec spec = describe(*files).spec;
  const ModelOptions options = model_options(f);
  const StateTypes types{*options.kv_dtype, options.state_dtype.value_or(spec.scan_state)};
  StateLayout layout = layout_of(spec, types);
  std::map<std::string, FormatSum> formats;
  int64_t bytes = 0;
  for (const StoredTensor& t : files->tensors()) {
    formats[t.format].tensors++;
    formats[t.format].bytes += int64_t(t.bytes.size());
    bytes += int64_t(t.bytes.size());
  }
  if (f.json) {
    fmt::print("{}\n", describe_json(*files, spec, formats, layout).dump(-1, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  fmt::print("{}\n", printable(files->path().string()));
  fmt::print("  architecture  {}, {} layers, width {}, vocabulary {}, context {}\n", spec.arch, spec.layers.size(), spec.dim, spec.vocab,
             spec.max_context);
  fmt::print("  parameters    {:.1f} million{}\n", double(parameters(spec)) / 1e6,
             spec.tied ? ", the output layer is the embedding table" : "");
  for (auto& [range, text] : layer_runs(spec)) fmt::print("  layers {:<6} {}\n", range, text);
  fmt::print("  weights       {:.1f} MB:", double(bytes) / 1e6);
  for (auto& [name, sum] : formats) fmt::print(" {} × {} ({:.1f} MB)", sum.tensors, name, double(sum.bytes) / 1e6);
  if (const std::string text = quantization_text(files->quantization()); !text.empty()) fmt::print("\n  quantization  {}", printable(text));
  fmt::print("\n  state         {} bytes a token, {} bytes a sequence ({} keys and values, {} recurrent state)\n", layout.bytes_per_token(),
             layout.bytes_per_sequence(), kv_format(types.kv).name, name_of(types.scan));
  print_plan(*files, f);
  if (f.tensors)
    for (const StoredTensor& t : files->tensors()) fmt::print("  {:<48} {:<6} {}\n", printable(t.name), t.format, shape_string(t.shape));
  return 0;
}

}  // namespace

void add_inspect(CLI::App& program, Action& chosen) {
  add_command<InspectFlags>(
      program, chosen, "inspect", "what is in a model's files: layers, formats, state, memory",
      [](CLI::App& app, InspectFlags& f) {
        app.add_option("MODEL", f.model, "a Hugging Face directory, .gguf file or short name; the default model if omitted");
        add_kv_dtype(app, f.kv_dtype, "f16 by default");
        add_state_dtype(app, f.state_dtype);
        app.add_flag("--tensors", f.tensors, "list every tensor");
        app.add_flag("--json", f.json, "one JSON object");
        app.add_flag("--formats", f.formats, "the weight formats that are read, run and written, instead of a model");
        ProgramQuestion& q = f.program;
        const char* group = "The forward pass, operation by operation";
        auto* program = app.add_flag("--program", q.asked, "list the operations of a step, with shapes, bytes, flops and possible fusions")
                            ->group(group);
        app.add_option("--batch", q.batch, "sequences of the step")
            ->check(CLI::Range(1, 1 << 20))
            ->capture_default_str()
            ->needs(program)
            ->group(group);
        app.add_option("--context", q.context, "tokens of context of each; by default 1024, or its prompt")
            ->check(CLI::Range(1, 1 << 30))
            ->needs(program)
            ->group(group);
        app.add_option("--prompt", q.prompt, "new tokens of each; one by default")
            ->check(CLI::Range(1, 1 << 24))
            ->needs(program)
            ->group(group);
        app.add_flag("--tail", q.tail, "show the list for steps of few outputs")->needs(program)->group(group);
        app.add_flag("--all", q.all, "list equal layers too")->needs(program)->group(group);
      },
      inspect);
}

}  // namespace mr
