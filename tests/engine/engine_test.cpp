// Beginnings and ends of requests: stops, lengths, refusals, cancels, failures, threads.
#include <cmath>
#include <numeric>
#include <thread>

#include "core/random.h"
#include "engine/harness.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

std::vector<int32_t> random_prompt(std::mt19937& rng, int n, int vocab = 131) {
  std::vector<int32_t> prompt;
  while (int(prompt.size()) < n) prompt.push_back(int32_t(rng() % unsigned(vocab)));
  return prompt;
}

// What submit says against a request; empty: nothing.
std::string refusal(Engine& engine, const Request& request) {
  try {
    engine.submit(request, [](const TokenEvent&) {});
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Engine, RefusesInOneSentenceWithTheNumbers) {
  auto engine = open("llama_gqa", {.max_seqs = 4, .max_context = 100});
  EXPECT_EQ(refusal(*engine, greedy({}, 5)), "the prompt is empty");
  EXPECT_EQ(refusal(*engine, greedy({1, 131}, 5)), "the prompt has token 131, but the vocabulary has 131 tokens");
  EXPECT_EQ(refusal(*engine, greedy({1, -1}, 5)), "the prompt has token -1, but the vocabulary has 131 tokens");
  EXPECT_EQ(refusal(*engine, greedy(std::vector<int32_t>(100, 1), 5)),
            "the prompt has 100 tokens, but the context holds 100, the answer included");
  EXPECT_EQ(refusal(*engine, greedy(std::vector<int32_t>(100, 1), 0)), "");
  Request r = greedy({1}, 5);
  r.n = 5;
  EXPECT_EQ(refusal(*engine, r), "n must be between 1 and 4, the sequences that may run at once, not 5");
  r = greedy({1}, 5);
  r.sampling.stop = {"x"};
  EXPECT_EQ(refusal(*engine, r), "stop strings need a tokenizer, and the model has none");
  r = greedy({1}, 5);
  r.sampling.top_p = 2;
  EXPECT_EQ(refusal(*engine, r), "top_p must be above 0 and at most 1, not 2");
}

TEST(Engine, TellsWhatEachStepComputes) {
  std::vector<StepWork> steps;
  EngineOptions options{.max_batch_tokens = 4};
  options.on_step = [&](const StepWork& work) { steps.push_back(work); };
  auto engine = open("llama_gqa", options);
  Request r = greedy({1, 2, 3, 4, 5, 6, 7}, 3);
  r.sampling.ignore_eos = true;
  run_one(*engine, r);
  ASSERT_EQ(steps.size(), 4u);  // 4 + 3 rows of the prompt, the second with a token; two more tokens
  const int expected[4][3] = {{4, 4, 0}, {3, 7, 1}, {1, 8, 1}, {1, 9, 1}};
  for (size_t i = 0; i < steps.size(); i++) {
    ASSERT_EQ(steps[i].parts.size(), 1u);
    const StepWork::Part& p = steps[i].parts[0];
    EXPECT_EQ(std::vector({p.rows, p.context, p.outputs}), std::vector(expected[i], expected[i] + 3)) << i;
    EXPECT_EQ(steps[i].prefill, i < 2);
    EXPECT_LT(steps[i].begin, steps[i].end);
  }
}

TEST(Engine, RefusesWhatNeverFits) {
  auto roomy = open("llama_gqa");
  int64_t page = roomy->model().layout().bytes_per_token() * 16;
  auto engine = open("llama_gqa", {.max_seqs = 2, .state_bytes = page * 5, .page_tokens = 16});
  EXPECT_EQ(engine->memory_plan().n_tokens, 64);
  EXPECT_EQ(refusal(*engine, greedy(std::vector<int32_t>(50, 1), 16)),
            "a prompt of 50 tokens with an answer of up to 16 needs state for 65 tokens, but there is memory for 64");
  Answer answer = run_one(*engine, greedy(std::vector<int32_t>(50, 1), 15));  // fills every page
  EXPECT_EQ(answer.tokens.size(), 15u);
}

TEST(Engine, UnknownDeviceAndContextBeyondTheModel) {
  EXPECT_THROW(open("llama_gqa", {.device = "abacus"}), Error);
  EXPECT_THROW(open("llama_gqa", {.max_context = 257}), Error);
  EXPECT_THROW(open("llama_gqa", {.max_seqs = 0}), Error);
}

TEST(Engine, TheContextBoundsTheAnswer) {
  auto engine = open("llama_gqa", {.max_context = 64});
  Answer answer = run_one(*engine, greedy(std::vector<int32_t>(60, 1), 1000));
  EXPECT_EQ(answer.tokens.size(), 4u);
  EXPECT_EQ(answer.finish, Finish::length);
}

TEST(Engine, TimingAddsUp) {
  auto engine = open("llama_gqa");
  std::mt19937 rng(2);
  Answer answer = run_one(*engine, greedy(random_prompt(rng, 40), 8));
  EXPECT_EQ(answer.timing.n_prompt, 40);
  EXPECT_EQ(answer.timing.n_generated, 8);
  EXPECT_GE(answer.timing.started_s, 0);
  EXPECT_GT(answer.timing.ttft_s(), answer.timing.started_s);
  EXPECT_GT(answer.timing.prefill_tokens_per_s(), 0);
  EXPECT_GT(answer.timing.decode_tokens_per_s(), 0);
  EXPECT_EQ(answer.n_events, 8);
  Stats stats = engine->stats();
  EXPECT_EQ(stats.requests, 1);
  EXPECT_EQ(stats.finished, 1);
  EXPECT_EQ(stats.prompt_tokens, 40);
  EXPECT_EQ(stats.generated_tokens, 8);
  EXPECT_EQ(stats.computed_tokens, 47);  // the last token is never computed
  EXPECT_EQ(stats.steps, 8);
  answer = run_one(*engine, greedy(random_prompt(rng, 5), 1));
  EXPECT_GT(answer.timing.first_token_s, 0);
  EXPECT_EQ(answer.timing.first_token_s, answer.timing.last_token_s) << "it is the same token";
}

TEST(Engine, HasRoomForTheWholeContextWithoutPages) {
  auto engine = open("mamba", {.max_context = 1000});
  EXPECT_EQ(engine->room_after(1), 999);
}

// A copy of a fixture with a scale for the keys and one for the values of every layer.
static fs::path with_kv_scales(float k_scale, float v_scale) {
  const fs::path copy = fs::path(testing::TempDir()) / "millrace_scaled_model";
  fs::remove_all(copy);
  fs::copy(fixture("llama_gqa"), copy);
  std::ifstream in(copy / "model.safetensors", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  Json header = Json::parse(bytes.substr(8, size));
  std::string data = bytes.substr(8 + size);
  const int layers = read_json(copy / "config.json")["num_hidden_layers"];
  for (int i = 0; i < layers; i++)
    for (auto [name, scale] : {std::pair{"k_scale", k_scale}, {"v_scale", v_scale}}) {
      header[fmt::format("model.layers.{}.self_attn.{}", i, name)] = {
          {"dtype", "F32"}, {"shape", Json::array()}, {"data_offsets", {data.size(), data.size() + 4}}};
      data.append(reinterpret_cast<const char*>(&scale), 4);
    }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  size = text.size();
  fs::remove(copy / "model.safetensors");
  std::ofstream(copy / "model.safetensors", std::ios::binary).write(reinterpret_cast<const char*>(&size), 8) << text << data;
  return copy;
}

// FP8 divides by the checkpoint's scales; formats of their own range or scales do not.
TEST(Engine, TakesTheScalesOfKeysAndValues) {
  std::mt19937 rng(5);
  const Request request = greedy(random_prompt(rng, 40), 12);
  const fs::path plain = fixture("llama_gqa");
  auto run = [&](const fs::path& path, DType kv) { return run_one(*Engine::create(path, {.threads = 1, .kv_dtype = kv}), request); };
  const fs::path scaled = with_kv_scales(0.25f, 0.5f);
  for (DType kv : {DType::f16, DType::i8}) expect_same(run(scaled, kv), run(plain, kv), std::string(kv_format(kv).name));
  // Powers of two move the exponent alone: E5M2 has room for that, and keeps the same fractions of all but the smallest values.
  const Answer moved = run(scaled, DType::f8_e5m2), unmoved = run(plain, DType::f8_e5m2);
  ASSERT_EQ(moved.tokens, unmoved.tokens);
  for (size_t i = 0; i < moved.logprobs.size(); i++) EXPECT_NEAR(moved.logprobs[i], unmoved.logprobs[i], 1e-3);
  EXPECT_NE(run(with_kv_scales(0.3f, 0.7f), DType::f8_e4m3).logprobs, run(plain, DType::f8_e4m3).logprobs);
  for (float wrong : {0.0f, -1.0f, NAN, INFINITY}) {
    const fs::path path = with_kv_scales(1, wrong);
    try {
      Engine::create(path, {.threads = 1, .kv_dtype = DType::f8_e4m3});
      ADD_FAILURE() << wrong << " is no scale";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("v_scale"), std::string::npos) << e.what();
    }
  }
  fs::remove_all(scaled);
}

// A copy of a fixture whose generation_config.json names a stop token.
TEST(Engine, EndsAtAStopTokenUnlessToldOtherwise) {
  Json expected = expected_of("llama_gqa");
  auto greedy_tokens = expected["greedy"].get<std::vector<int32_t>>();
  Request request = greedy(expected["prompt"].get<std::vector<int32_t>>(), int(greedy_tokens.size()));
  int32_t eos = greedy_tokens[14];
  size_t first = size_t(std::ranges::find(greedy_tokens, eos) - greedy_tokens.begin());

  fs::path copy = fs::path(testing::TempDir()) / "millrace_eos_model";
  fs::remove_all(copy);
  fs::copy(fixture("llama_gqa"), copy);
  for (Json ids : {Json(eos), Json::array({130, eos})}) {
    std::ofstream(copy / "generation_config.json") << Json{{"eos_token_id", ids}};
    auto engine = Engine::create(copy, {.threads = 1, .kv_dtype = DType::f32});
    Answer answer = run_one(*engine, request);
    EXPECT_EQ(answer.finish, Finish::stop);
    EXPECT_EQ(answer.tokens, std::vector<int32_t>(greedy_tokens.begin(), greedy_tokens.begin() + long(first) + 1));
    Request ignoring = request;
    ignoring.sampling.ignore_eos = true;
    EXPECT_EQ(run_one(*engine, ignoring).tokens, greedy_tokens);
  }
  std::ofstream(copy / "generation_config.json") << R"({"eos_token_id": "two"})";
  EXPECT_THROW(Engine::create(copy, {.threads = 1}), Error);
  fs::remove_all(copy);
}

TEST(Engine, StopStringsCutTheTextAndEndTheAnswer) {
  auto engine = open("gguf_f32");
  ASSERT_TRUE(engine->tokenizer());
  std::mt19937 rng(5);
  int n_stopped = 0;
  for (int round = 0; round < 20; round++) {
    Request r = greedy(random_prompt(rng, 10, 256), 40);
    r.sampling.temperature = 1;
    r.sampling.seed = rng();
    r.sampling.ignore_eos = true;
    Answer whole = run_one(*engine, r);
    EXPECT_EQ(whole.text, engine->tokenizer()->decode(whole.tokens, true));
    if (whole.text.size() < 12) continue;
    // A piece of the text that begins where a character does.
    size_t begin = 3 + rng() % (whole.text.size() - 8), length = 1 + rng() % 4;
    auto inside = [&](size_t i) { return i < whole.text.size() && (whole.text[i] & 0xC0) == 0x80; };
    while (inside(begin)) begin++;
    while (inside(begin + length)) length++;
    std::string stop = whole.text.substr(begin, length);
    r.sampling.stop = {stop};
    Answer cut = run_one(*engine, r);
    EXPECT_EQ(cut.finish, Finish::stop) << round;
    EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop))) << round;
    ASSERT_LE(cut.tokens.size(), whole.tokens.size());
    EXPECT_TRUE(std::equal(cut.tokens.begin(), cut.tokens.end(), whole.tokens.begin()));
    Detokenizer before_last(*engine->tokenizer(), true, true);
    std::string earlier;
    for (size_t i = 0; i + 1 < cut.tokens.size(); i++) earlier += before_last.push(cut.tokens[i]);
    EXPECT_EQ(earlier.find(stop), std::string::npos) << "it went on behind the stop string";
    n_stopped++;
    r.sampling.stop = {whole.text.substr(begin) + '\1'};
    Answer held = run_one(*engine, r);
    EXPECT_EQ(held.finish, Finish::length) << round;
    EXPECT_EQ(held.text, whole.text) << "what a stop string might have begun with is lost";
  }
  EXPECT_GT(n_stopped, 10);
}

