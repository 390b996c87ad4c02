// millrace score: the log-probability of every token of a text, its perplexity, and all logits if wanted.
#include <cmath>
#include <cstdio>

#include "cli/cli.h"
#include "cli/options.h"
#include "core/error.h"
#include "io/npy.h"

namespace mr {

namespace {

struct ScoreFlags {
  EngineFlags engine;
  PromptFlags prompt;
  std::string logits;
  bool json = false;
};

// Log-probabilities of the prompt's tokens; the first is NaN, because nothing predicts it.
std::vector<float> score_tokens(Engine& engine, const std::vector<int32_t>& tokens, const std::string& logits_file) {
  std::unique_ptr<NpyWriter> npy;
  if (!logits_file.empty()) npy = std::make_unique<NpyWriter>(logits_file, int64_t(tokens.size()), engine.model().spec().vocab);
  Request request{tokens};
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0;
  request.score_prompt = true;
  if (npy) request.on_logits = [&](int, std::span<const float> row) { npy->append(row); };
  std::vector<float> scores;
  run_alone(engine, std::move(request), [&](const TokenEvent& event) {
    for (const Sampled& s : event.prompt) scores.push_back(s.logprob);
  });
  if (npy) npy->close();
  return scores;
}

int score(ScoreFlags& f) {
  auto engine = start_engine(f.engine);
  std::vector<int32_t> tokens = prompt_tokens(f.prompt, engine->tokenizer());
  std::vector<float> scores = score_tokens(*engine, tokens, f.logits);
  double sum = 0;
  for (size_t i = 1; i < scores.size(); i++) sum += scores[i];
  double perplexity = scores.size() > 1 ? std::exp(-sum / double(scores.size() - 1)) : NAN;
  if (f.json) {
    Json logprobs = Json::array({nullptr});
    for (size_t i = 1; i < scores.size(); i++) logprobs.push_back(scores[i]);
    Json out{{"tokens", tokens}, {"logprobs", logprobs}, {"perplexity", scores.size() > 1 ? Json(perplexity) : Json()}};
    fmt::print("{}\n", out.dump());
    return 0;
  }
  for (size_t i = 0; i < tokens.size(); i++) {
    std::string piece =
        engine->tokenizer() ? Json(engine->tokenizer()->piece(tokens[i])).dump(-1, ' ', false, Json::error_handler_t::replace) : "";
    fmt::print("{:>7} {:>10} {}\n", tokens[i], i ? fmt::format("{:.4f}", scores[i]) : "", printable(piece));
  }
  fmt::print("{} tokens, log-probability {:.4f}, perplexity {:.4f}\n", tokens.size(), sum, perplexity);
  return 0;
}

}  // namespace

void add_score(CLI::App& program, Action& chosen) {
  add_command<ScoreFlags>(
      program, chosen, "score", "log-probability of every token, perplexity",
      [](CLI::App& app, ScoreFlags& f) {
        add_engine_flags(app, f.engine);
        add_prompt_flags(app, f.prompt);
        app.add_option("--logits", f.logits, "write all logits there, float32 [tokens, vocabulary], as .npy");
        app.add_flag("--json", f.json, "one JSON object");
      },
      score);
}

}  // namespace mr
