#include "engine/sequence.h"

#include <algorithm>
#include <tuple>

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

static double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Sequence::Sequence(Answering& of, int choice, const Tokenizer* tokenizer)
    : request(of),
      choice(choice),
      order(of.id),
      max_tokens(of.request.sampling.max_tokens),
      decoding(make_autoregressive()),
      sampling(of.request.sampling, of.seed, choice, of.request.prompt),
      stop(of.request.sampling.stop) {
  state.id = uint64_t(of.id);
  state.salt = of.salt;
  state.tokens = of.request.prompt;
  state.n_prompt = int(of.request.prompt.size());
  if (tokenizer) detokenizer.emplace(*tokenizer, /*skip_special=*/true, /*continues=*/true);
  news.choice = choice;
  news.timing.n_prompt = state.n_prompt;
}

bool Sequence::before(const Sequence& other) const {
  auto place = [](const Sequence& s) { return std::tuple(s.order + overtakes * s.request.request.priority, s.order, s.choice); };
  return place(*this) < place(other);
}

bool Sequence::scoring() const { return request.request.score_prompt && this == request.answers[0].get() && n_scored < state.n_prompt; }

bool Sequence::needs_results() const { return decoding->needs_result() || sampling.counts(); }

void Sequence::append(const Sampled& sampled, std::span<const int32_t> stop_tokens) {
  const SamplingParams& params = request.request.sampling;
  Timing& timing = news.timing;
  timing.last_token_s = seconds_since(request.submitted);
  const size_t place = request.request.prompt.size() + size_t(timing.n_generated);
  if (timing.n_generated++ == 0) timing.first_token_s = timing.last_token_s;
  state.tokens.resize(std::max(state.tokens.size(), place + 1));
  state.tokens[place] = sampled.token;
  sampling.add(sampled.token);
  news.tokens.push_back(sampled.token);
  news.sampled.push_back(sampled);

  if (!params.ignore_eos && std::ranges::find(stop_tokens, sampled.token) != stop_tokens.end()) return end(Finish::stop);
  if (detokenizer && stop.push(detokenizer->push(sampled.token), news.text)) {
    detokenizer.reset();  // what it holds back lies behind the stop string
    return end(Finish::stop);
  }
  if (timing.n_generated >= max_tokens) end(Finish::length);
}

void Sequence::end(Finish why, std::string error) {
  if (finish != Finish::none) return;
  finish = why;
  if (detokenizer) {
    bool stopped = stop.push(detokenizer->finish(), news.text);
    if (!stopped) stop.finish(news.text);
    if (stopped && why == Finish::length) finish = Finish::stop;
  }
  news.finish = finish;
  news.error = std::move(error);
  Timing& timing = news.timing;
  if (request.started) timing.started_s = std::chrono::duration<double>(*request.started - request.submitted).count();
  timing.n_cached = request.n_cached;
}

Answering::Answering(int64_t id, Request asked, Sink sink, const Tokenizer* tokenizer, uint64_t seed, std::string salt, bool shared)
    : id(id), request(std::move(asked)), sink(std::move(sink)), seed(seed), salt(std::move(salt)), submitted(Clock::now()) {
  for (int i = 0; i < request.n; i++) answers.push_back(std::make_unique<Sequence>(*this, request.first_choice + i, tokenizer));
  for (int i = 1; i < request.n && shared; i++) answers[0]->followers.push_back(answers[size_t(i)].get());
}

}  // namespace mr
