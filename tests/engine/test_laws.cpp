// The answer never depends on the neighbours: every request gives the same bits alone and in a crowd, whatever the chunks,
// threads, pages, prefixes and preemptions were.
#include "engine/harness.h"

namespace mr {
namespace {

const std::vector<std::string> models = {"llama_gqa",
                                         "mistral_window",
                                         "mamba",
                                         "mamba2",
                                         "mixtral",
                                         "gemma2",
                                         "gemma3",
                                         "gemma4",
                                         "jamba",
                                         "smollm3",
                                         "gguf_q4_1",
                                         "llama_rope_dynamic_cross",
                                         "llama_rope_longrope"};

class Law4 : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Law4, testing::ValuesIn(models), [](const auto& info) { return info.param; });

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
    r.priority = int(rng() % 2);
    requests.push_back(std::move(r));
  }
  return requests;
}

// Alone, from scratch, the whole prompt in one step, on one thread.
Answers alone(const std::string& model, const std::vector<Request>& requests, const std::string& device) {
  auto engine = open(model, {.device = device, .threads = 1, .max_context = 128, .prefix_cache = false});
  Answers answers;
  for (const Request& r : requests) answers.push_back(run_all(*engine, {r})[0]);
  return answers;
}

// Memory for this many tokens, and slots for sequences and the prefix tree; 0 (all that may be needed) where the state does
// not grow with the tokens.
int64_t bytes_for(const std::string& model, int n_tokens, int n_seqs) {
  auto engine = open(model, {.threads = 1, .max_context = 128});
  const StateLayout& layout = engine->model().layout();
  if (engine->memory_plan().n_tokens == MemoryPlan::unbounded) return 0;
  const int64_t pages = layout.bytes_per_token() * n_tokens, slot = layout.bytes_per_sequence();
  int64_t snapshots = 0;  // the prefix tree takes a quarter of all bytes for them
  while (slot && (pages + slot * (1 + n_seqs + snapshots)) / 4 / slot > snapshots) snapshots++;
  return pages + slot * (1 + n_seqs + snapshots);
}

struct Seen {
  int64_t preemptions = 0, hits = 0;
};

void compare_crowds(const std::string& model, const std::string& device, int n_seeds, Seen& seen) {
  for (int seed = 0; seed < n_seeds; seed++) {
    std::mt19937 rng(unsigned(seed) * 977 + 5);
    std::vector<Request> requests = crowd(rng, 131, 10);
    Answers expected = alone(model, requests, device);
    EngineOptions options{.device = device, .threads = 1 + int(rng() % 4), .max_seqs = 3 + int(rng() % 6)};
    options.max_batch_tokens = 3 + int(rng() % 62);
    options.max_context = 128;
    options.page_tokens = rng() % 2 ? 16 : 32;
    options.prefix_cache = rng() % 3 != 0;
    int max_seqs = std::min(options.max_seqs, options.max_batch_tokens);
    if (rng() % 2) options.state_bytes = bytes_for(model, std::max(128, options.page_tokens * (max_seqs + 1)) + 64, max_seqs);
    auto engine = open(model, options);
    Answers got = run_all(*engine, requests);
    for (size_t i = 0; i < requests.size(); i++)
      for (size_t c = 0; c < got[i].size(); c++) {
        ASSERT_NE(got[i][c].finish, Finish::error) << got[i][c].error;
        expect_same(got[i][c], expected[i][c], fmt::format("{} seed {} request {} choice {}", model, seed, i, c));
      }
    for (const StateStats::Group& g : engine->state_stats().group) EXPECT_EQ(g.n_used, 0);
    seen.preemptions += engine->stats().preemptions;
    seen.hits += engine->stats().prefix_hit_tokens;
    if (testing::Test::HasFailure()) return;
  }
}

TEST_P(Law4, AloneOrInACrowd) {
  Seen seen;
  compare_crowds(GetParam(), "cpu", 25, seen);
  EXPECT_GT(seen.hits, 0);
  if (bytes_for(GetParam(), 1, 1) > 0) {
    EXPECT_GT(seen.preemptions, 0);
  }
}

TEST_P(Law4, AloneOrInACrowdOnTheReference) {
  Seen seen;
  compare_crowds(GetParam(), "ref", 4, seen);
}

TEST_P(Law4, HoweverThePromptIsChunked) {
  std::mt19937 rng(11);
  Request r = random_request(rng, 131, 1, 12);
  r.score_prompt = true;
  r.prompt.clear();
  for (int i = 0; i < 70; i++) r.prompt.push_back(int(rng() % 131));
  Answer expected = alone(GetParam(), {r}, "cpu")[0][0];
  for (int rows : {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64}) {
    auto engine = open(GetParam(), {.max_batch_tokens = rows, .max_context = 128});
    expect_same(run_one(*engine, r), expected, fmt::format("{} rows a step", rows));
  }
}

TEST_P(Law4, PrefixesFromTheCacheChangeNothing) {
  std::mt19937 rng(12);
  Request r = random_request(rng, 131, 1, 12);
  r.score_prompt = false;
  r.prompt.clear();
  for (int i = 0; i < 75; i++) r.prompt.push_back(int(rng() % 131));
  auto engine = open(GetParam(), {.max_context = 128, .page_tokens = 16});
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
  for (const Request& q : {next, other})
    expect_same(run_one(*engine, q), alone(GetParam(), {q}, "cpu")[0][0], "a prompt that begins alike");

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
  auto engine = open(GetParam(), {.max_context = 128});
  std::vector<Answer> together = run_all(*engine, {r})[0];
  EXPECT_FALSE(together[0].tokens == together[1].tokens && together[1].tokens == together[2].tokens) << "the answers are all the same";
  int64_t computed = engine->stats().computed_tokens;
  EXPECT_LT(computed, int64_t(r.prompt.size()) + 3 * 16) << "the prompt was computed more than once";
  for (int c = 0; c < 3; c++) {
    Request single = r;
    single.n = 1;
    single.first_choice = c;
    Answer answer = alone(GetParam(), {single}, "cpu")[0][0];
    answer.prompt = together[size_t(c)].prompt;  // scores are the first answer's alone
    expect_same(together[size_t(c)], answer, fmt::format("choice {}", c));
  }
}

TEST_P(Law4, ScoresOfAnAnswerAreItsLogprobs) {
  std::mt19937 rng(14);
  Request r = random_request(rng, 131, 50, 20);
  auto engine = open(GetParam(), {.max_context = 128});
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
