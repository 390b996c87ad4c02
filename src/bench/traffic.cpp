#include "bench/traffic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <sstream>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/random.h"

namespace mr {

namespace {

enum Purpose : uint32_t { of_prompt, of_answer, arrival, token, shared_token };

constexpr int longest_length = 9999999;

// In common vocabularies, special tokens and single bytes are below it; a small vocabulary uses all ids.
constexpr int first_plain_id = 1000;

// Each is one token, with the space before it, in common vocabularies.
constexpr std::array words = {"time",  "people", "water", "first", "house",   "world", "night",  "small",  "river",  "light", "music",
                              "paper", "table",  "green", "story", "morning", "city",  "answer", "field",  "summer", "stone", "winter",
                              "bread", "garden", "north", "glass", "market",  "horse", "letter", "window", "island", "silver"};

int pick(uint64_t seed, uint32_t index, uint32_t position, uint32_t purpose, int n) {
  return int(uniform(seed, index, position, purpose) * n);
}

// Token i of a prompt, among n kinds; the first `shared` are the same in all.
int token_kind(const Workload& w, uint32_t index, int i, int n) {
  return i < w.shared_prefix ? pick(w.seed, 0, uint32_t(i), shared_token, n) : pick(w.seed, w.first + index, uint32_t(i), token, n);
}

int length_of(const std::string& digits, const std::string& text) {
  check(!digits.empty() && digits.size() < 8 && digits.find_first_not_of("0123456789") == std::string::npos && std::stoi(digits) > 0,
        "'{}' is no length: give a number of tokens, 128, a range, 64-512, or a median and a deviation, lognormal:128:0.8", text);
  return std::stoi(digits);
}

Lengths parse_lognormal(const std::string& text, const std::string& rest) {
  size_t colon = rest.find(':'), used = 0;
  Lengths l;
  l.median = length_of(rest.substr(0, colon), text);
  std::string sigma = colon == std::string::npos ? "" : rest.substr(colon + 1);
  try {
    l.sigma = std::stod(sigma, &used);
  } catch (const std::exception&) {
  }
  check(l.sigma > 0 && l.sigma <= 3 && used == sigma.size(), "'{}' has no deviation above 0 and up to 3, as lognormal:128:0.8 has", text);
  l.low = 1;
  l.high = std::min(longest_length, 16 * l.median);
  return l;
}

}  // namespace

int Lengths::draw(uint64_t seed, uint32_t index, uint32_t purpose) const {
  if (sigma == 0) return low + pick(seed, index, 0, purpose, high - low + 1);
  double u = uniform(seed, index, 0, purpose), v = uniform(seed, index, 1, purpose);
  double z = std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi * v);  // Box and Muller 1958
  return int(std::clamp(std::round(median * std::exp(sigma * z)), double(low), double(high)));
}

Lengths parse_lengths(const std::string& text) {
  if (std::string kind = "lognormal:"; text.starts_with(kind)) return parse_lognormal(text, text.substr(kind.size()));
  size_t dash = text.find('-');
  Lengths lengths;
  lengths.low = length_of(text.substr(0, dash), text);
  lengths.high = dash == std::string::npos ? lengths.low : length_of(text.substr(dash + 1), text);
  check(lengths.low <= lengths.high, "the range of lengths {} ends before it begins", text);
  return lengths;
}

static LoadItem parse_item(const Json& j, const std::string& where, int line) {
  LoadItem item;
  auto number = [&](const char* field, int& into) {
    if (!j.contains(field)) return;
    check(j[field].is_number_integer() && j[field] > 0 && j[field] <= longest_length, "{}, line {}: \"{}\" is {}, not a number of tokens",
          where, line, field, j[field].dump());
    into = j[field];
  };
  check(j.is_object(), "{}, line {} is no JSON object", where, line);
  number("prompt_tokens", item.prompt_tokens);
  number("max_tokens", item.output_tokens);
  number("output_tokens", item.output_tokens);
  if (!j.contains("prompt")) {
    check(item.prompt_tokens > 0, "{}, line {} has neither \"prompt\" nor \"prompt_tokens\"", where, line);
    return item;
  }
  const Json& prompt = j["prompt"];
  auto is_id = [](const Json& id) { return id.is_number_integer() && id >= 0 && id <= longest_length; };
  if (prompt.is_string())
    item.text = prompt;
  else if (prompt.is_array() && std::ranges::all_of(prompt, is_id))
    item.tokens = prompt.get<std::vector<int32_t>>();
  check(!item.text.empty() || !item.tokens.empty(), "{}, line {}: \"prompt\" is neither text nor a list of token ids", where, line);
  return item;
}

std::vector<LoadItem> parse_load(const std::string& lines, const std::string& where) {
  std::vector<LoadItem> items;
  std::istringstream in(lines);
  int n = 1;
  for (std::string line; std::getline(in, line); n++)
    if (line.find_first_not_of(" \t\r") != std::string::npos)
      items.push_back(parse_item(parse_json<Json>(line, fmt::format("{}, line {}", where, n)), where, n));
  check(!items.empty(), "{} has no requests", where);
  return items;
}

const LoadItem* item_of(const Workload& w, uint32_t index) {
  return w.items.empty() ? nullptr : &w.items[(w.first + index) % w.items.size()];
}

int prompt_length(const Workload& w, uint32_t index) {
  const LoadItem* item = item_of(w, index);
  return item && item->prompt_tokens ? item->prompt_tokens : w.prompt.draw(w.seed, w.first + index, of_prompt);
}

int answer_length(const Workload& w, uint32_t index) {
  const LoadItem* item = item_of(w, index);
  return item && item->output_tokens ? item->output_tokens : w.answer.draw(w.seed, w.first + index, of_answer);
}

std::vector<int32_t> made_up_tokens(const Workload& w, uint32_t index) {
  const int first = w.vocab > 2 * first_plain_id ? first_plain_id : 0, n = prompt_length(w, index);
  std::vector<int32_t> ids;
  for (int i = 0; i < n; i++) ids.push_back(first + token_kind(w, index, i, w.vocab - first));
  return ids;
}

std::string made_up_text(const Workload& w, uint32_t index) {
  std::string text;
  for (int i = 0, n = prompt_length(w, index); i < n; i++) {
    if (i > 0) text += ' ';
    text += words[size_t(token_kind(w, index, i, int(words.size())))];
  }
  return text;
}

std::vector<double> poisson_arrivals(double rate, size_t n, uint64_t seed) {
  std::vector<double> at(n);
  double t = 0;
  for (size_t i = 0; i < n; i++) at[i] = t -= std::log1p(-uniform(seed, uint32_t(i), 0, arrival)) / rate;
  return at;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  double at = share * double(values.size() - 1);
  size_t i = std::min(size_t(at), values.size() - 1), next = std::min(i + 1, values.size() - 1);
  return values[i] + (at - double(i)) * (values[next] - values[i]);
}

Spread spread_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / double(values.size()), percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99)};
}

Json spread_json(const Spread& s) { return {{"mean", s.mean}, {"p50", s.p50}, {"p90", s.p90}, {"p99", s.p99}}; }

}  // namespace mr
