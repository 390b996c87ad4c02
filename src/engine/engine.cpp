#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "backend/cuda/cuda_backend.h"
#include "core/config.h"
#include "core/error.h"
#include "core/words.h"
#include "model/arch/arch.h"

namespace mr {

static constexpr int max_threads = 1024;
static constexpr int max_priority = 1000;  // in magnitude: bounds how many later requests may overtake an earlier one

EngineOptions options_for(const std::string& device) {
  EngineOptions options;
  options.device = device != "auto" ? device : cuda_available() ? "cuda" : "cpu";
  if (options.device != "cuda") return options;
  options.max_seqs = 256;
  options.max_batch_tokens = 8192;
  return options;
}

static std::unique_ptr<Backend> make_backend(const EngineOptions& options, const Checkpoint& files) {
  if (options.device == "ref") return make_ref_backend();
  if (options.device == "cuda")
    return make_cuda_backend({options.deterministic, facts_of(describe(files).spec, options.kv_dtype.value_or(DType::bf16))});
  check(options.device == "cpu", "there is no device '{}': cpu, cuda and ref are known", options.device);
  check(options.threads >= 0 && options.threads <= max_threads, "threads must be between 0 (one per core) and {}, not {}", max_threads,
        options.threads);
  int threads = options.threads > 0 ? options.threads : default_threads();
  return make_cpu_backend(options.isa.value_or(best_isa()), threads);
}

std::unique_ptr<Engine> Engine::create(const std::filesystem::path& path, const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine);
  Engine& e = *engine;
  e.files_ = open_model(path, options.random_weights ? Checkpoint::Want::configuration : Checkpoint::Want::tensors);
  e.backend_ = make_backend(options, *e.files_.checkpoint);
  ModelOptions model{options.kv_dtype, options.random_weights, options.progress, options.state_dtype};
  model.quantize = options.quantize;
  model.requantize = options.requantize;
  e.memory_ = plan_engine(*Model::outline(*e.files_.checkpoint, *e.backend_, model), options, *e.backend_, e.backend_->memory());
  e.limits_ = limits_of(options);
  model.weight_bytes = e.memory_.weights;
  e.model_ = Model::load(*e.files_.checkpoint, *e.backend_, model);
  e.store_ = std::make_unique<StateStore>(e.memory_.state, [&e](size_t bytes) { return e.backend_->allocate(bytes); });
  StateManager::Options sharing{options.prefix_cache && options.kv_cache, options.contiguous ? e.memory_.max_context : 0};
  e.states_ = std::make_unique<StateManager>(e.memory_.state, sharing);

  std::vector<int32_t> stop_tokens = e.files_.stop_tokens;
  stop_tokens.insert(stop_tokens.end(), e.model_->spec().eos.begin(), e.model_->spec().eos.end());
  std::ranges::sort(stop_tokens);
  stop_tokens.erase(std::unique(stop_tokens.begin(), stop_tokens.end()), stop_tokens.end());
  e.scheduler_ = std::make_unique<Scheduler>(e.limits_, *e.states_, e.metrics_, std::move(stop_tokens));
  e.runner_ = std::make_unique<Runner>(*e.model_, *e.backend_, *e.store_, e.limits_, e.memory_.max_context);
  const bool ahead = options.launch_ahead.value_or(e.backend_->queues());
  auto make_loop = !options.overlap ? make_serial_loop : ahead ? make_ahead_loop : make_overlapped_loop;
  e.loop_ = make_loop({*e.scheduler_, *e.runner_, e, e.metrics_, options.on_step});
  return engine;
}

