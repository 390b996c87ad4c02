#include <fmt/ranges.h>

#include <cmath>

#include "analyze/report.h"

namespace mr {

std::string with_unit(double value, const char* unit) {
  static constexpr std::pair<double, const char*> kPrefixes[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"},  {1e6, "M"},
                                                                 {1e3, "k"},  {1, ""},     {1e-3, "m"}, {1e-6, "µ"}};
  for (auto [scale, prefix] : kPrefixes)
    if (std::fabs(value) >= scale || scale == 1e-6 || value == 0) {
      double v = value / (value == 0 ? 1 : scale);
      return fmt::format("{:.{}f} {}{}", v, v >= 100 ? 1 : 2, value == 0 ? "" : prefix, unit);
    }
  return {};
}

std::string grouped(int64_t value) {
  std::string text = std::to_string(value);
  for (int i = int(text.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) text.insert(size_t(i), 1, ',');
  return text;
}

std::string figure(double value, int digits) {
  if (value == 0) return "0";
  const double rounded = std::stod(fmt::format("{:.{}e}", value, digits - 1));
  const int decimals = digits - 1 - int(std::floor(std::log10(std::fabs(rounded))));
  if (decimals <= 0) return grouped(std::llround(value));
  std::string text = fmt::format("{:.{}f}", value, std::min(decimals, 12));
  text.erase(text.find_last_not_of('0') + 1);
  return text.ends_with('.') ? text.substr(0, text.size() - 1) : text;
}

std::string speed(double tokens_per_s) {
  return tokens_per_s >= 1000 ? grouped(std::llround(tokens_per_s)) : fmt::format("{:.1f}", tokens_per_s);
}

std::string about(std::string figure, bool busy) { return busy ? fmt::format("~{}", figure) : figure; }

std::string about(const Analysis& a, std::string text) { return about(std::move(text), a.question.on.chip.busy()); }

static std::string count_or(int64_t n, int64_t unlimited) { return n >= unlimited ? "any" : n == 0 ? "none" : grouped(n); }

Json symbols(const ModelSpec& spec) {
  Json j{{"L", spec.layers.size()}, {"D", spec.dim}, {"V", spec.vocab}};
  for (const LayerSpec& layer : spec.layers) {
    if (auto* a = std::get_if<AttentionSpec>(&layer.mixer); a && !j.contains("N"))
      j.update({{"N", a->heads}, {"K", a->kv_heads}, {"G", a->heads / a->kv_heads}, {"H", a->head_dim}});
    if (auto* m = std::get_if<MlaSpec>(&layer.mixer); m && !j.contains("N"))
      j.update({{"N", m->heads}, {"r", m->kv_rank}, {"d", m->rope_dim}});
    if (auto* m = std::get_if<MlpSpec>(&layer.ffn); m && !j.contains("F")) j["F"] = m->hidden;
    if (auto* m = std::get_if<MoeSpec>(&layer.ffn); m && !j.contains("E")) j.update({{"E", m->experts}, {"k", m->used}, {"F", m->hidden}});
  }
  return j;
}

std::vector<std::string> symbol_lines(const ModelSpec& spec) {
  static constexpr std::pair<const char*, const char*> kNames[] = {{"L", "layers"},      {"V", "vocabulary"},
                                                                   {"D", "model width"}, {"F", "feed-forward width"},
                                                                   {"E", "experts"},     {"k", "of them used by a token"},
                                                                   {"N", "query heads"}, {"K", "key/value heads"},
                                                                   {"G", "= N/K"},       {"H", "head size"},
                                                                   {"r", "latent"},      {"d", "rotated beside it"}};
  const Json letters = symbols(spec);
  std::vector<std::string> lines(2);
  for (auto [letter, name] : kNames) {
    if (!letters.contains(letter)) continue;
    std::string& line = lines[std::string_view("NKGHrd").find(letter) != std::string_view::npos];
    line += fmt::format("{}{} {} {}", line.empty() ? "" : ", ", letter, grouped(letters[letter]), name);
  }
  if (lines[1].empty()) lines.pop_back();
  lines.push_back("B sequences, T new tokens of each, S tokens of context");
  return lines;
}

std::vector<std::string> state_lines(const Analysis& a) {
  std::vector<std::string> lines;
  for (const StateKind& k : a.state) {
    std::string line = fmt::format("{} layer{} {}:", k.layers, k.layers == 1 ? "" : "s", k.name);
    if (k.bytes_per_token) line += fmt::format(" {} bytes a token{}", grouped(k.bytes_per_token), k.window ? " in the window" : "");
    if (k.bytes_per_sequence) line += fmt::format(" {} bytes a sequence", grouped(k.bytes_per_sequence));
    if (!k.bytes_per_token && !k.bytes_per_sequence) line += fmt::format(" nothing of {} own", k.layers == 1 ? "its" : "their");
    lines.push_back(line);
  }
  const Subject& s = a.question.subject;
  const double context = double(a.question.contexts[0]), own = state_bytes(s.spec, s.storage, context);
  std::string all = fmt::format("a sequence of {} tokens keeps {}", grouped(a.question.contexts[0]), with_unit(own, "B"));
  if (const double mha = mha_state_bytes(s.spec, s.storage, context); mha > own * 1.001)
    all += fmt::format(", {:.1f} times less than MHA (keys and values of every query head in every layer: {})", mha / own,
                       with_unit(mha, "B"));
  lines.push_back(all);
  return lines;
}

// "  state        ..." on the first line, the others below it.
static std::string listed(const char* head, const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += fmt::format("  {:<12} {}\n", &line == &lines[0] ? head : "", line);
  return out;
}

static std::string about_model(const Analysis& a) {
  const Subject& s = a.question.subject;
  std::string out = fmt::format("{} on {}\n\n", s.name, a.question.on.chip.title) + listed("symbols", symbol_lines(s.spec));
  out += fmt::format("  parameters   {} ({} with the norms", grouped(a.parameters), grouped(a.parameters_with_norms));
  if (a.active_parameters != a.parameters_with_norms) out += fmt::format(", {} of them used by a token", grouped(a.active_parameters));
  out += fmt::format(")\n  weights      {} in {}", with_unit(parameter_bytes(s.spec, s.storage), "B"), s.storage.block_name);
  if (s.storage.table_name != s.storage.block_name) out += fmt::format(", tables in {}", s.storage.table_name);
  if (keeps_keys(s.spec)) out += fmt::format("; keys and values in {}", s.storage.kv_name);
  return out + "\n" + listed("state", state_lines(a));
}

std::string ratio_text(const Analysis& a) {
  const Chip& c = a.question.on.chip;
  const Storage& s = a.question.subject.storage;
  auto ratio = [&](double rate) { return about(a, figure(rate / c.bandwidth, 3)); };
  const double block = product_rate(c, s.block_product), table = product_rate(c, s.table_product);
  if (block == c.bf16 && table == c.bf16) return ratio(c.bf16);
  std::string out = fmt::format("{} in products with weights", ratio(block));
  if (table != block) out += fmt::format(", {} with tables", ratio(table));
  return out + fmt::format(", {} in all else", ratio(c.bf16));
}

static std::string about_chip(const Analysis& a) {
  const Deployment& on = a.question.on;
  const Chip& c = on.chip;
  const Storage& stored = a.question.subject.storage;
  const double rate = product_rate(c, stored.block_product);
  std::string out = fmt::format("  chip         {}", about(a, with_unit(c.bf16, "FLOP/s")));
  if (rate != c.bf16) out += fmt::format(" ({} for {} weights)", about(a, with_unit(rate, "FLOP/s")), stored.block_name);
  out += fmt::format(", reads {}, holds {}\n", about(a, with_unit(c.bandwidth, "B/s")), with_unit(c.memory, "B"));
  out += fmt::format("               ratio {}: an operation of fewer flops a byte waits for memory\n", ratio_text(a));
  if (c.busy())
    out += fmt::format("               ~ measured while other programs used {:.0f} % of the processors: its true limits are higher\n",
                       100 * c.others);
  if (!c.rates.empty()) {
    out += "               measured, in GFLOP/s:";
    for (const Chip::Rate& r : c.rates)
      out += fmt::format(" {} {}{}", r.name, about(a, figure(r.flops / 1e9, 3)), &r == &c.rates.back() ? "\n" : ",");
  }
  if (on.tp > 1 || on.replicas > 1)
    out += fmt::format("  deployment   {} group{} of {} chip{}{}; below, batches, memory and steps are of one group, tok/s of all\n",
                       on.replicas, on.replicas == 1 ? "" : "s", on.tp, on.tp == 1 ? "" : "s",
                       on.tp > 1 ? fmt::format(", {} between them", with_unit(c.link, "B/s")) : "");
  return out;
}

std::string draft_line(const Analysis& a) {
  if (!a.question.draft) return {};
  return fmt::format(
      "drafts: {} tokens of {} at a time, {:.0f} % accepted; its weights and state count in memory and what fits, not in the napkin's "
      "latency.",
      a.question.draft->lookahead, a.question.draft->subject.name, 100 * a.question.draft->acceptance);
}

static std::string rows_table(const Analysis& a) {
  const bool draft = a.question.draft.has_value();
  std::string out =
      "\nGeneration. Left the napkin: memory = parameters + state, and a step reads all of it. Right what the operations move.\n";
  out += fmt::format("  {:>6} {:>9} {:>10} {:>5} {:>10} {:>9}  | {:>10} {:>10} {:>9} {:>8} {:>9}{}\n", "batch", "context", "memory", "fits",
                     "latency", "tok/s", "step", "latency", "tok/s", "bound", "$/Mtok", draft ? "   drafts" : "");
  for (const AnalysisRow& r : a.rows)
    out += fmt::format("  {:>6} {:>9} {:>10} {:>5} {:>10} {:>9}  | {:>10} {:>10} {:>9} {:>8} {:>9}{}\n", grouped(r.batch),
                       grouped(r.context), with_unit(r.memory_bytes, "B"), r.fits ? "yes" : "no", about(a, with_unit(r.latency_s, "s")),
                       about(a, speed(r.tokens_per_s)), with_unit(r.step.bytes, "B"), about(a, with_unit(r.step.seconds, "s")),
                       about(a, speed(r.step_tokens_per_s)), name_of(r.step.bound), about(a, figure(r.price_per_million)),
                       draft ? fmt::format(" {:>8}", about(a, fmt::format("{:.2f}×", r.draft_speedup))) : "");
  return out + fmt::format("  $/Mtok at ${:.2f} an hour for a chip.{}\n", a.question.price, draft ? fmt::format(" {}", draft_line(a)) : "");
}

// The smallest number of chips, at least `from`, over which the model splits evenly; 0: none.
static int chips_that_share(const ModelSpec& spec, int from) {
  for (int chips = from; chips <= 1024; chips++)
    if (!uneven_part(spec, chips)) return chips;
  return 0;
}

// How weights that are too large for a chip could fit: more chips, fewer bits a weight, or both.
static std::string room_for_weights(const Analysis& a) {
  const Question& q = a.question;
  const double all = parameter_bytes(q.subject.spec, q.subject.storage), chip = q.on.chip.memory;
  const double bits = 8 * chip * q.on.tp / double(a.parameters);
  std::vector<std::string> ways;
  if (q.on.chip.link > 0)
    if (const int chips = chips_that_share(q.subject.spec, int(all / chip) + 1))
      ways.push_back(fmt::format("at least {} chips (--tp)", chips));
  if (bits > 4) ways.push_back(fmt::format("weights of less than {:.1f} bits (--weight-format)", bits));
  return ways.empty() ? "no flag makes it fit here" : fmt::format("it takes {}", fmt::join(ways, ", or "));
}

// Why no batch meets both the speed per user and the deadline.
static std::string why_none(const Analysis& a, const Fitting& l) {
  const Question& q = a.question;
  const double weights = parameter_bytes(q.subject.spec, q.subject.storage) / q.on.tp;
  const double one = weights + state_bytes(q.subject.spec, q.subject.storage, double(l.context), q.on.tp);
  if (weights > q.on.chip.memory)
    return fmt::format("the weights alone take {} of a chip's {}: {}", with_unit(weights, "B"), with_unit(q.on.chip.memory, "B"),
                       room_for_weights(a));
  if (l.largest_batch == 0 && q.draft && one <= q.on.chip.memory)
    return fmt::format("beside the {} that one sequence needs there is no room for the draft model {}, with {} of weights",
                       with_unit(one, "B"), q.draft->subject.name,
                       with_unit(parameter_bytes(q.draft->subject.spec, q.draft->subject.storage) / q.on.tp, "B"));
  if (l.largest_batch == 0)
    return fmt::format("one sequence needs {} of a chip's {}", with_unit(one, "B"), with_unit(q.on.chip.memory, "B"));
  if (l.users == 0) return fmt::format("a single user gets less than {:g} tokens/s (--user-speed)", q.user_tokens_per_s);
  return fmt::format("one prompt alone takes {} (--deadline {:g})", about(a, with_unit(l.ttft_s, "s")), q.deadline_s);
}

std::vector<std::string> limit_lines(const Analysis& a) {
  const Question& q = a.question;
  std::vector<std::string> lines;
  for (const Fitting& l : a.limits)
    if (!l.both) lines.push_back(fmt::format("Nobody is served so at {} tokens: {}.", grouped(l.context), why_none(a, l)));
  if (q.demand_words > 0)
    lines.push_back(
        fmt::format("chips: for {} words a day, 4 tokens for 3 words, spread evenly, every user as fast and every first token as soon.",
                    grouped(std::llround(q.demand_words))));
  std::vector<std::string> longest;
  for (auto [batch, context] : a.longest_context)
    longest.push_back(fmt::format("{} for batch {}", count_or(context, int64_t(1) << 39), grouped(batch)));
  std::string line = fmt::format("Longest context by memory: {}", fmt::join(longest, ", "));
  if (q.subject.spec.max_context && keeps_keys(q.subject.spec))
    line += fmt::format(" (the model was made for {})", grouped(q.subject.spec.max_context));
  lines.push_back(line + ".");
  return lines;
}

static std::string limits_table(const Analysis& a) {
  const Question& q = a.question;
  const bool demand = q.demand_words > 0;
  std::string out = fmt::format(
      "\nWhat fits: the largest batch by memory; with {:g} tokens/s for every user; with all prompts, coming at once, read within {:g} s; "
      "and with both.\nRight of the line: that last batch, and what it makes.\n",
      q.user_tokens_per_s, q.deadline_s);
  out += fmt::format("  {:>9} {:>12} {:>12} {:>10} {:>10} | {:>10} {:>11} {:>9}{}\n", "context", "first token", "by memory", "by speed",
                     "by prompt", "by both", "tok/s", "$/Mtok", demand ? "      chips" : "");
  for (const Fitting& l : a.limits) {
    auto made = [&](std::string text) { return l.both ? about(a, std::move(text)) : "none"; };
    auto users = [&](int64_t n) { return n ? about(a, grouped(n)) : "none"; };
    out += fmt::format("  {:>9} {:>12} {:>12} {:>10} {:>10} | {:>10} {:>11} {:>9}{}\n", grouped(l.context),
                       about(a, with_unit(l.ttft_s, "s")), count_or(l.largest_batch, int64_t(1) << 39), users(l.users),
                       users(l.within_deadline), users(l.both), made(speed(l.tokens_per_s)), made(figure(l.price_per_million)),
                       demand ? fmt::format(" {:>10}", made(grouped(l.chips_for_demand))) : "");
  }
  for (const std::string& line : limit_lines(a)) out += fmt::format("  {}\n", line);
  return out;
}

static constexpr double far_from_law = 1.25;  // times below its law: explained in the report

static std::string operations_table(const Analysis& a, bool prefill, int64_t batch) {
  std::string out;
  StepCost all;
  for (const Analysis::Point& p : a.operations) {
    if (p.prefill != prefill || int64_t(p.phase.batch) != batch) continue;
    all.seconds += p.time.seconds;
    all.bytes += p.op.bytes();
    all.flops += p.op.flops;
    std::string law = p.op.law.empty() ? "" : fmt::format("{:>9} = {}", figure(p.op.law_intensity), p.op.law);
    if (p.op.link > 0) {  // communication: no flops, no memory traffic
      out += fmt::format("  {:<24} {:>4} {:>45} {:>10} {:<8}\n", p.op.name, p.op.layers, with_unit(p.op.link, "B") + " sent to other chips",
                         about(a, with_unit(p.time.seconds, "s")), name_of(p.time.bound));
      continue;
    }
    out += fmt::format("  {:<24} {:>4} {:>12} {:>10} {:>10} {:>10} {:>10} {:<8} {}\n", p.op.name, p.op.layers,
                       with_unit(p.op.flops, "FLOP"), with_unit(p.op.weights + p.op.state + p.op.read, "B"), with_unit(p.op.written, "B"),
                       figure(p.op.intensity()), about(a, with_unit(p.time.seconds, "s")), name_of(p.time.bound), law);
  }
  for (const std::string& line : law_lines(a, prefill, batch)) out += fmt::format("  {}\n", line);
  const int chips = a.question.on.tp;
  std::string head = fmt::format("\n{}, batch {}, context {}{}: {}, {}, {}\n", prefill ? "Prefill" : "Generation", grouped(batch),
                                 grouped(a.question.contexts[0]), chips > 1 ? fmt::format(", on one of {} chips", chips) : "",
                                 with_unit(all.flops, "FLOP"), with_unit(all.bytes, "B"), about(a, with_unit(all.seconds, "s")));
  return head +
         fmt::format("  {:<24} {:>4} {:>12} {:>10} {:>10} {:>10} {:>10} {:<8} {}\n", "operation", "×", "flops", "read", "written",
                     "intensity", "at least", "bound", "law") +
         out;
}

std::vector<std::string> law_lines(const Analysis& a, bool prefill, int64_t batch) {
  bool pairs = false, products = false, scans = false;
  for (const Analysis::Point& p : a.operations) {
    if (p.prefill != prefill || int64_t(p.phase.batch) != batch || p.op.law.empty()) continue;
    const bool of_pairs = p.op.law.find("S·T") != std::string::npos, far = p.op.law_intensity > far_from_law * p.op.intensity();
    pairs |= prefill && of_pairs;
    products |= far && p.op.product;
    scans |= far && !p.op.product && !of_pairs;
  }
  std::vector<std::string> lines;
  if (products)
    lines.push_back(
        "The law of products counts the bytes of weights alone: it holds while B·T is far below both sides of a weight (D, F, heads, "
        "experts). Beyond that reading and writing activations takes over, and the exact value stays behind.");
  if (scans) lines.push_back("The law of scans counts the state alone, and a long prompt's activations are more than that.");
  if (pairs) lines.push_back("The laws of attention count every pair of tokens; a causal prompt has half of them.");
  return lines;
}

std::vector<std::string> flash_lines(const Analysis& a) {
  if (!a.flash && keeps_keys(a.question.subject.spec) && a.question.on.chip.unit_memory == 0)
    return {"not counted: how much fast memory lies beside a unit of this chip is not known."};
  if (!a.flash) return {};
  const FlashCost& f = *a.flash;
  auto count = [](double n) { return grouped(int64_t(n)); };
  return {fmt::format("One head of {:g} over a prompt of {} tokens, in tiles of {}: those of queries, keys, values and results fit the {} "
                      "beside a unit, M = {} words of 2 bytes.",
                      f.head_dim, count(f.context), count(f.tile), with_unit(2 * f.fast_words, "B"), count(f.fast_words)),
          fmt::format(
              "The law leaves out constants and counts every pair of tokens; a causal prompt has half of them.{}",
              f.tile < f.context ? "" : " Here the whole prompt is one tile, and its 4·S·H words are moved once, whatever the law says.")};
}

std::vector<std::array<std::string, 4>> flash_rows(const Analysis& a) {
  if (!a.flash) return {};
  const FlashCost& f = *a.flash;
  auto count = [](double words) { return grouped(int64_t(words)); };
  return {{"flops", with_unit(f.flops, "FLOP"), with_unit(f.law_flops, "FLOP"), "4·S²·H"},
          {"words moved", count(f.words), count(f.law_words), "S²·H²/M"},
          {"extra memory, words", count(f.extra_words), count(f.law_extra_words), "S"},
          {"scores never written, words", count(f.context * (f.context + 1) / 2), count(f.context * f.context), "S²"}};
}

static std::string flash_table(const Analysis& a) {
  const std::vector<std::string> lines = flash_lines(a);
  if (lines.empty()) return {};
  std::string out = fmt::format("\nFlashAttention{} {}\n", a.flash ? "." : ":", fmt::join(lines, "\n"));
  if (!a.flash) return out;
  out += fmt::format("  {:<28} {:>14} {:>14}\n", "", "exact", "law");
  for (const auto& [name, exact, law, letters] : flash_rows(a))
    out += fmt::format("  {:<28} {:>14} {:>14} = {}\n", name, exact, law, letters);
  return out;
}

static std::string warnings(const Analysis& a) {
  std::string out;
  for (const std::string& w : a.warnings) out += fmt::format("\nWarning: {}.\n", w);
  return out;
}

std::string text_report(const Analysis& a) {
  return about_model(a) + about_chip(a) + warnings(a) + rows_table(a) + limits_table(a) + operations_table(a, true, 1) +
         operations_table(a, false, shown_batch(a)) + flash_table(a);
}

std::string formats_table() {
  std::string out =
      "How a number is stored: bytes of one with its share of scales; the largest and the smallest normal magnitude, before scaling; the\n"
      "step between neighbours, relative to the number (integers: the step itself).\n";
  out += fmt::format("  {:<9} {:>8} {:>12} {:>12} {:>12}  {}\n", "format", "bytes", "largest", "smallest", "step", "");
  for (const NumberFormat& f : number_formats())
    out += fmt::format("  {:<9} {:>8.4g} {:>12.5g} {:>12.5g} {:>12.5g}  {}\n", f.name, f.bytes, f.largest, f.smallest, f.step, f.note);
  return out;
}

}  // namespace mr
