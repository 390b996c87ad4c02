// The answer never depends on the neighbours: every request gives the same bits alone and in a crowd, whatever the chunks,
// threads, pages, prefixes and preemptions were.
#include "backend/cuda/cuda_backend.h"
#include "engine/harness.h"

namespace mr {
namespace {

const std::vector<std::string> models = {
    "llama_gqa", "mistral_window", "mamba", "mamba2", "falcon_mamba", "mixtral", "gemma2", "gemma3", "gemma3n", "gemma4", "jamba", "lfm2",
    "smollm3", "gguf_q4_1", "llama_rope_dynamic_cross", "llama_rope_longrope",
    // "+" and how state is kept: keys and values, recurrent state
    "llama_gqa+fp8_e4m3", "llama_gqa+fp8_e5m2", "llama_gqa+int8", "llama_gqa+int4", "mistral_window+int4", "gemma3+int8",
    "gemma3n+fp8_e4m3", "jamba+int4+bf16", "lfm2+int8", "mamba++bf16", "mamba2++bf16", "mamba2++f16", "falcon_mamba++f16"};

std::unique_ptr<Engine> open_as(const std::string& name, EngineOptions options = {}) {
  const size_t plus = name.find('+'), second = name.find('+', plus + 1);
  const std::string kv = plus == name.npos ? "" : name.substr(plus + 1, second == name.npos ? second : second - plus - 1);
  if (!kv.empty()) options.kv_dtype = kv_format_named(kv).element;
  if (second != name.npos) options.state_dtype = dtype_from(name.substr(second + 1));
  return open(name.substr(0, plus), options);
}

class Law4 : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Law4, testing::ValuesIn(models), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '+', '_');
  return name;
});

// Some prompts begin like earlier ones, so that prefixes are shared.
std::vector<Request> crowd(std::mt19937& rng, int vocab, int n) {
  std::vector<Request> requests;
  while (int(requests.size()) < n) {
    Request r = random_request(rng, vocab, 60, 20);
    if (!requests.empty() && rng() % 2) {
      const std::vector<int32_t>& other = requests[rng() % requests.size()].prompt;
      std::copy_n(other.begin(), std::min(other.size(), r.prompt.size()) / 4 * 3, r.prompt.begin());
    }
    r.n = rng() % 4 ? 1 : 1 + int(rng() % 3);
    r.priority = int(rng() % 3) - 1;
    requests.push_back(std::move(r));
  }
  return requests;
}

// Alone, from scratch, the whole prompt in one step, on one thread, nothing planned ahead.
std::unique_ptr<Engine> alone(const std::string& model, const std::string& device = "cpu") {
  return open_as(model,
                 {.device = device, .threads = 1, .deterministic = true, .max_context = 128, .prefix_cache = false, .overlap = false});
}

// Memory for this many tokens, and slots for sequences and the prefix tree; 0 (all that may be needed) where the state does
// not grow with the tokens.
int64_t bytes_for(const Engine& engine, int n_tokens, int n_seqs) {
  const StateLayout& layout = engine.model().layout();
  if (engine.memory_plan().n_tokens == MemoryPlan::unbounded) return 0;
  const int64_t pages = layout.bytes_per_token() * n_tokens, slot = layout.bytes_per_sequence();
  int64_t snapshots = 0;  // the prefix tree takes a quarter of all bytes for them
  while (slot && (pages + slot * (1 + n_seqs + snapshots)) / 4 / slot > snapshots) snapshots++;
  return pages + slot * (1 + n_seqs + snapshots);
}

