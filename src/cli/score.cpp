// millrace score: the log-probability of every token of a text, its perplexity, and optionally all logits. A text longer than the
// context is scored in overlapping windows: each token once, with at least half a window before it.
#include <cmath>
#include <cstdio>

#include "cli/cli.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/words.h"
#include "io/npy.h"

namespace mr {

namespace {

struct ScoreFlags {
  EngineFlags engine;
  PromptFlags prompt;
  std::string logits;
  int stride = 0;  // 0: half a window
  bool json = false, summary = false;
};

struct Scores {
  std::vector<float> logprobs;  // the first is NaN: nothing predicts it
  int n_windows = 0;
};

// Scores of one window from `first_new` on, and the rows of logits that predict them.
void score_window(Engine& engine, std::span<const int32_t> tokens, size_t first_new, bool is_last, NpyWriter* npy,
                  std::vector<float>& scores) {
  Request request{{tokens.begin(), tokens.end()}};
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0;
  request.score_prompt = true;
  const size_t first_row = first_new ? first_new - 1 : 0, end_row = is_last ? tokens.size() : tokens.size() - 1;
  if (npy)
    request.on_logits = [=](int position, std::span<const float> row) {
      if (size_t(position) >= first_row && size_t(position) < end_row) npy->append(row);
    };
  size_t at = 0;
  run_alone(engine, std::move(request), [&](const TokenEvent& event) {
    for (const Sampled& s : event.prompt)
      if (at++ >= first_new) scores.push_back(s.logprob);
  });
}

Scores score_tokens(Engine& engine, const std::vector<int32_t>& tokens, const ScoreFlags& f) {
  std::unique_ptr<NpyWriter> npy;
  if (!f.logits.empty()) npy = std::make_unique<NpyWriter>(f.logits, int64_t(tokens.size()), engine.model().spec().vocab);
  const size_t window = size_t(std::max(2, engine.room_after(1)));
  const size_t stride = f.stride ? size_t(f.stride) : window / 2;
  check(stride < window || tokens.size() <= window, "--stride {} leaves nothing of a window of {} tokens before those that are scored",
        stride, window);
  Scores out;
  Progress progress;
  for (size_t begin = 0; out.logprobs.size() < tokens.size(); begin += stride) {
    const size_t n = std::min(window, tokens.size() - begin);
    const bool is_last = begin + n == tokens.size();
    score_window(engine, std::span(tokens).subspan(begin, n), out.logprobs.size() - begin, is_last, npy.get(), out.logprobs);
    out.n_windows++;
    progress.show(fmt::format("{} of {} tokens", out.logprobs.size(), tokens.size()));
  }
  if (npy) npy->close();
  return out;
}

struct Summary {
  double logprob = 0;
  std::optional<double> perplexity;  // none: nothing is predicted, or a token has probability 0
  std::string text;
};

Summary sum_up(const std::vector<int32_t>& tokens, const Scores& scores) {
  Summary s;
  for (size_t i = 1; i < scores.logprobs.size(); i++) {
    check(!std::isnan(scores.logprobs[i]), "the model's logits before token {} are not numbers: are its weights broken?", i);
    s.logprob += scores.logprobs[i];
  }
  const size_t n = scores.logprobs.size() - 1;
  const std::string count = counted(int64_t(tokens.size()), "token");
  if (n == 0) {
    s.text = count + ": nothing predicts the first one, so there is no perplexity";
    return s;
  }
  const double perplexity = std::exp(-s.logprob / double(n));
  if (std::isfinite(perplexity)) s.perplexity = perplexity;
  s.text = fmt::format("{}{}, log-probability {:.4f} ({:.4f} a token), perplexity {}", count,
                       scores.n_windows > 1 ? fmt::format(" in {} windows", scores.n_windows) : "", s.logprob, s.logprob / double(n),
                       s.perplexity ? fmt::format("{:.4f}", perplexity) : "without bound: the model rules a token out");
  return s;
}

int score(ScoreFlags& f) {
  auto engine = start_engine(f.engine);
  const std::vector<int32_t> tokens = prompt_tokens(f.prompt, engine->tokenizer());
  check(!tokens.empty(), "the text is empty");
  const Scores scores = score_tokens(*engine, tokens, f);
  const Summary summary = sum_up(tokens, scores);
  if (f.json) {
    Json logprobs = Json::array({nullptr});
    for (size_t i = 1; i < tokens.size(); i++) logprobs.push_back(std::isfinite(scores.logprobs[i]) ? Json(scores.logprobs[i]) : Json());
    Json out{{"tokens", tokens}, {"logprobs", logprobs}, {"perplexity", summary.perplexity ? Json(*summary.perplexity) : Json()}};
    fmt::print("{}\n", out.dump());
    return 0;
  }
  for (size_t i = 0; i < tokens.size() && !f.summary; i++) {
    std::string piece =
        engine->tokenizer() ? Json(engine->tokenizer()->piece(tokens[i])).dump(-1, ' ', false, Json::error_handler_t::replace) : "";
    fmt::print("{:>7} {:>10} {}\n", tokens[i], i ? fmt::format("{:.4f}", scores.logprobs[i]) : "", printable(piece));
  }
  fmt::print("{}\n", summary.text);
  return 0;
}

}  // namespace

void add_score(CLI::App& program, Action& chosen) {
  add_command<ScoreFlags>(
      program, chosen, "score", "log-probability of every token, perplexity",
      [](CLI::App& app, ScoreFlags& f) {
        add_engine_flags(app, f.engine);
        add_prompt_flags(app, f.prompt);
        app.add_option("--logits", f.logits, "write all logits to this .npy file, float32 [tokens, vocabulary]");
        app.add_option("--stride", f.stride, "for a text longer than the context: tokens from window to window; half a window by default")
            ->check(CLI::Range(1, 1 << 30));
        auto* json = app.add_flag("--json", f.json, "one JSON object");
        app.add_flag("--summary", f.summary, "only the last line")->excludes(json);
      },
      score);
}

}  // namespace mr
