// Who runs when: the plain forms of batching and state do what they say, priorities order, nobody starves.
#include <thread>

#include "engine/harness.h"

namespace mr {
namespace {

std::vector<int32_t> prompt_of(int n, int first = 0) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < n; i++) prompt.push_back((first + 7 * i) % 131);
  return prompt;
}

TEST(Batching, StaticPadsPromptsAndRunsToTheLongestMember) {
  EngineOptions options{.max_seqs = 3, .max_batch_tokens = 100, .max_context = 128};
  options.prefix_cache = false;
  options.batching = Batching::fixed;
  auto engine = open("llama_gqa", options);
  std::vector<Request> requests{greedy(prompt_of(10), 3), greedy(prompt_of(20, 1), 9), greedy(prompt_of(5, 2), 1),
                                greedy(prompt_of(8, 3), 4)};
  for (Request& r : requests) r.sampling.ignore_eos = true;
  Answers padded = run_all(*engine, requests);
  // Three prompts of 20 rows, then 8 steps of 3 rows; the fourth request is a batch of its own.
  EXPECT_EQ(engine->stats().computed_tokens, 3 * 20 + 8 * 3 + 8 + 3);
  EXPECT_EQ(engine->stats().steps, 1 + 8 + 1 + 3);
  auto ragged = open("llama_gqa", {.max_seqs = 3, .max_context = 128, .prefix_cache = false});
  Answers expected = run_all(*ragged, requests);
  for (size_t i = 0; i < requests.size(); i++) expect_same(padded[i][0], expected[i][0], fmt::format("request {}", i));
  EXPECT_EQ(ragged->stats().computed_tokens, 10 + 20 + 5 + 8 + 2 + 8 + 0 + 3);
}

TEST(Batching, PaddingIsCutIntoChunksToo) {
  EngineOptions options{.max_seqs = 3, .max_batch_tokens = 16, .max_context = 128};
  options.prefix_cache = false;
  options.batching = Batching::fixed;
  for (const char* model : {"llama_gqa", "mamba", "jamba"}) {
    auto engine = open(model, options);
    std::vector<Request> requests{greedy(prompt_of(3), 2), greedy(prompt_of(40, 1), 2), greedy(prompt_of(17, 2), 2)};
    for (Request& r : requests) r.sampling.ignore_eos = true;
    run_all(*engine, requests);
    EXPECT_EQ(engine->stats().computed_tokens, 3 * 40 + 3) << model;
  }
}

// Static batching waits for a full batch as long as someone may come; dynamic batching for its delay.
TEST(Batching, WaitsForTheBatchToFill) {
  for (Batching batching : {Batching::fixed, Batching::dynamic}) {
    EngineOptions options{.max_seqs = 2, .max_context = 128};
    options.batching = batching;
    options.batch_delay_s = 0.2;
    auto engine = open("llama_gqa", options);
    std::atomic<int> n_ended{0};
    Sink sink = [&](const TokenEvent& e) {
      if (e.finish == Finish::none) return;
      n_ended++;
      n_ended.notify_all();
    };
    Clock::time_point begin = Clock::now();
    std::jthread loop([&](std::stop_token stop) { engine->run(stop); });
    engine->submit(greedy(prompt_of(10), 3), sink);
    if (batching == Batching::fixed) {
      while (engine->stats().waits_for != Waits::batch) std::this_thread::yield();
      EXPECT_EQ(n_ended, 0);
      engine->submit(greedy(prompt_of(10, 1), 3), sink);
    }
    for (int wanted = batching == Batching::fixed ? 2 : 1, n; (n = n_ended) < wanted;) n_ended.wait(n);
    if (batching == Batching::dynamic) {
      EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(200));
    }
  }
}

TEST(Batching, ABatchThatNobodyWillFillStarts) {
  EngineOptions options{.max_seqs = 2, .max_context = 128};
  options.batching = Batching::fixed;
  auto engine = open("llama_gqa", options);
  std::atomic<bool> ended{false};
  std::jthread loop([&](std::stop_token stop) { engine->run(stop); });
  engine->submit(greedy(prompt_of(10), 3), [&](const TokenEvent& e) {
    if (e.finish == Finish::none) return;
    ended = true;
    ended.notify_all();
  });
  while (engine->stats().waits_for != Waits::batch) std::this_thread::yield();
  engine->close();
  ended.wait(false);
}

