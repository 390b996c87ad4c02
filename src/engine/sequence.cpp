#include "engine/sequence.h"

#include <algorithm>
#include <new>

namespace mr {

std::string_view name_of(Finish finish) {
  switch (finish) {
    case Finish::none:
      return "none";
    case Finish::stop:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::cancelled:
      return "cancelled";
    case Finish::error:
      return "error";
  }
  return "";
}

const char* reason_of(const std::exception& e) {
  return dynamic_cast<const std::bad_alloc*>(&e) ? "there is no memory left for this request" : e.what();
}

static void set_reason(std::string& to, const char* why) noexcept {
  try {
    to = why;
  } catch (...) {
    to = "out of memory";  // short enough for the small-string buffer
  }
}

static double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Sequence::Sequence(Answering& of, int choice)
    : request(of),
      choice(choice),
      max_tokens(of.request.sampling.max_tokens),
      decoding(make_autoregressive()),
      sampling(of.request.sampling, of.seed, choice, of.edits),
      stop(of.request.sampling.stop) {
  state.id = uint64_t(of.id);
  state.salt = of.salt;
  state.n_prompt = int(of.request.prompt.size());
  if (of.tokenizer) detokenizer.emplace(*of.tokenizer, /*skip_special=*/true, /*continues=*/true);
  news.choice = choice;
  news.timing.n_prompt = state.n_prompt;
}

static Turn turn_of(const Answering& request, int choice) {
  return {request.id + Sequence::overtakes * request.request.priority, request.id, choice};
}

Turn Sequence::turn() const { return turn_of(request, choice); }

bool Sequence::scoring() const { return request.request.score_prompt && this == request.answers[0].get() && n_scored < state.n_prompt; }

bool Sequence::needs_results() const { return decoding->needs_result() || sampling.counts(); }

void Sequence::append(const Sampled& sampled, std::span<const int32_t> stop_tokens) {
  const SamplingParams& params = request.request.sampling;
  news.tokens.reserve(news.tokens.size() + 1);  // so that both vectors grow, or neither
  news.sampled.push_back(sampled);
  news.tokens.push_back(sampled.token);
  Timing& timing = news.timing;
  timing.last_token_s = seconds_since(request.submitted);
  const size_t place = request.request.prompt.size() + size_t(timing.n_generated);
  if (timing.n_generated++ == 0) timing.first_token_s = timing.last_token_s;
  state.tokens.resize(std::max(state.tokens.size(), place + 1));
  state.tokens[place] = sampled.token;
  sampling.add(sampled.token);

  if (!params.ignore_eos && std::ranges::find(stop_tokens, sampled.token) != stop_tokens.end()) return end(Finish::stop);
  if (detokenizer && stop.push(detokenizer->push(sampled.token), news.text)) {
    detokenizer.reset();  // what it holds back is after the stop string
    return end(Finish::stop);
  }
  if (timing.n_generated >= max_tokens) end(Finish::length);
}

// May be called when memory is exhausted: then some text is lost, but never the end.
void Sequence::end(Finish why, const char* error) noexcept {
  if (finish != Finish::none) return;
  finish = why;
  try {
    if (detokenizer) {
      bool stopped = stop.push(detokenizer->finish(), news.text);
      if (!stopped) stop.finish(news.text);
      if (stopped && why == Finish::length) finish = Finish::stop;
    }
  } catch (...) {
  }
  news.finish = finish;
  set_reason(news.error, error);
  Timing& timing = news.timing;
  if (request.started) timing.started_s = std::chrono::duration<double>(*request.started - request.submitted).count();
  timing.n_cached = request.n_cached;
}

void Sequence::tell(const Sink& sink) {
  if (news.tokens.empty() && news.text.empty() && news.prompt.empty() && news.finish == Finish::none) return;
  sink(news);
  news.tokens.clear();
  news.sampled.clear();
  news.text.clear();
  news.prompt.clear();
  news.finish = Finish::none;
}

Answering::Answering(Request asked, Sink sink, const Tokenizer* tokenizer, std::string salt)
    : request(std::move(asked)), sink(std::move(sink)), tokenizer(tokenizer), salt(std::move(salt)), submitted(Clock::now()) {}

Turn Answering::turn() const { return turn_of(*this, request.first_choice + n_made()); }

Sequence& Answering::make_answer() {
  if (!edits) edits = std::make_shared<LogitEdits>(request.sampling, request.prompt);
  return *answers.emplace_back(std::make_unique<Sequence>(*this, request.first_choice + n_made()));
}

void Answering::end(Finish why, const char* error) noexcept {
  for (auto& answer : answers) answer->end(why, error);
  if (unmade() == 0 || last_word.finish != Finish::none) return;
  last_word.finish = why;
  set_reason(last_word.error, error);
  last_word.timing.n_prompt = int(request.prompt.size());
}

bool Answering::ended() const {
  auto has_ended = [](const auto& answer) { return answer->finish != Finish::none; };
  return (unmade() == 0 || last_word.finish != Finish::none) && std::ranges::all_of(answers, has_ended);
}

}  // namespace mr
