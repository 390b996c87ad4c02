#include "cli/chat/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "cli/chat/answer_view.h"
#include "cli/terminal/cells.h"
#include "core/config.h"
#include "core/error.h"
#include "core/words.h"
#include "hub/models.h"

namespace mr {

ChatSession::ChatSession(ChatFlags& flags) : flags_(flags) {
  load(flags.engine.model);
  conversation.system = flags.system;
  settings.sampling = flags.sampling.resolve(engine_->generation_defaults());
  settings.sampling.validate(engine_->model().spec().vocab);
}

void ChatSession::load(const std::string& model) {
  EngineFlags engine = flags_.engine;
  engine.model = model;
  engine.options.on_step = [this](const StepWork& work) { show_prompt_progress(work); };
  format_.reset();
  engine_.reset();  // first: two models may not fit
  engine_ = start_engine(engine);
  format_.emplace(need_tokenizer(engine_->tokenizer(), ": `millrace generate --tokens 1,2,3` takes token ids"),
                  flags_.template_file.empty() ? "" : read_file(flags_.template_file));
  name_ = model_name(engine);
  flags_.engine.model = model;
}

void ChatSession::change_model(const std::string& name) {
  const std::string before = flags_.engine.model;
  check(open_model(find_model(name)).tokenizer.has_value(), "{} comes without a tokenizer", name);
  try {
    load(name);
  } catch (const Error& e) {
    const std::string why = e.what();
    over = true;  // unless the old one can be loaded again
    load(before);
    over = false;
    throw Error(why);
  }
  conversation.n_forgotten = 0;
  settings.sampling = flags_.sampling.resolve(engine_->generation_defaults());
}

std::string ChatSession::banner() const {
  const ModelSpec& spec = engine_->model().spec();
  return fmt::format("{} ({}, {:.0f} million parameters, a context of {} tokens)", printable(name_), spec.arch,
                     double(parameters(spec)) / 1e6, room());
}

std::string ChatSession::status() const {
  std::string out = "  " + (terminal_ ? wrap_words(banner(), terminal_size().columns, 2) : banner()) + "\n";
  if (!conversation.system.empty()) out += fmt::format("  system: {}\n", printable(conversation.system));
  out += fmt::format("  {} so far", counted(int64_t(conversation.turns.size()), "turn"));
  if (conversation.n_forgotten) out += fmt::format(", the oldest {} no longer seen by the model", conversation.n_forgotten);
  const size_t n = conversation.turns.empty() ? 0 : encode("").size();
  return out + fmt::format("; about {} of the context's {} tokens\n", n, room()) + settings_text(settings);
}

void ChatSession::note(const std::string& text) const {
  if (terminal_)
    fmt::print(stderr, "\x1b[2m{}\x1b[22m\n", wrap_words("[" + text + "]", terminal_size().columns));
  else
    fmt::print(stderr, "[{}]\n", text);
  std::fflush(stderr);
}

std::vector<int32_t> ChatSession::encode(const std::string& question) const {
  OrderedJson extra = OrderedJson::object();
  if (settings.think) extra["enable_thinking"] = *settings.think;
  return format_->encode(conversation.messages(question), extra);
}

// When the context is full, drops enough of the oldest turns to free half of it, so that the following prompts keep the same prefix,
// and the prefix cache, for a while.
std::vector<int32_t> ChatSession::fit(const std::string& question) {
  std::vector<int32_t> prompt = encode(question);
  const size_t most = size_t(room()), for_answer = std::min<size_t>(size_t(settings.sampling.max_tokens), most / 8 + 1);
  if (prompt.size() + for_answer <= most) return prompt;
  const size_t before = conversation.n_forgotten;
  while (conversation.n_forgotten < conversation.turns.size() && prompt.size() + for_answer > most / 2) {
    conversation.n_forgotten++;
    prompt = encode(question);
  }
  if (prompt.size() >= most) {
    conversation.n_forgotten = before;
    fail("the message has {} with its system prompt, but the context holds {}", counted(int64_t(prompt.size()), "token"), most);
  }
  if (const size_t n = conversation.n_forgotten - before)
    note(fmt::format("the context of {} tokens is full: the oldest {} no longer seen by the model", most,
                     n == 1 ? "turn is" : fmt::format("{} turns are", n)));
  return prompt;
}

// For long prompts.
void ChatSession::show_prompt_progress(const StepWork& work) {
  using namespace std::chrono_literals;
  if (!n_prompt_ || work.parts.empty() || std::chrono::steady_clock::now() - asked_ < 300ms) return;
  if (const int n = work.parts[0].context, all = n_prompt_; n < all) progress_.show(fmt::format("reading {} of {} tokens", n, all));
}

int ChatSession::ask(const std::string& question) {
  Request request{fit(question), settings.sampling};
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, room() - int(request.prompt.size()));
  const size_t n_end = std::min<size_t>(request.prompt.size(), 16);
  const std::string end = engine_->tokenizer()->decode({request.prompt.end() - long(n_end), n_end}, false);
  AnswerView view({.terminal = terminal_ != nullptr, .colors = colors_wanted()}, end);
  TokenEvent last;
  const int n_prompt = int(request.prompt.size());
  const int64_t id = engine_->submit(std::move(request), [&](const TokenEvent& event) {
    if (!event.tokens.empty() && n_prompt_) {
      n_prompt_ = 0;
      progress_.show("");
    }
    view.write(event.text);
    if (event.finish != Finish::none) last = event;
  });
  n_prompt_ = n_prompt;
  asked_ = std::chrono::steady_clock::now();
  if (terminal_) terminal_->catch_interrupts(true);
  bool stopped = false;
  while (engine_->step()) {
    if (stopped || !terminal_ || terminal_->n_interrupts() == 0) continue;
    stopped = true;
    engine_->cancel(id);
  }
  n_prompt_ = 0;
  progress_.show("");
  view.finish();
  int n_interrupts = 0;
  if (terminal_) {
    n_interrupts = terminal_->n_interrupts();
    terminal_->catch_interrupts(false);
  }
  check(last.finish != Finish::error, "{}", last.error);
  if (!stopped || !view.answer().empty()) conversation.turns.push_back({question, view.reasoning(), view.answer()});
  say_how_it_ended(last, stopped);
  return n_interrupts;
}