// A token that ends in part of a character: what follows the stop string is not emitted, not even as a replacement character.
TEST(Engine, NothingIsSaidBehindAStopString) {
  fs::path copy = fs::path(testing::TempDir()) / "millrace_half_model";
  fs::remove_all(copy);
  fs::copy(fixture("llama_gqa"), copy);
  const std::string half = "a\u00e2\u0122";  // in the alphabet of bytes: a, 0xe2, 0x80
  Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  Json model{{"type", "BPE"}, {"vocab", {{"a", 0}, {half, 1}}}, {"merges", Json::array()}};
  std::ofstream(copy / "tokenizer.json") << Json{{"pre_tokenizer", bytes}, {"decoder", bytes}, {"model", model}};
  auto engine = Engine::create(copy, {.threads = 1});
  Request r = greedy({0}, 3);
  r.sampling.ignore_eos = true;
  r.sampling.logit_bias = {{1, 100.f}};
  EXPECT_EQ(run_one(*engine, r).text, "a\ufffda\ufffda\ufffd");
  r.sampling.stop = {"a"};
  Answer answer = run_one(*engine, r);
  EXPECT_EQ(answer.tokens, std::vector<int32_t>{1});
  EXPECT_EQ(answer.finish, Finish::stop);
  EXPECT_EQ(answer.text, "");
  fs::remove_all(copy);
}

