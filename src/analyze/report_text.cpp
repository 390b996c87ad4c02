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

static std::string speed(double tokens_per_s) {
  return tokens_per_s >= 1000 ? grouped(int64_t(std::llround(tokens_per_s))) : fmt::format("{:.1f}", tokens_per_s);
}

// What follows from limits that were measured on a busy machine is marked with it.
static std::string about(const Analysis& a, std::string text) { return (a.question.on.chip.busy() ? "~" : "") + text; }

static std::string count_or(int64_t n, int64_t unlimited) { return n >= unlimited ? "any" : n == 0 ? "none" : grouped(n); }

Json symbols(const ModelSpec& spec) {
  Json j{{"L", spec.layers.size()}, {"D", spec.dim}, {"V", spec.vocab}};
  for (const LayerSpec& layer : spec.layers) {
    if (auto* a = std::get_if<AttentionSpec>(&layer.mixer); a && !j.contains("N"))
      j.update({{"N", a->heads}, {"K", a->kv_heads}, {"H", a->head_dim}});
    if (auto* m = std::get_if<MlpSpec>(&layer.ffn); m && !j.contains("F")) j["F"] = m->hidden;
    if (auto* m = std::get_if<MoeSpec>(&layer.ffn); m && !j.contains("E")) j.update({{"E", m->experts}, {"k", m->used}, {"F", m->hidden}});
  }
  return j;
}

static std::string about_model(const Analysis& a) {
  const Subject& s = a.question.subject;
  std::string out = fmt::format("{} on {}\n\n", s.name, a.question.on.chip.title);
  out += "  symbols     ";
  const Json letters = symbols(s.spec);
  for (auto& [symbol, value] : letters.items()) out += fmt::format(" {} {}", symbol, value.get<int64_t>());
  out += '\n';
  out += fmt::format("  parameters   {} ({} with the norms", grouped(a.parameters), grouped(a.parameters_with_norms));
  if (a.active_parameters != a.parameters_with_norms) out += fmt::format(", {} of them used by a token", grouped(a.active_parameters));
  out += fmt::format(")\n  weights      {} in {}", with_unit(parameter_bytes(s.spec, s.storage), "B"), s.storage.block_name);
  if (s.storage.table_name != s.storage.block_name) out += fmt::format(", tables in {}", s.storage.table_name);
  out += fmt::format("; keys and values in {}\n", s.storage.kv_name);
  int64_t per_token = 0, per_sequence = 0;
  for (const StateKind& k : a.state) {
    out += fmt::format("  state        {} layer{} {}:", k.layers, k.layers == 1 ? "" : "s", k.name);
    if (k.bytes_per_token) out += fmt::format(" {} bytes a token{}", grouped(k.bytes_per_token), k.window ? " in the window" : "");
    if (k.bytes_per_sequence) out += fmt::format(" {} bytes a sequence", grouped(k.bytes_per_sequence));
    out += k.bytes_per_token || k.bytes_per_sequence ? "\n" : " nothing of their own\n";
    per_token += k.bytes_per_token, per_sequence += k.bytes_per_sequence;
  }
  double context = double(a.question.contexts[0]), mha = mha_state_bytes(s.spec, s.storage, context);
  double own = state_bytes(s.spec, s.storage, context);
  if (mha > own * 1.001)
    out += fmt::format("               a sequence of {} tokens keeps {}, {:.1f} times less than keys and values of every head\n",
                       a.question.contexts[0], with_unit(own, "B"), mha / own);
  return out;
}

static std::string about_chip(const Analysis& a) {
  const Deployment& on = a.question.on;
  const Chip& c = on.chip;
  double rate = product_rate(c, a.question.subject.storage.block_product);
  std::string out = fmt::format("  chip         {} ({} for {} weights), {}, {}\n", with_unit(c.bf16, "FLOP/s"), with_unit(rate, "FLOP/s"),
                                a.question.subject.storage.block_name, with_unit(c.bandwidth, "B/s"), with_unit(c.memory, "B"));
  out += fmt::format("               ratio {:.0f}: an operation of fewer flops a byte waits for memory\n", c.ratio());
  if (c.busy())
    out += fmt::format("               ~ measured while other programs used {:.0f} % of the processors: its true limits are higher\n",
                       100 * c.others);
  if (!c.rates.empty()) {
    out += "               measured, in GFLOP/s:";
    for (const Chip::Rate& r : c.rates) out += fmt::format(" {} {:.0f}{}", r.name, r.flops / 1e9, &r == &c.rates.back() ? "\n" : ",");
  }
  if (on.tp > 1 || on.replicas > 1)
    out += fmt::format("  deployment   {} group{} of {} chip{}{}\n", on.replicas, on.replicas == 1 ? "" : "s", on.tp, on.tp == 1 ? "" : "s",
                       on.tp > 1 ? fmt::format(", {} between them", with_unit(c.link, "B/s")) : "");
  return out;
}

