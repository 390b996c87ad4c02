#include "engine/step_loop.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/companion.h"

namespace mr {

static bool wants_logits(const StepPart& part) { return part.scores && part.seq->request.request.on_logits; }

static bool wants_logits(const StepPlan& step) {
  return std::ranges::any_of(step.parts, [](const StepPart& part) { return wants_logits(part); });
}

void StepLoop::plan(bool more_may_come) {
  parts_.scheduler.plan(more_may_come, [this](Answering& request, const char* why) { parts_.desk.fail(request, why); });
}

StepLoop::Launched StepLoop::launch() {
  Launched launched{nullptr, Clock::now()};
  launched.step = parts_.scheduler.launch([this](const StepPlan& step) { parts_.runner.prepare(step); });
  return launched;
}

void StepLoop::compute(StepPlan& step) {
  Runner& runner = parts_.runner;
  runner.forward();
  if (wants_logits(step)) hand_out_logits(step, runner.logits());  // before sampling changes them
  runner.launch_sample();
}

void StepLoop::hand_out_logits(const StepPlan& step, Tensor logits) {
  for (const StepPart& part : step.parts) {
    if (!wants_logits(part)) continue;
    Answering& request = part.seq->request;
    auto row = [&](int output) { return std::span<const float>(logits.row<float>(output), size_t(logits.shape[1])); };
    try {
      int output = part.first_out;
      for (int r = part.score_from; r < part.score_to; r++) request.request.on_logits(part.position + r, row(output++));
      if (part.n_sampled() > 0) request.request.on_logits(part.position + part.sample_from, row(output));
    } catch (const std::exception& e) {
      parts_.desk.fail(request, reason_of(e));
    } catch (...) {
      parts_.desk.fail(request, "the reader of its logits failed");
    }
  }
}

void StepLoop::finish(Launched launched) {
  launched.begin = std::max(launched.begin, last_end_);  // a step launched ahead starts when the previous one ends
  if (parts_.on_step) note(launched);
  StepPlan& step = *launched.step;
  parts_.scheduler.absorb(step, parts_.runner.collect(), [this](Sequence& seq, const char* error) {
    error ? parts_.desk.fail(seq.request, error) : parts_.desk.has_news(seq.request);
  });
  Metrics& metrics = parts_.metrics;
  metrics.steps++;
  metrics.computed_tokens += step.n_tokens;
  last_end_ = Clock::now();
  (step.prefill ? metrics.prefill_ns : metrics.decode_ns) += std::chrono::nanoseconds(last_end_ - launched.begin).count();
  work_.end = last_end_;
  if (parts_.on_step) parts_.on_step(work_);
}

void StepLoop::note(const Launched& launched) {
  work_.parts.clear();
  for (const StepPart& part : launched.step->parts) work_.parts.push_back({part.n_all(), part.position + part.n_all(), part.n_out()});
  work_.prefill = launched.step->prefill;
  work_.begin = launched.begin;
}

void StepLoop::forget() { parts_.runner.forget(); }

namespace {

class Serial final : public StepLoop {
 public:
  explicit Serial(Parts parts) : StepLoop(std::move(parts)) {}

  bool turn(bool more_may_come) override {
    parts_.desk.read_mail();
    plan(more_may_come);
    Launched launched = launch();
    if (!launched.step) return false;
    parts_.desk.deliver_news();
    compute(*launched.step);
    finish(launched);
    return true;
  }
};

class Overlapped final : public StepLoop {
 public:
  explicit Overlapped(Parts parts) : StepLoop(std::move(parts)) {}

  bool turn(bool more_may_come) override {
    parts_.desk.read_mail();
    plan(more_may_come);  // what could not be planned while the last step ran
    Launched launched = launch();
    if (!launched.step) return false;
    if (wants_logits(*launched.step)) {  // on_logits may end its request: no concurrent planning
      parts_.desk.deliver_news();
      compute(*launched.step);
    } else {
      compute_beside_planning(*launched.step, more_may_come);
    }
    finish(launched);
    return true;
  }

 private:
  void compute_beside_planning(StepPlan& step, bool more_may_come) {
    std::exception_ptr failure;
    auto prepare_next = [&] {
      try {
        parts_.desk.deliver_news();
        parts_.desk.read_mail();
        plan(more_may_come);
      } catch (...) {
        failure = std::current_exception();
      }
    };
    companion_.run([&] { compute(step); }, prepare_next);
    if (failure) std::rethrow_exception(failure);
  }

  Companion companion_;
};

class Ahead final : public StepLoop {
 public:
  explicit Ahead(Parts parts) : StepLoop(std::move(parts)) {}

  bool turn(bool more_may_come) override {
    parts_.desk.read_mail();
    if (parts_.scheduler.needs_results()) finish_last();
    plan(more_may_come);
    const bool logits = wants_logits(parts_.scheduler.planned());
    if (logits) finish_last();  // its events come first
    Launched next = launch();
    if (next.step) compute(*next.step);
    finish_last();
    last_ = next;
    if (logits) finish_last();
    parts_.desk.deliver_news();
    return next.step;
  }

  bool in_flight() const override { return last_.step; }

  void forget() override {
    last_ = {};
    StepLoop::forget();
  }

 private:
  void finish_last() {
    if (last_.step) finish(std::exchange(last_, {}));
  }

  Launched last_;
};

}  // namespace

std::unique_ptr<StepLoop> make_serial_loop(StepLoop::Parts parts) { return std::make_unique<Serial>(std::move(parts)); }
std::unique_ptr<StepLoop> make_overlapped_loop(StepLoop::Parts parts) { return std::make_unique<Overlapped>(std::move(parts)); }
std::unique_ptr<StepLoop> make_ahead_loop(StepLoop::Parts parts) { return std::make_unique<Ahead>(std::move(parts)); }

}  // namespace mr
