// Faults on purpose: an allocation that fails, an operation that throws, a step that stalls, a clock that jumps. The request ends with a
// sentence, no unit and no place stays taken, and the next request is right to the bit.
#include <atomic>
#include <latch>
#include <thread>

#include "engine/faults.h"
#include "engine/harness.h"

namespace mr {
namespace {

std::vector<int32_t> prompt_of(int n, int first = 0) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < n; i++) prompt.push_back((first + 11 * i) % 131);
  return prompt;
}

void expect_at_rest(Engine& engine) {
  engine.check_invariants();
  Stats stats = engine.stats();
  EXPECT_EQ(stats.requests, stats.finished);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  for (const StateStats::Group& g : engine.state_stats().group) EXPECT_EQ(g.n_used, 0);
}

struct Stepping {
  const char* name;
  bool overlap;
  std::optional<bool> ahead;
};
constexpr Stepping steppings[] = {{"serial", false, {}}, {"overlapped", true, {}}, {"ahead", true, true}};

EngineOptions small(const Stepping& stepping) {
  EngineOptions options{.max_seqs = 4, .max_batch_tokens = 24, .max_context = 128, .page_tokens = 16};
  options.overlap = stepping.overlap;
  options.launch_ahead = stepping.ahead;
  return options;
}

// Submits and runs to the end while faults may happen. False: submit() itself refused.
bool run_through(Engine& engine, Request request, std::vector<Answer>& answers, int64_t first, int64_t count, bool& hit) {
  Sink sink = [&answers](const TokenEvent& e) {
    Spared test;
    answers[size_t(e.choice)].take(e);
  };
  bool submitted = true;
  arm(first, count);
  try {
    engine.submit(std::move(request), std::move(sink));
  } catch (const std::bad_alloc&) {
    submitted = false;
  }
  while (engine.step()) {
  }
  hit = disarm();
  return submitted;
}

// The n-th allocation fails, for every n; then `count` in a row.
void fail_every_allocation(const std::string& model, const EngineOptions& options, const Request& request, int64_t count) {
  auto engine = open(model, options);
  const std::vector<Answer> expected = run_all(*engine, {request})[0];
  int n_failed = 0;
  bool hit = true;
  for (int64_t n = 0; hit && !testing::Test::HasFailure(); n++) {
    const std::string where = fmt::format("{}, allocation {} of {}", model, n, count);
    std::vector<Answer> answers(expected.size());
    const bool submitted = run_through(*engine, request, answers, n, count, hit);
    for (size_t c = 0; c < answers.size() && submitted; c++) {
      ASSERT_NE(answers[c].finish, Finish::none) << where << ": it never ended";
      if (answers[c].finish == Finish::error)
        EXPECT_NE(answers[c].error.find("memory"), std::string::npos) << where << ": " << answers[c].error;
      else
        expect_same(answers[c], expected[c], where);
    }
    n_failed += !submitted || answers[0].finish == Finish::error;
    EXPECT_NO_THROW(expect_at_rest(*engine)) << where;
    const std::vector<Answer> next = run_all(*engine, {request})[0];
    for (size_t c = 0; c < next.size(); c++) expect_same(next[c], expected[c], where + ", the next request");
  }
  EXPECT_GT(n_failed, 20) << model << ": the faults were not where the work is";
}

Request rich_request(int n_prompt, int max_tokens) {
  Request r = greedy(prompt_of(n_prompt), max_tokens);
  r.sampling.ignore_eos = true;
  r.sampling.logprobs = 2;
  r.sampling.seed = 7;
  r.sampling.temperature = 0.8f;
  r.sampling.repetition_penalty = 1.2f;
  r.sampling.logit_bias = {{3, 1.f}, {77, -2.f}};
  r.cache_salt = "a salt that is too long to be kept inside of the string itself";
  return r;
}

TEST(Faults, AnAllocationThatFailsCostsOneRequest) {
  for (const Stepping& stepping : steppings) {
    SCOPED_TRACE(stepping.name);
    Request r = rich_request(40, 4);
    r.n = 2;
    fail_every_allocation("llama_gqa", small(stepping), r, 1);
  }
}

TEST(Faults, AllocationsThatFailFromThereOn) {
  for (const Stepping& stepping : steppings) {
    SCOPED_TRACE(stepping.name);
    fail_every_allocation("jamba", small(stepping), rich_request(20, 3), int64_t(1) << 40);
  }
}