void Engine::validate(const Request& r) const {
  const int vocab = model_->spec().vocab, n_prompt = int(r.prompt.size());
  check(n_prompt > 0, "the prompt is empty");
  for (int32_t token : r.prompt)
    check(token >= 0 && token < vocab, "the prompt has token {}, but the vocabulary has {} tokens", token, vocab);
  r.sampling.validate(vocab);
  check(r.n >= 1 && r.n <= limits_.max_seqs, "n must be between 1 and {}, the sequences that may run at once, not {}", limits_.max_seqs,
        r.n);
  check(std::abs(r.priority) <= max_priority, "priority must be between {} and {}, not {}", -max_priority, max_priority, r.priority);
  check(r.first_choice >= 0, "first_choice must be 0 or more, not {}", r.first_choice);
  check(r.sampling.stop.empty() || tokenizer(), "stop strings need a tokenizer, and the model has none");
  int n_answer = std::min(r.sampling.max_tokens, 1);
  check(n_prompt + n_answer <= memory_.max_context, "the prompt has {}, but the context holds {}, the answer included",
        counted(n_prompt, "token"), memory_.max_context);
  int64_t n_kept = n_prompt + std::min(r.sampling.max_tokens, memory_.max_context - n_prompt) - n_answer;
  check(n_kept <= memory_.state.n_tokens, "a prompt of {} with an answer of up to {} needs state for {}, but there is memory for {}",
        counted(n_prompt, "token"), n_kept + n_answer - n_prompt, counted(n_kept, "token"), memory_.state.n_tokens);
}

int Engine::room_after(size_t n_prompt) const {
  const int64_t most = std::min<int64_t>(memory_.max_context - 1, memory_.state.n_tokens) + 1;  // n_tokens may be unbounded
  return int(std::max<int64_t>(0, most - int64_t(n_prompt)));
}

// If a rope depends on the prompt's length, so do the keys: only prompts with the same scaling may share them.
std::string Engine::salt_of(const Request& r) const {
  std::string salt = r.cache_salt;
  for (const RopeSpec& rope : model_->spec().ropes) {
    if (int(r.prompt.size()) <= rope.original) continue;
    if (rope.scaling == RopeSpec::Scaling::dynamic) salt += fmt::format("\nlength {}", r.prompt.size());
    if (rope.scaling == RopeSpec::Scaling::longrope) salt += "\nlong";
  }
  return salt;
}

int64_t Engine::submit(Request request, Sink sink) {
  validate(request);
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, memory_.max_context - int(request.prompt.size()));
  std::string salt = salt_of(request);
  auto answering = std::make_unique<Answering>(std::move(request), std::move(sink), tokenizer(), std::move(salt));
  const std::optional<uint64_t>& seed = answering->request.sampling.seed;
  std::lock_guard lock(mutex_);
  answering->seed = seed ? *seed : uint64_t(entropy_()) << 32 | entropy_();
  answering->id = next_id_;
  cancelled_.reserve(cancelled_.size() + size_t(n_open_) + 1);  // so that cancel() never allocates
  submitted_.push_back(std::move(answering));
  n_open_++;
  mail_came_.notify_one();
  return next_id_++;
}

void Engine::cancel(int64_t id) {
  std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
  mail_came_.notify_one();
}

void Engine::run(std::stop_token stop) {
  for (bool closed = false; !stop.stop_requested();) {
    if (advance(!closed)) continue;
    std::unique_lock lock(mutex_);
    auto mail_came = [&] { return !submitted_.empty() || !cancelled_.empty() || closed != closed_; };
    Clock::time_point until = scheduler_->held_until();
    if (until == Clock::time_point::max())
      mail_came_.wait(lock, stop, mail_came);
    else
      mail_came_.wait_until(lock, stop, until, mail_came);
    closed = closed_;
  }
}

void Engine::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  mail_came_.notify_one();
}

bool Engine::step(bool more_may_come) { return advance(more_may_come); }

bool Engine::advance(bool more_may_come) {
  bool stepped = false;
  try {
    stepped = loop_->turn(more_may_come);
  } catch (const std::exception& e) {
    fail_all(reason_of(e));
  }
  const bool waits = !loop_->in_flight() && (scheduler_->idle() || (!stepped && scheduler_->holds_back()));
  if (waits || !stepped) deliver_news();
  bury();
  scheduler_->count();
  try {
    note_progress();
  } catch (const std::bad_alloc&) {  // metrics are updated by a later step
  }
  return !waits;
}