// An answer goes on where the prompt ended: a space that it begins with is part of it, though a text of its own would lose it there.
TEST(Engine, AnAnswerKeepsTheSpaceThatItBeginsWith) {
  fs::path copy = fs::path(testing::TempDir()) / "millrace_spaces_model";
  fs::remove_all(copy);
  fs::copy(fixture("llama_gqa"), copy);
  fs::copy_file(fs::path(MR_FIXTURES) / "text" / "llama2.tokenizer.json", copy / "tokenizer.json");
  auto engine = Engine::create(copy, {.threads = 1});
  ASSERT_TRUE(engine->tokenizer());
  const int32_t space = 35, letter = 68;  // the bytes 0x20 and 0x41
  Request r = greedy({letter, letter}, 2);
  r.sampling.ignore_eos = true;
  r.sampling.logit_bias = {{space, 100.f}};
  Answer answer = run_one(*engine, r);
  EXPECT_EQ(answer.tokens, (std::vector<int32_t>{space, space}));
  EXPECT_EQ(answer.text, "  ");
  EXPECT_EQ(engine->tokenizer()->decode(std::vector<int32_t>{letter, letter, space, space}, true), "AA  ");
  fs::remove_all(copy);
}

// The logits after every token of a sequence.
std::vector<std::vector<float>> logits_along(Engine& engine, std::vector<int32_t> tokens, const std::vector<int32_t>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  Request score = greedy(std::move(tokens), 0);
  score.score_prompt = true;
  std::vector<std::vector<float>> logits;
  score.on_logits = [&](int position, std::span<const float> row) {
    ASSERT_EQ(position, int(logits.size()));
    logits.emplace_back(row.begin(), row.end());
  };
  run_one(engine, score);
  EXPECT_EQ(logits.size(), score.prompt.size());
  return logits;
}