// An engine of any kind, as often as not with so little memory that it must preempt.
EngineOptions random_options(std::mt19937& rng, const Engine& reference) {
  auto one_in = [&](unsigned n) { return rng() % n == 0; };
  EngineOptions o{.threads = 1 + int(rng() % 4), .max_seqs = 3 + int(rng() % 6)};
  o.max_batch_tokens = 3 + int(rng() % 62);
  if (one_in(3)) o.max_prompt_tokens = 1 + int(rng() % unsigned(o.max_batch_tokens));
  o.max_context = 128;
  o.page_tokens = one_in(2) ? 16 : 32;
  o.prefix_cache = !one_in(3);
  o.overlap = !one_in(4);
  if (one_in(2)) o.launch_ahead = true;
  o.victim = one_in(2) ? Victim::largest : Victim::newest;
  if (one_in(4)) o.batching = one_in(2) ? Batching::fixed : Batching::dynamic;
  o.contiguous = one_in(6);
  o.kv_cache = !one_in(8);
  int n_seqs = std::min(o.max_seqs, o.max_batch_tokens);
  if (one_in(2)) o.state_bytes = bytes_for(reference, std::max(128, o.page_tokens * (n_seqs + 1)) + 64, n_seqs);
  if (one_in(2)) o.swap_bytes = o.state_bytes / 2;
  return o;
}

// Memory for little more than one sequence, some of it swapped out, and prefixes shared: few crowds are enough to see all of it happen.
void make_tight(EngineOptions& o, const Engine& reference) {
  o.max_seqs = 6;
  o.max_batch_tokens = 48;
  o.page_tokens = 16;
  o.prefix_cache = o.kv_cache = true;
  o.contiguous = false;
  o.batching = Batching::continuous;
  o.state_bytes = bytes_for(reference, 128 + 64, o.max_seqs);
  o.swap_bytes = o.state_bytes / 2;
}

constexpr int few_crowds = 6;  // where they take long

// How often what could change an answer happened, or has to.
struct Seen {
  int64_t preemptions = 0, hits = 0, swaps = 0, cancelled = 0;
  bool has(const Seen& least) const {
    return preemptions >= least.preemptions && hits >= least.hits && swaps >= least.swaps && cancelled >= least.cancelled;
  }
};

// Submits the crowd, a part of it late; cancels some of the first half at any moment.
Answers run_crowd(Engine& engine, const std::vector<Request>& requests, std::mt19937& rng, bool cancels) {
  Answers answers(requests.size());
  std::vector<int64_t> ids;
  auto submit_next = [&] {
    size_t i = ids.size();
    answers[i].resize(size_t(requests[i].n));
    ids.push_back(engine.submit(requests[i], [&answers, i](const TokenEvent& e) { answers[i][size_t(e.choice)].take(e); }));
  };
  while (ids.size() < requests.size() / 2) submit_next();
  bool more = true;
  for (int n_steps = 0; (more = engine.step()) || ids.size() < requests.size(); n_steps++) {
    engine.check_invariants();
    if (ids.size() < requests.size() && (rng() % 4 == 0 || !more)) submit_next();
    if (cancels && rng() % 8 == 0) engine.cancel(ids[rng() % (requests.size() / 2)]);
    if (n_steps > 100000) {
      ADD_FAILURE() << "the engine does not come to an end";
      break;
    }
  }
  return answers;
}

void expect_counters_add_up(const Engine& engine, const EngineOptions& options, const std::vector<Request>& requests,
                            const Answers& answers, bool cancels) {
  Stats stats = engine.stats();
  int64_t n_prompt = 0, n_generated = 0, n_needed = 0;
  for (size_t i = 0; i < requests.size(); i++) {
    int64_t prompt = int64_t(requests[i].prompt.size());
    n_prompt += prompt;
    n_needed += options.contiguous ? prompt * requests[i].n : prompt;
    for (const Answer& a : answers[i]) {
      n_generated += int64_t(a.tokens.size());
      n_needed += int64_t(a.tokens.size()) - 1;  // the last token is never computed
    }
  }
  EXPECT_EQ(stats.requests, int64_t(requests.size()));
  EXPECT_EQ(stats.finished, stats.requests);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.waits_for, Waits::none);
  EXPECT_EQ(stats.prompt_tokens, n_prompt);
  EXPECT_EQ(stats.generated_tokens, n_generated);
  EXPECT_EQ(stats.state_usage, 0);
  if (cancels || !options.kv_cache) return;
  // Launched ahead, an answer that ends at a stop token has one row too many.
  if (options.batching == Batching::continuous && stats.preemptions == 0 && !options.launch_ahead && options.device != "cuda")
    EXPECT_EQ(stats.computed_tokens + stats.prefix_hit_tokens, n_needed);
  else
    EXPECT_GE(stats.computed_tokens + stats.prefix_hit_tokens, n_needed);
}