TEST(PlainState, WithoutAKvCacheEveryTokenComputesItsContext) {
  Request r = greedy(prompt_of(10), 5);
  r.sampling.ignore_eos = true;
  EngineOptions options{.max_context = 128};
  options.kv_cache = false;
  auto engine = open("llama_gqa", options);
  Answer answer = run_one(*engine, r);
  EXPECT_EQ(engine->stats().computed_tokens, 10 + 11 + 12 + 13 + 14);
  expect_same(answer, run_one(*open("llama_gqa", {.max_context = 128}), r), "with a cache");
}

TEST(PlainState, ContiguousReservesTheLongestForEveryone) {
  auto roomy = open("llama_gqa");
  int64_t page = roomy->model().layout().bytes_per_token() * 16;
  // Room for 2 sequences of 128 tokens, and 4 pages that nobody can use.
  EngineOptions options{.max_seqs = 4, .max_context = 128, .state_bytes = page * (1 + 2 * 8 + 4), .page_tokens = 16};
  options.contiguous = true;
  auto engine = open("llama_gqa", options);
  Answers got;
  for (int i = 0; i < 3; i++) engine->submit(greedy(prompt_of(10, i), 20), [](const TokenEvent&) {});
  engine->step();
  engine->step();
  Stats stats = engine->stats();
  EXPECT_EQ(stats.running, 2);
  EXPECT_EQ(stats.waiting, 1);
  EXPECT_EQ(stats.waits_for, Waits::memory);
  EXPECT_NEAR(stats.internal_waste, 1 - 11.0 / 128, 0.01);
  EXPECT_FLOAT_EQ(stats.external_waste, 4.0f / 20);
  while (engine->step()) engine->check_invariants();
  EXPECT_EQ(engine->stats().finished, 3);

  options.contiguous = false;
  engine = open("llama_gqa", options);
  for (int i = 0; i < 3; i++) engine->submit(greedy(prompt_of(10, i), 20), [](const TokenEvent&) {});
  engine->step();
  engine->step();
  EXPECT_EQ(engine->stats().running, 3);
  EXPECT_NEAR(engine->stats().internal_waste, 1 - 11.0 / 16, 0.01);
  EXPECT_EQ(engine->stats().external_waste, 0);
}

// Answers that share no state begin one by one, whenever there is a place, and another may be before them: the request ends with the last.
TEST(PlainState, AnAnswerMayBeginAfterAnotherHasEnded) {
  EngineOptions options{.max_seqs = 2, .max_context = 64};
  options.contiguous = true;
  auto engine = open("llama_gqa", options);
  std::vector<Request> requests{greedy(prompt_of(10), 20), greedy(prompt_of(10, 1), 3), greedy(prompt_of(10, 2), 5)};
  for (Request& r : requests) r.sampling.ignore_eos = true;
  requests[1].n = 2;
  requests[2].priority = -1;
  Answers answers{std::vector<Answer>(1), std::vector<Answer>(2), std::vector<Answer>(1)};
  auto submit = [&](size_t i) { engine->submit(requests[i], [&, i](const TokenEvent& e) { answers[i][size_t(e.choice)].take(e); }); };
  submit(0);
  submit(1);
  while (engine->stats().generated_tokens < 6) engine->step();  // three each: the first of two answers has ended
  submit(2);
  while (engine->step()) engine->check_invariants();
  for (size_t i = 0; i < 3; i++)
    for (const Answer& a : answers[i]) EXPECT_EQ(int(a.tokens.size()), requests[i].sampling.max_tokens) << "request " << i;
  EXPECT_EQ(engine->stats().finished, 3);
  EXPECT_EQ(engine->stats().preemptions, 0);
}

TEST(Scheduling, PromptRowsHaveALimitOfTheirOwn) {
  EngineOptions options{.max_batch_tokens = 64, .max_prompt_tokens = 10, .max_context = 128};
  options.prefix_cache = false;
  auto engine = open("llama_gqa", options);
  run_one(*engine, greedy(prompt_of(60), 1));
  EXPECT_EQ(engine->stats().steps, 6);
}