void Engine::note_progress() {
  float usage = 0;
  int64_t n_pages = 0;
  StateStats stats = states_->stats();
  for (size_t g = 0; g < stats.group.size(); g++) {
    auto& [n_units, n_used, n_cached, n_free] = stats.group[g];
    if (n_units > 0) usage = std::max(usage, float(n_used) / float(n_units));
    if (memory_.state.group[g].paged()) n_pages += n_units;
  }
  metrics_.state_usage = usage;
  metrics_.swapped_units = stats.n_swapped_out;
  metrics_.internal_waste = scheduler_->internal_waste();
  metrics_.external_waste = n_pages ? float(states_->stranded_units()) / float(n_pages) : 0;
  metrics_.last_step_ns = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

// A cancelled request was submitted earlier, so it has been taken in when its cancellation is read.
void Engine::read_mail() {
  for (int64_t id = -1; id != 0;) {
    id = next_cancelled();
    for (; !arriving_.empty(); arriving_.pop_front()) take_in(arriving_.front());
    auto found = requests_.find(id);
    if (found == requests_.end() || found->second->over) continue;
    end(*found->second, Finish::cancelled, "");
    deliver(*found->second);
  }
}

int64_t Engine::next_cancelled() {
  std::lock_guard lock(mutex_);
  arriving_.splice(arriving_.end(), submitted_);
  if (cancelled_.empty()) return 0;
  int64_t id = cancelled_.back();
  cancelled_.pop_back();
  return id;
}

// Allocates all that ending the request will need; if there is no memory for that, it ends here.
void Engine::take_in(std::unique_ptr<Answering>& answering) {
  Answering& request = *answering;
  metrics_.requests++;
  metrics_.prompt_tokens += int64_t(request.request.prompt.size());
  try {
    auto place = requests_.emplace(request.id, nullptr).first;
    for (std::vector<int64_t>* list : {&news_, &ended_, &buried_})
      if (list->capacity() < requests_.size()) list->reserve(2 * requests_.size());
    scheduler_->add(request);
    place->second = std::move(answering);
  } catch (const std::bad_alloc& e) {
    requests_.erase(request.id);
    request.end(Finish::error, reason_of(e));
    tell(request);
    forget(1);
  }
}

void Engine::has_news(Answering& request) {
  if (std::exchange(request.has_news, true)) return;
  news_.push_back(request.id);
}

void Engine::deliver_news() {
  for (int64_t id : news_) {
    auto found = requests_.find(id);
    if (found == requests_.end()) continue;
    found->second->has_news = false;
    deliver(*found->second);
  }
  news_.clear();
}

void Engine::deliver(Answering& request) {
  if (request.over) return;
  if (!tell(request)) end(request, Finish::error, "its reader failed");
  if (!request.ended()) return;
  request.over = true;
  ended_.push_back(request.id);
}

// Passes what is new in each answer to the sink. False: the sink threw; its request ends without further events.
bool Engine::tell(Answering& request) {
  try {
    for (auto& answer : request.answers) answer->tell(request.sink);
    for (int i = request.n_made(); i < request.request.n && request.last_word.finish != Finish::none; i++) {
      request.last_word.choice = request.request.first_choice + i;
      request.sink(request.last_word);
    }
    return true;
  } catch (...) {
    return false;
  }
}

void Engine::end(Answering& request, Finish why, const char* error) {
  scheduler_->remove(request);
  request.end(why, error);
}

void Engine::fail(Answering& request, const char* why) {
  end(request, Finish::error, why);
  deliver(request);
}

// A step failed, or bookkeeping is inconsistent: no state can be trusted, published or not. Resets everything.
void Engine::fail_all(const char* why) {
  loop_->forget();
  scheduler_->clear();
  states_->reset();
  for (auto& [id, request] : requests_) {
    for (auto& answer : request->answers) answer->state = {};
    request->end(Finish::error, why);
    deliver(*request);
  }
}

// Erases ended requests once no step in flight can refer to them.
void Engine::bury() {
  auto erase = [this](std::vector<int64_t>& ids) {
    for (int64_t id : ids) requests_.erase(id);
    forget(int64_t(ids.size()));
    ids.clear();
  };
  erase(buried_);
  buried_.swap(ended_);
  if (!loop_->in_flight()) erase(buried_);
}

void Engine::forget(int64_t n_over) {
  if (n_over == 0) return;
  metrics_.finished += n_over;
  std::lock_guard lock(mutex_);
  n_open_ -= n_over;
}

void Engine::check_invariants() const {
  std::vector<const SequenceState*> states;
  scheduler_->each_state([&](const SequenceState& state) { states.push_back(&state); });
  states_->check_invariants(states);
}

}  // namespace mr