// n_seeds crowds, and up to five times as many until the least was seen.
Seen compare_crowds(const std::string& model, const std::string& device, int n_seeds, const Seen& least) {
  Seen seen;
  auto reference = alone(model, device);
  for (int seed = 0; (seed < n_seeds || (seed < 5 * n_seeds && !seen.has(least))) && !testing::Test::HasFailure(); seed++) {
    SCOPED_TRACE(fmt::format("{} seed {}", model, seed));
    std::mt19937 rng(unsigned(seed) * 977 + 5);
    std::vector<Request> requests = crowd(rng, 131, 8);
    EngineOptions options = random_options(rng, *reference);
    if (n_seeds <= few_crowds && seed % 2) make_tight(options, *reference);
    options.device = device;
    options.deterministic = true;
    const bool cancels = rng() % 2;
    auto engine = open_as(model, options);
    Answers got = run_crowd(*engine, requests, rng, cancels);
    for (size_t i = 0; i < requests.size(); i++) {
      std::vector<Answer> expected = run_all(*reference, {requests[i]})[0];
      for (size_t c = 0; c < got[i].size(); c++) {
        EXPECT_NE(got[i][c].finish, Finish::error) << got[i][c].error;
        seen.cancelled += got[i][c].finish == Finish::cancelled;
        if (got[i][c].finish == Finish::cancelled) expected[c].cut_like(got[i][c]);
        expect_same(got[i][c], expected[c], fmt::format("request {} choice {}", i, c));
      }
    }
    expect_counters_add_up(*engine, options, requests, got, cancels);
    for (const StateStats::Group& g : engine->state_stats().group) EXPECT_EQ(g.n_used, 0);
    EXPECT_LE(engine->backend().own_bytes(), engine->memory().own_bytes()) << "the backend takes more than the plan has";
    seen.preemptions += engine->stats().preemptions;
    seen.hits += engine->stats().prefix_hit_tokens;
    seen.swaps += engine->state_stats().n_swapped_in;
  }
  return seen;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int n_crowds = 20;
#else
constexpr int n_crowds = 100;
#endif

// Compares and expects that all happened which could change an answer. Under a rope that scales by the prompt's length only prompts of
// one length share a prefix: that is rare.
void expect_same_in_crowds(const std::string& model, const std::string& device, int n_seeds) {
  const bool shares = n_seeds > few_crowds || model.find("rope_dynamic") == std::string::npos,
             has_state = bytes_for(*alone(model), 1, 1) > 0;
  const Seen least{.preemptions = has_state, .hits = shares, .swaps = has_state, .cancelled = 1};
  const Seen seen = compare_crowds(model, device, n_seeds, least);
  EXPECT_TRUE(seen.has(least)) << seen.preemptions << " preemptions, " << seen.hits << " hits, " << seen.swaps << " swaps, "
                               << seen.cancelled << " cancelled";
}

TEST_P(Law4, AloneOrInACrowd) {
  expect_same_in_crowds(GetParam(), "cpu", GetParam().find('+') == std::string::npos ? n_crowds : n_crowds / 4);
}
TEST_P(Law4, AloneOrInACrowdOnTheReference) { expect_same_in_crowds(GetParam(), "ref", few_crowds); }
TEST_P(Law4, AloneOrInACrowdOnTheGpu) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  if (GetParam().find('+') != std::string::npos) GTEST_SKIP() << "a GPU has none of these formats";
  expect_same_in_crowds(GetParam(), "cuda", few_crowds);
}