// There is memory for so many rows of logits: prompts that are scored go in pieces, however many rows a step has.
TEST(Scheduling, ScoresOfLongPromptsGoInPieces) {
  int most = 0;
  EngineOptions options{.max_seqs = 4, .max_batch_tokens = 128, .max_context = 128};
  options.on_step = [&](const StepWork& work) {
    int outputs = 0;
    for (const StepWork::Part& part : work.parts) outputs += part.outputs;
    most = std::max(most, outputs);
  };
  auto engine = open("llama_gqa", options);
  std::vector<Request> requests{greedy(prompt_of(100), 2), greedy(prompt_of(90, 1), 2)};
  for (Request& r : requests) r.score_prompt = true;
  Answers answers = run_all(*engine, requests);
  EXPECT_LE(most, engine->limits().max_out());
  EXPECT_EQ(answers[0][0].prompt.size(), 100u);
  EXPECT_EQ(answers[1][0].prompt.size(), 90u);
}

TEST(Scheduling, TheLimitOfPromptRowsIsForAllPromptsTogether) {
  EngineOptions options{.max_batch_tokens = 64, .max_prompt_tokens = 10, .max_context = 128};
  options.prefix_cache = false;
  int most = 0;
  options.on_step = [&](const StepWork& work) {
    int rows = 0;
    for (const StepWork::Part& part : work.parts) rows += part.rows > 1 ? part.rows : 0;
    most = std::max(most, rows);
  };
  auto engine = open("llama_gqa", options);
  run_all(*engine, {greedy(prompt_of(4), 1), greedy(prompt_of(24, 1), 1), greedy(prompt_of(22, 2), 1)});
  EXPECT_EQ(most, 10);
  EXPECT_EQ(engine->stats().steps, 5);
}

// Decodes have their rows first: while a long prompt is read, an answer that runs gets a token in every step.
TEST(Scheduling, APromptNeverTakesTheRowOfADecode) {
  std::vector<StepWork> steps;
  EngineOptions options{.max_seqs = 3, .max_batch_tokens = 8, .max_context = 128};
  options.on_step = [&](const StepWork& work) { steps.push_back(work); };
  auto engine = open("llama_gqa", options);
  Request talks = greedy(prompt_of(4), 9), reads = greedy(prompt_of(100, 1), 1);
  talks.sampling.ignore_eos = true;
  talks.priority = 1;  // the prompt stands before it in the order, and still its rows come last
  engine->submit(talks, [](const TokenEvent&) {});
  engine->step();
  engine->submit(reads, [](const TokenEvent&) {});
  while (engine->step()) {
  }
  int next = 5;  // the context of the next token
  for (const StepWork& work : steps) {
    int rows = 0;
    bool decoded = false;
    for (const StepWork::Part& part : work.parts) {
      rows += part.rows;
      decoded |= part.rows == 1 && part.context == next;
    }
    EXPECT_LE(rows, 8);
    if (decoded) next++;
    const bool reading = std::ranges::any_of(work.parts, [](const StepWork::Part& p) { return p.rows > 1 && p.context > 4; });
    EXPECT_TRUE(!reading || decoded || next > 12) << "step of " << rows << " rows without the token at " << next;
  }
  EXPECT_EQ(next, 13);  // 4 tokens of the prompt, 8 that were computed of 9
}

// All answers of a request take places among those that may run at once, from its first row on.
TEST(Scheduling, EveryAnswerOfARequestTakesAPlace) {
  for (bool contiguous : {false, true}) {
    size_t most = 0;
    EngineOptions options{.max_seqs = 4, .max_batch_tokens = 64, .max_context = 128};
    options.contiguous = contiguous;
    options.on_step = [&](const StepWork& work) { most = std::max(most, work.parts.size()); };
    auto engine = open("llama_gqa", options);
    const int n[] = {3, 2, 1};
    for (int i = 0; i < 3; i++) {
      Request r = greedy(prompt_of(10, i), 6);
      r.n = n[i];
      r.sampling.ignore_eos = true;
      engine->submit(r, [](const TokenEvent&) {});
    }
    engine->step();
    Stats stats = engine->stats();
    EXPECT_EQ(stats.running, contiguous ? 4 : 3);  // contiguous: each answer is a sequence of its own from the start
    EXPECT_EQ(stats.waiting, contiguous ? 2 : 3);
    EXPECT_EQ(stats.waits_for, Waits::sequences);
    while (engine->step()) engine->check_invariants();
    EXPECT_EQ(most, contiguous ? 4u : 3u);  // the second request starts when the first has ended, and takes the third along
    EXPECT_EQ(engine->stats().finished, 3);
    EXPECT_EQ(engine->stats().waiting, 0);
  }
}