// Greedy with penalties, against the definition: the logits of the whole sequence, changed by hand, their largest taken.
void expect_penalties(Engine& engine, float repetition, float frequency, float presence, std::map<int32_t, float> bias) {
  SCOPED_TRACE(fmt::format("repetition {}, frequency {}, presence {}", repetition, frequency, presence));
  std::mt19937 rng(8);
  Request r = greedy(random_prompt(rng, 12), 20);
  r.sampling.repetition_penalty = repetition;
  r.sampling.frequency_penalty = frequency;
  r.sampling.presence_penalty = presence;
  r.sampling.logit_bias = bias;
  r.sampling.ignore_eos = true;
  Answer answer = run_one(engine, r);
  ASSERT_EQ(answer.tokens.size(), 20u);

  const auto logits = logits_along(engine, r.prompt, answer.tokens);
  bool changed = false;
  for (size_t i = 0; i < answer.tokens.size(); i++) {
    std::vector<float> row = logits[r.prompt.size() + i - 1];
    int32_t plain = int32_t(std::ranges::max_element(row) - row.begin());
    for (int32_t t = 0; t < 131; t++) {
      auto n = std::count(answer.tokens.begin(), answer.tokens.begin() + long(i), t);
      float& x = row[size_t(t)];
      if (n || std::ranges::count(r.prompt, t)) x = x > 0 ? x / repetition : x * repetition;
      x -= frequency * float(n);
      if (n) x -= presence;
      if (bias.count(t)) x += bias[t];
    }
    EXPECT_EQ(answer.tokens[i], std::ranges::max_element(row) - row.begin()) << "token " << i;
    changed |= answer.tokens[i] != plain;
  }
  EXPECT_TRUE(changed) << "the penalties changed nothing";
}