TEST_P(Law4, HoweverThePromptIsChunked) {
  std::mt19937 rng(11);
  Request r = random_request(rng, 131, 1, 12);
  r.score_prompt = true;
  r.prompt.clear();
  for (int i = 0; i < 70; i++) r.prompt.push_back(int(rng() % 131));
  Answer expected = run_one(*alone(GetParam()), r);
  for (int rows : {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64}) {
    auto engine = open_as(GetParam(), {.max_batch_tokens = rows, .max_context = 128});
    expect_same(run_one(*engine, r), expected, fmt::format("{} rows a step", rows));
  }
}

TEST_P(Law4, PrefixesFromTheCacheChangeNothing) {
  std::mt19937 rng(12);
  Request r = random_request(rng, 131, 1, 12);
  r.score_prompt = false;
  r.prompt.clear();
  for (int i = 0; i < 75; i++) r.prompt.push_back(int(rng() % 131));
  auto engine = open_as(GetParam(), {.max_context = 128, .page_tokens = 16});
  Answer first = run_one(*engine, r);
  EXPECT_EQ(first.timing.n_cached, 0);
  Answer second = run_one(*engine, r);
  EXPECT_GE(second.timing.n_cached, 64) << "nothing came from the cache";
  expect_same(second, first, "the same prompt again");

  // The next turn of the conversation, and a prompt that leaves the first one in the middle.
  Request next = r;
  next.prompt.insert(next.prompt.end(), first.tokens.begin(), first.tokens.end());
  for (int i = 0; i < 9; i++) next.prompt.push_back(int(rng() % 131));
  Request other = r;
  other.prompt[40] = (other.prompt[40] + 1) % 131;
  for (const Request& q : {next, other}) expect_same(run_one(*engine, q), run_one(*alone(GetParam()), q), "a prompt that begins alike");

  Request salted = r;
  salted.cache_salt = "another tenant";
  Answer third = run_one(*engine, salted);
  EXPECT_EQ(third.timing.n_cached, 0);
  expect_same(third, first, "another tenant");
}

TEST_P(Law4, ManyAnswersEqualAsManyRequests) {
  std::mt19937 rng(13);
  Request r = random_request(rng, 131, 50, 16);
  r.sampling.temperature = 1.2f;
  r.sampling.max_tokens = 16;
  r.n = 3;
  auto engine = open_as(GetParam(), {.max_context = 128});
  std::vector<Answer> together = run_all(*engine, {r})[0];
  EXPECT_FALSE(together[0].tokens == together[1].tokens && together[1].tokens == together[2].tokens) << "the answers are all the same";
  int64_t computed = engine->stats().computed_tokens;
  EXPECT_LT(computed, int64_t(r.prompt.size()) + 3 * 16) << "the prompt was computed more than once";
  for (int c = 0; c < 3; c++) {
    Request single = r;
    single.n = 1;
    single.first_choice = c;
    Answer answer = run_one(*alone(GetParam()), single);
    answer.prompt = together[size_t(c)].prompt;  // scores are the first answer's alone
    expect_same(together[size_t(c)], answer, fmt::format("choice {}", c));
  }
}

TEST_P(Law4, ScoresOfAnAnswerAreItsLogprobs) {
  std::mt19937 rng(14);
  Request r = random_request(rng, 131, 50, 20);
  auto engine = open_as(GetParam(), {.max_context = 128});
  Answer answer = run_one(*engine, r);
  if (GetParam().find("rope_") != std::string::npos) return;  // another prompt length is another rope
  Request score = greedy(r.prompt, 0);
  score.prompt.insert(score.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  score.score_prompt = true;
  Answer scored = run_one(*engine, score);
  EXPECT_EQ(scored.finish, Finish::length);
  EXPECT_TRUE(scored.tokens.empty());
  ASSERT_EQ(scored.prompt.size(), score.prompt.size());
  for (size_t i = 0; i < answer.tokens.size(); i++)
    EXPECT_EQ(scored.prompt[r.prompt.size() + i].logprob, answer.logprobs[i]) << "token " << i;
}

}  // namespace
}  // namespace mr