// One that waits for memory, its first answer made already, still waits with all of them.
TEST(Scheduling, WhoWaitsForMemoryWaitsWithAllItsAnswers) {
  int64_t page = open("llama_gqa")->model().layout().bytes_per_token() * 16;
  EngineOptions options{.max_seqs = 8, .max_batch_tokens = 128, .max_context = 128, .state_bytes = page * 10, .page_tokens = 16};
  options.prefix_cache = false;
  auto engine = open("llama_gqa", options);
  Request large = greedy(prompt_of(90), 5), waits = greedy(prompt_of(70, 1), 5);
  waits.n = 3;
  engine->submit(large, [](const TokenEvent&) {});
  engine->submit(waits, [](const TokenEvent&) {});
  engine->step();
  EXPECT_EQ(engine->stats().waits_for, Waits::memory);
  EXPECT_EQ(engine->stats().running, 1);
  EXPECT_EQ(engine->stats().waiting, 3);
  while (engine->step()) engine->check_invariants();
  EXPECT_EQ(engine->stats().finished, 2);
}

// Whoever has to wait for memory does not throw out another of the same priority.
TEST(Scheduling, EqualsDoNotPreemptEachOther) {
  int64_t page = open("llama_gqa")->model().layout().bytes_per_token() * 16;
  EngineOptions options{.max_seqs = 3, .max_context = 128, .state_bytes = page * 9, .page_tokens = 16};
  options.victim = Victim::largest;
  options.prefix_cache = false;
  auto engine = open("llama_gqa", options);
  // After 13 tokens each they want 3, 4 and 2 pages of 8. The second gives its own back, and waits until the third has ended.
  std::vector<Request> requests{greedy(prompt_of(20), 30), greedy(prompt_of(40, 1), 30), greedy(prompt_of(10, 2), 20)};
  for (Request& r : requests) r.sampling.ignore_eos = true;
  run_all(*engine, requests);
  EXPECT_EQ(engine->stats().preemptions, 1);
}

// However large it is: someone must come to an end.
TEST(Scheduling, TheFirstIsNeverTheVictim) {
  int64_t page = open("llama_gqa")->model().layout().bytes_per_token() * 16;
  EngineOptions options{.max_seqs = 3, .max_context = 128, .state_bytes = page * 9, .page_tokens = 16};
  options.victim = Victim::largest;
  options.prefix_cache = false;
  auto engine = open("llama_gqa", options);
  std::vector<int> order;
  for (int i = 0; i < 3; i++) {
    Request r = greedy(prompt_of(i == 0 ? 40 : 10, i), 30);  // in the end they want 5, 3 and 3 pages of 8
    r.sampling.ignore_eos = true;
    engine->submit(r, [&order, i](const TokenEvent& e) {
      if (e.finish != Finish::none) order.push_back(i);
    });
  }
  while (engine->step()) engine->check_invariants();
  ASSERT_EQ(order.size(), 3u);
  EXPECT_EQ(order[0], 0);
  EXPECT_GT(engine->stats().preemptions, 0);
}

// An answer that nobody has begun yet still has its last word, once.
TEST(Scheduling, ARequestThatWaitsIsCancelledInEachOfItsAnswers) {
  auto engine = open("llama_gqa", {.max_seqs = 2, .max_context = 128});
  Request r = greedy(prompt_of(10), 20);
  r.n = 2;
  r.sampling.ignore_eos = true;
  Answers answers(2, std::vector<Answer>(2));
  std::vector<int64_t> ids;
  for (size_t i = 0; i < 2; i++)
    ids.push_back(engine->submit(r, [&answers, i](const TokenEvent& e) { answers[i][size_t(e.choice)].take(e); }));
  for (int i = 0; i < 3; i++) engine->step();
  engine->cancel(ids[1]);
  engine->cancel(ids[1]);
  while (engine->step()) engine->check_invariants();
  for (const Answer& a : answers[0]) EXPECT_EQ(a.tokens.size(), 20u);
  for (const Answer& a : answers[1]) {
    EXPECT_EQ(a.finish, Finish::cancelled);
    EXPECT_EQ(a.n_events, 1);
    EXPECT_EQ(a.timing.n_prompt, 10);
  }
  EXPECT_EQ(engine->stats().finished, 2);
}

