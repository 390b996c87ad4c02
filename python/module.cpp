// millrace._engine: an engine with a thread of its own, and streams of what it answers. No Python runs on that thread, and the
// interpreter's lock is released wherever somebody waits for it. millrace/__init__.py makes these into what a user sees.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <thread>

#include "core/amounts.h"
#include "core/error.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "hub/models.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mr {

namespace {

constexpr auto signal_period = std::chrono::milliseconds(50);  // how often a waiting thread looks for Ctrl-C

void stop_on_signal() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

class LiveEngine {
 public:
  LiveEngine(const std::string& model, const EngineOptions& options)
      : engine_(Engine::create(find_model(model), options)), thread_([this](std::stop_token stop) { engine_->run(stop); }) {}
  ~LiveEngine() { close(); }

  void close() {
    closed_ = true;
    thread_.request_stop();
    std::lock_guard lock(closing_);
    if (thread_.joinable()) thread_.join();
  }
  bool closed() const { return closed_; }
  Engine& engine() { return *engine_; }

  const Tokenizer& tokenizer() const {
    check(engine_->tokenizer(), "this model comes without a tokenizer: give token ids");
    return *engine_->tokenizer();
  }

  Request request(std::vector<int32_t> prompt) const { return {std::move(prompt), engine_->generation_defaults().over({})}; }

 private:
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> closed_ = false;
  std::mutex closing_;
  std::jthread thread_;
};

// The events of one request, in order. Its engine lives as long as it does.
class Stream {
 public:
  Stream(std::shared_ptr<LiveEngine> live, Request request) : live_(std::move(live)), n_open_(request.n) {
    check(!live_->closed(), "the engine is closed");
    id_ = live_->engine().submit(std::move(request), [inbox = inbox_](const TokenEvent& event) {
      std::lock_guard lock(inbox->mutex);
      inbox->events.push_back(event);
      inbox->came.notify_one();
    });
  }
  ~Stream() { cancel(); }

  void cancel() {
    if (std::exchange(n_open_, 0) > 0) live_->engine().cancel(id_);
  }

  // None: all answers have ended.
  std::optional<TokenEvent> next() {
    while (n_open_ > 0) {
      std::optional<TokenEvent> event;
      {
        nb::gil_scoped_release release;
        event = wait();
      }
      if (!event) {
        check(!live_->closed(), "the engine was closed before the answer was whole");
        stop_on_signal();
        continue;
      }
      if (event->finish == Finish::error) n_open_ = 0;
      check(event->finish != Finish::error, "{}", event->error);
      if (event->finish != Finish::none) n_open_--;
      return event;
    }
    return {};
  }

 private:
  struct Inbox {
    std::mutex mutex;
    std::condition_variable came;
    std::deque<TokenEvent> events;
  };

  std::optional<TokenEvent> wait() {
    std::unique_lock lock(inbox_->mutex);
    if (!inbox_->came.wait_for(lock, signal_period, [&] { return !inbox_->events.empty(); })) return {};
    TokenEvent event = std::move(inbox_->events.front());
    inbox_->events.pop_front();
    return event;
  }

  std::shared_ptr<LiveEngine> live_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  int64_t id_ = 0;
  int n_open_;  // answers that have not ended
};

// Bytes that form no character are shown as U+FFFD.
nb::object text_of(const std::string& bytes) { return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), Py_ssize_t(bytes.size()), "replace")); }

int64_t bytes_of(const char* option, const std::string& text) {
  const int64_t bytes = text.empty() ? 0 : memory_bytes(text);
  check(text.empty() || bytes > 0, "{}='{}' is neither bytes (like 512M or 4G) nor a share of the machine's memory (like 0.4)", option,
        text);
  return bytes;
}

// What is None is as the device has it.
struct Options {
  std::string device = "auto";
  std::optional<std::string> isa, kv_dtype, state_dtype;
  std::optional<int> threads, max_seqs, max_batch_tokens, max_prompt_tokens, max_context, page_tokens;
  std::string memory, swap;
  std::optional<bool> prefix_cache, deterministic;
  std::optional<uint64_t> random_weights;

  EngineOptions resolve() const {
    EngineOptions o = options_for(device);
    if (isa) o.isa = isa_from(*isa);
    if (kv_dtype) o.kv_dtype = kv_format_named(*kv_dtype).element;
    if (state_dtype) o.state_dtype = dtype_from(*state_dtype);
    for (auto [given, field] : {std::pair{&threads, &o.threads},
                                {&max_seqs, &o.max_seqs},
                                {&max_batch_tokens, &o.max_batch_tokens},
                                {&max_prompt_tokens, &o.max_prompt_tokens},
                                {&max_context, &o.max_context},
                                {&page_tokens, &o.page_tokens}})
      if (*given) *field = **given;
    o.state_bytes = bytes_of("memory", memory);
    o.swap_bytes = bytes_of("swap", swap);
    o.prefix_cache = prefix_cache.value_or(o.prefix_cache);
    o.deterministic = deterministic.value_or(o.deterministic);
    o.random_weights = random_weights;
    o.progress = [](int64_t, int64_t) {  // loading takes a while, and Ctrl-C ends it
      nb::gil_scoped_acquire acquire;
      stop_on_signal();
    };
    return o;
  }
};