TEST(Faults, AllocationsOfText) {
  Request r = greedy({10, 20, 30, 40, 50, 60, 70}, 6);
  r.sampling.ignore_eos = true;
  r.sampling.stop = {"a string that does not come, and is long", "another one of those"};
  fail_every_allocation("gguf_f32", small(steppings[0]), r, 1);
}

TEST(Faults, AllocationsWhileStateIsSwapped) {
  auto roomy = open("llama_gqa");
  EngineOptions options = small(steppings[0]);
  options.state_bytes = roomy->model().layout().bytes_per_token() * 16 * 9;
  options.swap_bytes = options.state_bytes;
  auto engine = open("llama_gqa", options);
  std::vector<Request> requests;
  for (int i = 0; i < 3; i++) {
    requests.push_back(greedy(prompt_of(30, i), 30));
    requests.back().sampling.ignore_eos = true;
  }
  const Answers expected = run_all(*engine, requests);
  EXPECT_GT(engine->stats().swapped_units, 0);
  bool hit = true;
  for (int64_t n = 0; hit && !HasFailure(); n += 37) {
    Answers answers(3);
    for (auto& choices : answers) choices.resize(1);
    for (int i = 1; i < 3; i++)
      engine->submit(requests[size_t(i)], [&answers, i](const TokenEvent& e) {
        Spared test;
        answers[size_t(i)][0].take(e);
      });
    const bool submitted = run_through(*engine, requests[0], answers[0], n, 1, hit);
    for (size_t i = submitted ? 0 : 1; i < 3; i++)
      if (answers[i][0].finish != Finish::error) expect_same(answers[i][0], expected[i][0], fmt::format("allocation {}", n));
    EXPECT_NO_THROW(expect_at_rest(*engine)) << n;
  }
  const Answers again = run_all(*engine, requests);
  for (size_t i = 0; i < 3; i++) expect_same(again[i][0], expected[i][0], "after all faults");
}

// Calls f after every operation of a step: to throw, to stall, to count.
class Fault final : public Observer {
 public:
  explicit Fault(std::function<void(std::string_view operation)> f) : f_(std::move(f)) {}
  void begin() override {}
  void ran(const Bound& at, int first, int count) override { f_(name_of(at.list().ops[size_t(first + count - 1)].kind)); }
  void ran(std::string_view what) override { f_(what); }

 private:
  std::function<void(std::string_view)> f_;
};

// Every operation of a step with two requests throws in its turn.
TEST(Faults, AnOperationThatThrowsEndsWhatWasInItsStep) {
  for (const Stepping& stepping : steppings)
    for (const char* model : {"llama_gqa", "mamba2", "mixtral"}) {
      std::atomic<int64_t> n_done{0}, fails_at{-1};
      EngineOptions options = small(stepping);
      Fault fault([&](std::string_view operation) {
        if (n_done++ == fails_at) throw Error(fmt::format("{} fell over", operation));
      });
      auto engine = open(model, options);
      engine->observe(&fault);
      const std::vector<Request> requests{rich_request(30, 3), rich_request(5, 5)};
      const Answers expected = run_all(*engine, requests);
      bool hit = true;
      int64_t stride = 1;
      for (int64_t n = 0; hit && !HasFailure(); n += stride++) {
        const std::string where = fmt::format("{}, {}, operation {}", stepping.name, model, n);
        n_done = 0;
        fails_at = n;
        Answers answers = run_all(*engine, requests);
        hit = n_done > n;
        fails_at = -1;
        for (size_t i = 0; i < requests.size(); i++) {
          if (answers[i][0].finish == Finish::error)
            EXPECT_TRUE(answers[i][0].error.ends_with(" fell over")) << where << answers[i][0].error;
          else
            expect_same(answers[i][0], expected[i][0], where);
        }
        EXPECT_EQ(hit, answers[0][0].finish == Finish::error || answers[1][0].finish == Finish::error) << where;
        EXPECT_NO_THROW(expect_at_rest(*engine)) << where;
        const Answers next = run_all(*engine, requests);
        for (size_t i = 0; i < requests.size(); i++) expect_same(next[i][0], expected[i][0], where + ", the next requests");
      }
    }
}