TEST(Engine, PenaltiesCountPromptAndAnswer) {
  for (bool ahead : {false, true}) {
    auto engine = open("llama_gqa", {.kv_dtype = DType::f32, .launch_ahead = ahead});
    expect_penalties(*engine, 1.4f, 0.3f, 0.4f, {{7, 1.5f}, {100, -3.f}});
    expect_penalties(*engine, 1, 0, 1.5f, {});
    expect_penalties(*engine, 1, 0, -1.5f, {});
    expect_penalties(*engine, 1, 0.5f, 0, {});
    expect_penalties(*engine, 1.3f, 0, 0, {});
  }
}

// Random numbers are keyed by seed, choice and the token's place in its sequence: with them and the logits anyone can draw it again.
TEST(Engine, ATokenIsDrawnWithTheNumbersOfItsPlace) {
  auto engine = open("llama_gqa", {.kv_dtype = DType::f32});
  std::mt19937 rng(9);
  for (uint64_t seed = 1; seed < 7; seed++) {
    Request r = greedy(random_prompt(rng, 4 + int(seed)), 3);
    r.sampling.temperature = 20;
    r.sampling.seed = seed;
    r.sampling.ignore_eos = true;
    Answer answer = run_one(*engine, r);
    const auto logits = logits_along(*engine, r.prompt, answer.tokens);
    for (size_t i = 0; i < answer.tokens.size(); i++) {
      const size_t place = r.prompt.size() + i;
      const std::vector<float>& row = logits[place - 1];
      std::vector<int32_t> order(row.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return row[size_t(a)] > row[size_t(b)]; });
      double total = 0, sum = 0;
      for (float x : row) total += std::exp(double(x) / 20);
      const double target = uniform(seed, 0, uint32_t(place)) * total;
      size_t n = 0;
      while (n + 1 < order.size() && (sum += std::exp(double(row[size_t(order[n])]) / 20)) <= target) n++;
      if (std::abs(sum - target) < 1e-5 * total) continue;  // at the very edge
      EXPECT_EQ(answer.tokens[i], order[n]) << "seed " << seed << ", place " << place;
    }
  }
}

TEST(Engine, LogitsAreThoseThatScoresComeFrom) {
  auto engine = open("mamba", {.max_batch_tokens = 10});
  std::mt19937 rng(9);
  Request r = greedy(random_prompt(rng, 33), 4);
  r.score_prompt = true;
  r.sampling.logprobs = 3;
  std::vector<std::vector<float>> logits;
  r.on_logits = [&](int position, std::span<const float> row) {
    EXPECT_EQ(position, int(logits.size()));
    logits.emplace_back(row.begin(), row.end());
  };
  Answer answer = run_one(*engine, r);
  ASSERT_EQ(logits.size(), 33u);
  ASSERT_EQ(answer.prompt.size(), 33u);
  EXPECT_EQ(answer.tokens[0], std::ranges::max_element(logits[32]) - logits[32].begin());
  for (size_t i = 1; i < 33; i++) {
    const std::vector<float>& row = logits[i - 1];
    double sum = 0;
    for (float x : row) sum += std::exp(double(x));
    EXPECT_NEAR(answer.prompt[i].logprob, row[size_t(r.prompt[i])] - std::log(sum), 1e-4);
    ASSERT_EQ(answer.prompt[i].top.size(), 3u);
    EXPECT_EQ(answer.prompt[i].top[0].token, std::ranges::max_element(row) - row.begin());
  }
}

