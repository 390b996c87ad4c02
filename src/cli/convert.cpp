// millrace convert: a model's files in another format or container.
#include "convert/convert.h"

#include <csignal>

#include "cli/cli.h"
#include "core/amounts.h"
#include "core/config.h"
#include "core/error.h"
#include "core/progress.h"
#include "hub/models.h"
#include "model/weight_formats.h"

namespace mr {

namespace {

volatile std::sig_atomic_t interrupted = 0;

struct ConvertFlags {
  std::string model, out, shard_size;
  ConvertOptions options{.threads = 0};
  bool no_tokenizer = false;
};

std::string refuse_size(const std::string& text) { return memory_bytes(text) > 1 ? "" : text + " is not a size (like 500M or 4G)"; }

int convert(ConvertFlags& f) {
  ConvertOptions& o = f.options;
  if (!o.format.empty()) WeightFormats::check_name(o.format);
  if (!f.shard_size.empty()) o.shard_bytes = memory_bytes(f.shard_size);
  o.tokenizer = !f.no_tokenizer;
  if (o.threads == 0) o.threads = default_threads();
  Progress line;
  o.progress = [&line, shown = -1](int64_t done, int64_t total) mutable {
    check(!interrupted, "interrupted: nothing was written");
    const int percent = total ? int(done * 100 / total) : 100;
    if (percent == shown) return;
    shown = percent;
    line.show(fmt::format("converting [{:<25}] {:3} %", std::string(size_t(percent / 4), '='), percent));
  };
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = 1; });
  convert_model(find_model(f.model), f.out, o);
  line.show("");
  return 0;
}

}  // namespace

void add_convert(CLI::App& program, Action& chosen) {
  add_command<ConvertFlags>(
      program, chosen, "convert", "writes a model in another format: GGUF or safetensors, quantized or not",
      [](CLI::App& app, ConvertFlags& f) {
        app.add_option("MODEL", f.model, "a Hugging Face directory, a .gguf file or a short name")->required();
        app.add_option("OUT", f.out, "NAME.gguf, or a directory for safetensors")->required();
        app.add_option(
            "--format", f.options.format,
            "of the weights: f32, f16, bf16; in GGUF files also q8_0, q6_k, q5_k, q4_k, q4_k_m, q4_0, mxfp4, ... (an unknown name lists "
            "all); each tensor keeps its own by default");
        app.add_option("--shard-size", f.shard_size, "most bytes of one file: 500M, 4G; one file by default")->check(refuse_size);
        app.add_flag("--requantize", f.options.requantize, "quantize what is quantized already");
        app.add_flag("--force", f.options.force, "replace OUT if it exists");
        app.add_flag("--no-tokenizer", f.no_tokenizer, "leave the tokenizer out");
        app.add_option("--threads", f.options.threads, "worker threads; 0: one per core")->check(CLI::Range(0, 1024));
        app.footer(
            "OUT appears only when it is whole. The output layer (or a tied embedding) gets q6_k or q8_0, and rows that do not divide into "
            "a format's blocks the next larger format, as in llama.cpp's files; norms and other small tensors stay as they are.");
      },
      convert);
}

}  // namespace mr