TEST(Scheduling, AWaitingRequestSaysWhy) {
  auto reason = [](EngineOptions options, std::vector<Request> requests) {
    options.max_context = 128;
    auto engine = open("llama_gqa", options);
    for (const Request& r : requests) engine->submit(r, [](const TokenEvent&) {});
    engine->step();
    Waits waits = engine->stats().waits_for;
    while (engine->step()) {
    }
    return waits;
  };
  std::vector<Request> three{greedy(prompt_of(40), 9), greedy(prompt_of(40, 1), 9), greedy(prompt_of(40, 2), 9)};
  EXPECT_EQ(reason({}, three), Waits::none);
  EXPECT_EQ(reason({.max_seqs = 2}, three), Waits::sequences);
  EXPECT_EQ(reason({.max_batch_tokens = 40}, three), Waits::tokens);
  int64_t page = open("llama_gqa")->model().layout().bytes_per_token() * 16;
  EXPECT_EQ(reason({.max_seqs = 3, .state_bytes = page * 9, .page_tokens = 16}, three), Waits::memory);
}

TEST(Scheduling, ABetterPriorityTakesThePlaceOfARunningOne) {
  auto engine = open("llama_gqa", {.max_seqs = 2, .max_context = 128});
  std::vector<int> order;
  auto submit = [&](int name, int priority, int n) {
    Request r = greedy(prompt_of(20, name), n);
    r.priority = priority;
    r.sampling.ignore_eos = true;
    engine->submit(r, [&order, name](const TokenEvent& e) {
      if (e.finish != Finish::none) order.push_back(name);
    });
  };
  submit(0, 0, 20);
  submit(1, 5, 20);
  for (int i = 0; i < 5; i++) engine->step();
  submit(2, 0, 5);
  while (engine->step()) engine->check_invariants();
  EXPECT_EQ(order, (std::vector<int>{2, 0, 1}));
  EXPECT_EQ(engine->stats().preemptions, 1);
}

// A request of worse priority is passed by `overtakes` later ones for each level, and by no more, while better ones never
// cease to come; then it ends within as many steps as it has tokens, and those that run with it have.
TEST(Scheduling, NobodyStarves) {
  for (Victim victim : {Victim::newest, Victim::largest}) {
    EngineOptions options{.max_seqs = 2, .max_batch_tokens = 8, .max_context = 128};
    options.victim = victim;
    options.prefix_cache = false;
    auto engine = open("llama_gqa", options);
    Request low = greedy(prompt_of(6), 3), high = greedy(prompt_of(4, 1), 2);
    low.priority = 1;
    bool ended = false;
    engine->submit(low, [&](const TokenEvent& e) { ended |= e.finish != Finish::none; });
    int64_t n_high = 0, n_passed = 0;
    for (int step = 0; !ended && step < 20000; step++) {
      while (engine->stats().requests + 2 > n_high && n_high < engine->stats().finished + 4) {
        engine->submit(high, [&](const TokenEvent& e) { n_passed += e.finish != Finish::none && !ended; });
        n_high++;
      }
      engine->step();
    }
    EXPECT_TRUE(ended);
    EXPECT_GT(n_passed, Sequence::overtakes - 4) << "priority means nothing";
    EXPECT_LE(n_passed, Sequence::overtakes + options.max_seqs);
  }
}

TEST(Scheduling, SwappedStateComesBackAndNothingIsComputedTwice) {
  auto roomy = open("llama_gqa");
  int64_t page = roomy->model().layout().bytes_per_token() * 16;
  std::vector<Request> requests{greedy(prompt_of(40), 40), greedy(prompt_of(40, 1), 40), greedy(prompt_of(40, 2), 40)};
  for (Request& r : requests) r.sampling.ignore_eos = true;
  EngineOptions options{.max_seqs = 3, .max_context = 128, .state_bytes = page * 12, .page_tokens = 16};
  options.prefix_cache = false;
  options.swap_bytes = page * 12;
  auto engine = open("llama_gqa", options);
  Answers swapped = run_all(*engine, requests);
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(engine->stats().swapped_units, 0);
  EXPECT_EQ(engine->stats().computed_tokens, 3 * (40 + 39));
  options.swap_bytes = 0;
  engine = open("llama_gqa", options);
  Answers recomputed = run_all(*engine, requests);
  EXPECT_GT(engine->stats().computed_tokens, 3 * (40 + 39));
  for (size_t i = 0; i < requests.size(); i++) expect_same(swapped[i][0], recomputed[i][0], "swapped or computed anew");
}

}  // namespace
}  // namespace mr