void ChatSession::say_how_it_ended(const TokenEvent& end, bool stopped) const {
  const Timing& t = end.timing;
  if (stopped) {
    note("stopped");
  } else if (end.finish == Finish::length) {
    const bool full = t.n_prompt + t.n_generated >= room();
    note(full ? fmt::format("cut: the context of {} tokens is full", room())
              : fmt::format("cut after {}: /set max_tokens N allows more", counted(t.n_generated, "token")));
  }
  if (terminal_ && settings.verbose && !stopped)
    note(fmt::format("{}{}; {} of {} were in the cache", counted(t.n_generated, "token"), speed_text(t), t.n_cached,
                     counted(t.n_prompt, "prompt token")));
}

int ChatSession::retry() {
  check(!conversation.turns.empty(), "there is no answer to try again");
  const ChatTurn last = conversation.turns.back();
  const size_t n_turns = conversation.turns.size();
  undo();
  if (settings.sampling.seed) ++*settings.sampling.seed;  // the same seed would give the same answer
  try {
    const int n_interrupts = ask(last.user);
    if (conversation.turns.size() < n_turns) conversation.turns.push_back(last);  // stopped before the first token
    return n_interrupts;
  } catch (const Error&) {
    conversation.turns.push_back(last);
    throw;
  }
}

void ChatSession::undo() {
  check(!conversation.turns.empty(), "there is nothing to take back");
  conversation.turns.pop_back();
  conversation.n_forgotten = std::min(conversation.n_forgotten, conversation.turns.size());
}

void ChatSession::clear() {
  conversation.turns.clear();
  conversation.n_forgotten = 0;
}

}  // namespace mr