// While a step hangs, others submit and cancel without waiting for it; when it goes on, all of that is done.
TEST(Faults, AStepThatStallsHoldsUpNobodyWhoSubmits) {
  for (const Stepping& stepping : steppings) {
    SCOPED_TRACE(stepping.name);
    std::atomic<bool> stall{false};
    std::latch stalled{1}, go_on{1};
    EngineOptions options = small(stepping);
    Fault fault([&](std::string_view operation) {
      if (operation != "attend" || !stall.exchange(false)) return;
      stalled.count_down();
      go_on.wait();
    });
    auto engine = open("llama_gqa", options);
    engine->observe(&fault);
    const Request request = rich_request(30, 6);
    const Answer expected = run_one(*engine, request);
    std::array<Answer, 3> answers;
    std::atomic<int> n_open{3};
    auto sink = [&](size_t i) {
      return [&answers, &n_open, i](const TokenEvent& e) {
        answers[i].take(e);
        if (e.finish != Finish::none && --n_open == 0) n_open.notify_all();
      };
    };
    stall = true;
    std::jthread loop([&](std::stop_token stop) { engine->run(stop); });
    const int64_t first = engine->submit(request, sink(0));
    stalled.wait();
    const int64_t n_steps = engine->stats().steps;
    engine->submit(request, sink(1));
    engine->cancel(engine->submit(request, sink(2)));
    engine->cancel(first);
    EXPECT_EQ(engine->stats().steps, n_steps);
    go_on.count_down();
    for (int n; (n = n_open.load()) > 0;) n_open.wait(n);
    loop.request_stop();
    loop.join();
    EXPECT_EQ(answers[0].finish, Finish::cancelled);
    EXPECT_EQ(answers[2].finish, Finish::cancelled);
    expect_same(answers[1], expected, "beside the one that stalled");
    expect_at_rest(*engine);
  }
}

// A day forward, a day back: nothing of a request is measured by the system's clock.
TEST(Faults, AClockThatJumpsChangesNothing) {
  EngineOptions options = small(steppings[1]);
  options.batching = Batching::dynamic;
  options.batch_delay_s = 0.05;
  auto engine = open("llama_gqa", options);
  const Request request = rich_request(30, 8);
  const Answer expected = run_one(*engine, request);
  std::jthread loop([&](std::stop_token stop) { engine->run(stop); });
  for (int64_t jump : {86400, -86400}) {
    const auto before = std::chrono::system_clock::now();
    Answer answer;
    std::atomic<bool> ended{false};
    faults.seconds_ahead = 0;
    engine->submit(request, [&](const TokenEvent& e) {
      answer.take(e);
      faults.seconds_ahead = jump;
      if (e.finish == Finish::none) return;
      ended = true;
      ended.notify_all();
    });
    faults.seconds_ahead = -jump;
    ended.wait(false);
    EXPECT_GT(std::chrono::abs(std::chrono::system_clock::now() - before), std::chrono::hours(20)) << "the clock did not jump";
    expect_same(answer, expected, "under a clock that jumps");
    EXPECT_GE(answer.timing.started_s, 0.04);
    EXPECT_GE(answer.timing.first_token_s, answer.timing.started_s);
    EXPECT_GE(answer.timing.last_token_s, answer.timing.first_token_s);
    EXPECT_LT(answer.timing.last_token_s, 3600);
  }
  faults.seconds_ahead = 0;
}

// What waits is a prompt and its wishes, once for all its answers.
TEST(Faults, AnswersTakeNoMemoryBeforeTheyRun) {
  auto engine = open("llama_gqa", {.max_seqs = 64, .max_context = 128});
  auto bytes_of = [&](int n) {
    Request r = greedy(prompt_of(100), 4);
    for (int32_t t = 0; t < 131; t++) r.sampling.logit_bias[t] = 1;
    r.n = n;
    Sink sink = [](const TokenEvent&) {};
    arm(int64_t(1) << 40, 0);
    engine->submit(std::move(r), std::move(sink));
    disarm();
    return faults.bytes.load();
  };
  bytes_of(1);
  const int64_t one = bytes_of(1), many = bytes_of(64);
  EXPECT_LE(many, one + 256);
  EXPECT_LT(one, 8192);
  while (engine->step()) {
  }
  expect_at_rest(*engine);
}

}  // namespace
}  // namespace mr