static std::string rows_table(const Analysis& a) {
  const bool draft = a.question.draft.has_value();
  std::string out =
      "\nGeneration. Left the napkin: memory = parameters + state, and a step reads all of it. Right what the operations move.\n";
  out += fmt::format("  {:>6} {:>8} {:>10} {:>5} {:>10} {:>9}  | {:>10} {:>10} {:>9} {:>8} {:>9}{}\n", "batch", "context", "memory", "fits",
                     "latency", "tok/s", "step", "latency", "tok/s", "bound", "$/Mtok", draft ? "   drafts" : "");
  for (const AnalysisRow& r : a.rows)
    out += fmt::format("  {:>6} {:>8} {:>10} {:>5} {:>10} {:>9}  | {:>10} {:>10} {:>9} {:>8} {:>9.4g}{}\n", r.batch, r.context,
                       with_unit(r.memory_bytes, "B"), r.fits ? "yes" : "no", about(a, with_unit(r.latency_s, "s")),
                       about(a, speed(r.tokens_per_s)), with_unit(r.step.bytes, "B"), about(a, with_unit(r.step.seconds, "s")),
                       about(a, speed(r.step_tokens_per_s)), name_of(r.step.bound), r.price_per_million,
                       draft ? fmt::format("   × {:.2f}", r.draft_speedup) : "");
  out += fmt::format("  $/Mtok at {} an hour for a chip.", fmt::format("${:g}", a.question.price));
  if (draft)
    out += fmt::format(" drafts: {} tokens of {} at a time, {:.0f} % accepted; its weights and state count in what fits.",
                       a.question.draft->lookahead, a.question.draft->subject.name, 100 * a.question.draft->acceptance);
  return out + "\n";
}

// The fewest chips from so many on that can share the model evenly; 0: there are none.
static int chips_that_share(const ModelSpec& spec, int from) {
  for (int chips = from; chips <= 1024; chips++)
    if (!uneven_part(spec, chips)) return chips;
  return 0;
}

// What would hold weights that are too large for a chip: more of them, fewer bits a weight, or both.
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

// Why no batch at all gives every user the speed and the first token in time.
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
  return fmt::format("one prompt alone takes {} (--deadline {:g})", with_unit(l.ttft_s, "s"), q.deadline_s);
}

static std::string limits_table(const Analysis& a) {
  const Question& q = a.question;
  const bool demand = q.demand_words > 0;
  std::string out = fmt::format(
      "\nWhat fits: the largest batch by memory; with {:g} tokens/s for every user; with all prompts, coming at once, read within {:g} s; "
      "and with both.\nRight of the line: that last batch, and what it makes.\n",
      q.user_tokens_per_s, q.deadline_s);
  out += fmt::format("  {:>8} {:>12} {:>12} {:>10} {:>10} | {:>10} {:>11} {:>9}{}\n", "context", "first token", "by memory", "by speed",
                     "by prompt", "by both", "tok/s", "$/Mtok", demand ? "      chips" : "");
  for (const Fitting& l : a.limits) {
    auto made = [&](std::string text) { return l.both ? text : "none"; };
    out += fmt::format("  {:>8} {:>12} {:>12} {:>10} {:>10} | {:>10} {:>11} {:>9}{}\n", l.context, about(a, with_unit(l.ttft_s, "s")),
                       count_or(l.largest_batch, int64_t(1) << 39), grouped(l.users), grouped(l.within_deadline), grouped(l.both),
                       made(about(a, speed(l.tokens_per_s))), made(fmt::format("{:.4g}", l.price_per_million)),
                       demand ? fmt::format(" {:>10}", made(grouped(l.chips_for_demand))) : "");
  }
  for (const Fitting& l : a.limits)
    if (!l.both) out += fmt::format("  Nobody is served so at {} tokens: {}.\n", grouped(l.context), why_none(a, l));
  if (demand)
    out +=
        fmt::format("  chips: for {} words a day, 4 tokens for 3 words, spread evenly, every user as fast and every first token as soon.\n",
                    with_unit(q.demand_words, ""));
  out += "  Longest context by memory:";
  for (auto [batch, context] : a.longest_context) out += fmt::format("  {} for batch {}", count_or(context, int64_t(1) << 39), batch);
  return out + fmt::format(" (the model was made for {}).\n", grouped(q.subject.spec.max_context));
}