TEST(Engine, CancelledInTheMiddleNothingStays) {
  for (const char* model : {"llama_gqa", "mistral_window", "mamba"}) {
    for (int seed = 0; seed < 8; seed++) {
      std::mt19937 rng{unsigned(seed)};
      auto engine = open(model, {.max_seqs = 4, .max_batch_tokens = 20, .max_context = 128});
      std::vector<Request> requests;
      for (int i = 0; i < 8; i++) {
        requests.push_back(random_request(rng, 131, 60, 30));
        requests.back().n = 1 + int(rng() % 3);
      }
      auto reference = open(model, {.max_seqs = 4, .max_context = 128, .prefix_cache = false});
      std::vector<std::vector<Answer>> answers(requests.size());
      std::vector<int64_t> ids;
      for (size_t i = 0; i < requests.size(); i++) {
        answers[i].resize(size_t(requests[i].n));
        ids.push_back(engine->submit(requests[i], [&answers, i](const TokenEvent& e) { answers[i][size_t(e.choice)].take(e); }));
      }
      while (engine->step()) {
        if (rng() % 4 == 0) engine->cancel(ids[rng() % 4]);  // the second half stays
        engine->check_invariants();
      }
      engine->cancel(ids[0]);  // over already
      EXPECT_FALSE(engine->step());
      for (const StateStats::Group& g : engine->state_stats().group) EXPECT_EQ(g.n_used, 0) << model;
      EXPECT_EQ(engine->stats().finished, 8);
      for (size_t i = 0; i < requests.size(); i++) {
        std::vector<Answer> expected = run_all(*reference, {requests[i]})[0];
        for (size_t c = 0; c < answers[i].size(); c++) {
          if (answers[i][c].finish == Finish::cancelled) {
            EXPECT_LT(i, 4u);
            ASSERT_LE(answers[i][c].tokens.size(), expected[c].tokens.size());
            EXPECT_TRUE(std::ranges::equal(answers[i][c].tokens, std::span(expected[c].tokens).first(answers[i][c].tokens.size())));
          } else {
            expect_same(answers[i][c], expected[c], "beside a cancelled request");
          }
        }
      }
    }
  }
}

TEST(Engine, AFailureEndsItsOwnRequestOnly) {
  auto engine = open("llama_gqa", {.max_batch_tokens = 16});
  std::mt19937 rng(4);
  Request good = greedy(random_prompt(rng, 30), 10), bad = good;
  Answer expected = run_one(*engine, good);
  bad.score_prompt = true;
  bad.on_logits = [](int position, std::span<const float>) {
    if (position == 20) throw Error("the disk is full");
  };
  Answer first, second, third;
  engine->submit(good, [&](const TokenEvent& e) { first.take(e); });
  engine->submit(bad, [&](const TokenEvent& e) { second.take(e); });
  engine->submit(good, [&](const TokenEvent& e) {
    third.take(e);
    throw Error("the reader is gone");
  });
  while (engine->step()) engine->check_invariants();
  expect_same(first, expected, "the healthy one");
  EXPECT_EQ(second.finish, Finish::error);
  EXPECT_EQ(second.error, "the disk is full");
  EXPECT_EQ(third.tokens.size(), 1u);
  EXPECT_EQ(engine->stats().finished, 4);
  for (const StateStats::Group& g : engine->state_stats().group) EXPECT_EQ(g.n_used, 0);
}

TEST(Engine, FirstComeFirstServedWithinAPriority) {
  auto engine = open("llama_gqa", {.max_seqs = 1});
  std::vector<int> order;
  for (int i = 0; i < 6; i++) {
    Request r = greedy({1, 2, 3}, 3);
    r.priority = i % 2 ? -1 : 5;
    engine->submit(r, [&order, i](const TokenEvent& e) {
      if (e.finish != Finish::none) order.push_back(i);
    });
  }
  while (engine->step()) {
  }
  EXPECT_EQ(order, (std::vector<int>{1, 3, 5, 0, 2, 4}));
}

TEST(Engine, ThreadsSubmitWhileItRuns) {
  auto engine = open("llama_gqa", {.max_seqs = 4, .max_batch_tokens = 32, .max_context = 128});
  std::mt19937 rng(6);
  std::vector<Request> requests;
  for (int i = 0; i < 24; i++) requests.push_back(random_request(rng, 131, 40, 12));
  Answers expected = run_all(*engine, requests);

  std::vector<Answer> answers(requests.size());
  std::atomic<int> n_open{24};
  std::jthread loop([&](std::stop_token stop) { engine->run(stop); });
  std::vector<std::jthread> clients;
  for (size_t c = 0; c < 3; c++)
    clients.emplace_back([&, c] {
      for (size_t i = c; i < requests.size(); i += 3)
        engine->submit(requests[i], [&, i](const TokenEvent& e) {
          answers[i].take(e);
          if (e.finish != Finish::none && --n_open == 0) n_open.notify_all();
        });
    });
  for (int n; (n = n_open.load()) > 0;) n_open.wait(n);
  loop.request_stop();
  loop.join();
  for (size_t i = 0; i < requests.size(); i++) expect_same(answers[i], expected[i][0], fmt::format("request {}", i));
}

}  // namespace
}  // namespace mr