std::shared_ptr<LiveEngine> load(const std::string& model, const Options& options) {
  const EngineOptions resolved = options.resolve();
  nb::gil_scoped_release release;
  return std::make_shared<LiveEngine>(model, resolved);
}

std::vector<int32_t> encode_chat(LiveEngine& live, const std::string& messages, const std::string& extra,
                                 const std::string& chat_template) {
  nb::gil_scoped_release release;
  return ChatFormat(live.tokenizer(), chat_template).encode(OrderedJson::parse(messages), OrderedJson::parse(extra));
}

void bind_options(nb::module_& m) {
  nb::class_<Options>(m, "Options")
      .def(nb::init<>())
      .def_rw("device", &Options::device)
      .def_rw("isa", &Options::isa)
      .def_rw("kv_dtype", &Options::kv_dtype)
      .def_rw("state_dtype", &Options::state_dtype)
      .def_rw("threads", &Options::threads)
      .def_rw("max_seqs", &Options::max_seqs)
      .def_rw("max_batch_tokens", &Options::max_batch_tokens)
      .def_rw("max_prompt_tokens", &Options::max_prompt_tokens)
      .def_rw("max_context", &Options::max_context)
      .def_rw("page_tokens", &Options::page_tokens)
      .def_rw("memory", &Options::memory)
      .def_rw("swap", &Options::swap)
      .def_rw("prefix_cache", &Options::prefix_cache)
      .def_rw("deterministic", &Options::deterministic)
      .def_rw("random_weights", &Options::random_weights);
}

void bind_requests(nb::module_& m) {
  nb::class_<Request>(m, "Request").def_rw("sampling", &Request::sampling).def_rw("n", &Request::n).def_rw("priority", &Request::priority);
  nb::class_<SamplingParams>(m, "Sampling")
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("seed", &SamplingParams::seed)
      .def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("stop", &SamplingParams::stop)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("logprobs", &SamplingParams::logprobs);
}

void bind_events(nb::module_& m) {
  nb::class_<TopToken>(m, "TopToken").def_ro("token", &TopToken::token).def_ro("logprob", &TopToken::logprob);
  nb::class_<Sampled>(m, "Sampled").def_ro("token", &Sampled::token).def_ro("logprob", &Sampled::logprob).def_ro("top", &Sampled::top);
  nb::class_<Timing>(m, "Timing")
      .def_prop_ro("ttft_s", &Timing::ttft_s)
      .def_prop_ro("prefill_tokens_per_s", &Timing::prefill_tokens_per_s)
      .def_prop_ro("decode_tokens_per_s", &Timing::decode_tokens_per_s)
      .def_ro("num_cached_tokens", &Timing::n_cached);
  nb::class_<TokenEvent>(m, "Event")
      .def_ro("index", &TokenEvent::choice)
      .def_ro("token_ids", &TokenEvent::tokens)
      .def_ro("sampled", &TokenEvent::sampled)
      .def_prop_ro("text", [](const TokenEvent& e) { return text_of(e.text); })
      .def_prop_ro(
          "finish_reason",
          [](const TokenEvent& e) { return e.finish == Finish::none ? nb::object(nb::none()) : text_of(std::string(name_of(e.finish))); })
      .def_ro("timing", &TokenEvent::timing);
}

}  // namespace

}  // namespace mr

NB_MODULE(_engine, m) {
  using namespace mr;
  nb::exception<Error>(m, "Error", PyExc_ValueError);
  bind_options(m);
  bind_requests(m);
  bind_events(m);
  nb::class_<LiveEngine>(m, "Engine")
      .def_static("load", &load, "model"_a, "options"_a)
      .def("close", &LiveEngine::close, nb::call_guard<nb::gil_scoped_release>())
      .def("request", &LiveEngine::request, "prompt"_a, "Sampled as the model's own defaults say, where it has any.")
      .def("room_after", [](LiveEngine& e, size_t n_prompt) { return e.engine().room_after(n_prompt); })
      .def("max_context", [](LiveEngine& e) { return e.engine().max_context(); })
      .def(
          "encode", [](LiveEngine& e, const std::string& text) { return e.tokenizer().encode(text, true); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("encode_chat", &encode_chat, "messages"_a, "extra"_a, "chat_template"_a)
      .def("decode",
           [](LiveEngine& e, const std::vector<int32_t>& ids, bool skip_special) { return e.tokenizer().decode(ids, skip_special); })
      .def("piece",
           [](LiveEngine& e, int32_t id) { return e.engine().tokenizer() ? text_of(e.tokenizer().piece(id)) : nb::object(nb::none()); });
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<std::shared_ptr<LiveEngine>, Request>(), "engine"_a, "request"_a)
      .def("next", &Stream::next)
      .def("cancel", &Stream::cancel);
}