static std::string operations_table(const Analysis& a, bool prefill, double batch) {
  std::string out;
  StepCost all;
  for (const Analysis::Point& p : a.operations) {
    if (p.prefill != prefill || p.phase.batch != batch) continue;
    all.seconds += p.time.seconds, all.bytes += p.op.bytes(), all.flops += p.op.flops;
    std::string law = p.op.law.empty() ? "" : fmt::format("{:>9.4g} = {}", p.op.law_intensity, p.op.law);
    out += fmt::format("  {:<24} {:>4} {:>12} {:>10} {:>10} {:>10.4g} {:>10} {:<8} {}\n", p.op.name, p.op.layers,
                       with_unit(p.op.flops, "FLOP"), with_unit(p.op.weights + p.op.state + p.op.read, "B"), with_unit(p.op.written, "B"),
                       p.op.intensity(), about(a, with_unit(p.time.seconds, "s")), name_of(p.time.bound), law);
  }
  std::string head =
      fmt::format("\n{}, batch {:g}, context {}: {}, {}, {}\n", prefill ? "Prefill" : "Generation", batch, a.question.contexts[0],
                  with_unit(all.flops, "FLOP"), with_unit(all.bytes, "B"), with_unit(all.seconds, "s"));
  return head +
         fmt::format("  {:<24} {:>4} {:>12} {:>10} {:>10} {:>10} {:>10} {:<8} {}\n", "operation", "×", "flops", "read", "written",
                     "intensity", "at least", "bound", "law") +
         out;
}

// FlashAttention beside its law, where the chip's memory beside a unit is known.
static std::string flash_table(const Analysis& a) {
  if (!a.flash) return {};
  const FlashCost& f = *a.flash;
  const double s = f.context, words = f.fast_words;
  auto row = [](const char* name, const std::string& exact, const std::string& law, const char* symbols) {
    return fmt::format("  {:<22} {:>14} {:>14} = {}\n", name, exact, law, symbols);
  };
  std::string out = fmt::format(
      "\nFlashAttention, one head of {:g} over a prompt of {:g} tokens, in tiles of {:g} tokens: those of queries, keys, values and "
      "results fit the {}\n"
      "beside a unit, M = {} words of 2 bytes. The law leaves out constants and counts every pair of tokens; a causal prompt has half of "
      "them.\n",
      f.head_dim, s, f.tile, with_unit(2 * words, "B"), grouped(int64_t(words)));
  out += fmt::format("  {:<22} {:>14} {:>14}\n", "", "exact", "law");
  out += row("flops", with_unit(f.flops, "FLOP"), with_unit(f.law_flops, "FLOP"), "4·S²·H");
  out += row("words moved", grouped(int64_t(f.words)), grouped(int64_t(f.law_words)), "S²·H²/M");
  out += row("extra memory, words", grouped(int64_t(f.extra_words)), grouped(int64_t(f.law_extra_words)), "S");
  return out + fmt::format("  {:<22} {:>14}   words of scores that are never written\n", "", grouped(int64_t(s * s)));
}

static std::string warnings(const Analysis& a) {
  std::string out;
  for (const std::string& w : a.warnings) out += fmt::format("\nWarning: {}.\n", w);
  return out;
}

std::string text_report(const Analysis& a) {
  double shown = double(a.question.batches[0]);  // the largest batch that fits
  for (const AnalysisRow& r : a.rows)
    if (r.fits && r.context == a.question.contexts[0]) shown = std::max(shown, double(r.batch));
  return about_model(a) + about_chip(a) + warnings(a) + rows_table(a) + limits_table(a) + operations_table(a, true, 1) +
         "  The laws of attention count every pair of tokens; a causal prompt has half of them.\n" + operations_table(a, false, shown) +
         flash_table(a);
}

std::string formats_table() {
  std::string out = fmt::format("  {:<9} {:>8} {:>12} {:>12} {:>12}  {}\n", "format", "bytes", "largest", "smallest", "step", "");
  for (const NumberFormat& f : number_formats())
    out += fmt::format("  {:<9} {:>8.4g} {:>12.5g} {:>12.5g} {:>12.5g}  {}\n", f.name, f.bytes, f.largest, f.smallest, f.step, f.note);
  return out;
}

}  // namespace mr
