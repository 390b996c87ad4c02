#include "analyze/analysis.h"

#include <algorithm>
#include <cmath>

#include "analyze/report.h"
#include "core/error.h"

namespace mr {

namespace {

constexpr double kTokensAWord = 4.0 / 3;
constexpr int64_t most_batch = 1 << 24, most_context = 1 << 30;

// Weights and state on one of `chips` chips.
double memory_of(const Subject& s, double batch, double context, int chips) {
  return parameter_bytes(s.spec, s.storage) / chips + batch * state_bytes(s.spec, s.storage, context, chips);
}

bool fits(const Question& q, double batch, double context) { return memory_bytes(q, batch, context, q.on.tp) <= q.on.chip.memory; }

StepCost cost_of(const Subject& subject, const Phase& phase, const Deployment& on) {
  return step_cost(operations(subject, phase, on.tp), on);
}
StepCost cost_of(const Question& q, const Phase& phase) { return cost_of(q.subject, phase, q.on); }

double price_per_million(const Question& q, double tokens_per_s) { return q.price * q.on.tp / 3600 / tokens_per_s * 1e6; }

// A step drafts `lookahead` tokens one by one, then verifies them all at once; accepted ones and one more are kept
// (Leviathan et al. 2022).
double draft_speedup(const Question& q, const AnalysisRow& row) {
  const Question::Draft& d = *q.draft;
  double kept = d.acceptance == 1 ? d.lookahead + 1 : (1 - std::pow(d.acceptance, d.lookahead + 1)) / (1 - d.acceptance);
  Phase verify{double(row.batch), double(d.lookahead + 1), double(row.context + d.lookahead), double(d.lookahead + 1)};
  double draft = cost_of(d.subject, Phase::generation(double(row.batch), double(row.context)), q.on).seconds;
  return kept * row.step.seconds / (cost_of(q, verify).seconds + d.lookahead * draft);
}

AnalysisRow row_of(const Question& q, int64_t batch, int64_t context) {
  AnalysisRow r{batch, context};
  r.parameter_bytes = parameter_bytes(q.subject.spec, q.subject.storage);
  r.state_bytes_per_sequence = state_bytes(q.subject.spec, q.subject.storage, double(context));
  r.memory_bytes = memory_bytes(q, double(batch), double(context), 1);
  r.memory_per_chip = memory_bytes(q, double(batch), double(context), q.on.tp);
  r.fits = fits(q, double(batch), double(context));
  r.latency_s = memory_of(q.subject, double(batch), double(context), q.on.tp) / q.on.chip.bandwidth;
  r.tokens_per_s = double(batch) / r.latency_s * q.on.replicas;
  r.step = cost_of(q, Phase::generation(double(batch), double(context)));
  r.step_tokens_per_s = double(batch) / r.step.seconds * q.on.replicas;
  r.price_per_million = price_per_million(q, r.step_tokens_per_s / q.on.replicas);
  if (q.draft) r.draft_speedup = draft_speedup(q, r);
  return r;
}

Fitting limits_at(const Question& q, int64_t context) {
  Fitting l{context};
  const double s = double(context);
  l.ttft_s = cost_of(q, Phase::prefill(1, s)).seconds;
  auto fast = [&](int64_t b) { return cost_of(q, Phase::generation(double(b), s)).seconds <= 1 / q.user_tokens_per_s; };
  auto prompt = [&](int64_t b) { return cost_of(q, Phase::prefill(double(b), s)).seconds <= q.deadline_s; };
  l.largest_batch = largest([&](int64_t b) { return fits(q, double(b), s); });
  l.users = largest([&](int64_t b) { return fits(q, double(b), s) && fast(b); });
  l.within_deadline = largest([&](int64_t b) { return fits(q, double(b), s) && prompt(b); });
  l.both = std::min(l.users, l.within_deadline);
  if (!l.both) return l;
  double each = double(l.both) / cost_of(q, Phase::generation(double(l.both), s)).seconds;
  l.tokens_per_s = each * q.on.replicas;
  l.price_per_million = price_per_million(q, each);
  if (q.demand_words > 0) l.chips_for_demand = int64_t(std::ceil(q.demand_words * kTokensAWord / 86400 / each)) * q.on.tp;
  return l;
}

void check_question(const Question& q) {
  check(!q.batches.empty() && !q.contexts.empty(), "an analysis needs a batch and a context");
  for (int64_t n : q.batches)
    check(n >= 1 && n <= most_batch, "a batch of {} sequences was asked for: 1 to {} can be analysed", n, most_batch);
  for (int64_t n : q.contexts)
    check(n >= 1 && n <= most_context, "a context of {} tokens was asked for: 1 to {} can be analysed", n, most_context);
  check(q.on.tp >= 1 && q.on.replicas >= 1, "{} replicas of {} chips were asked for", q.on.replicas, q.on.tp);
  check(q.on.tp == 1 || q.on.chip.link > 0, "{} chips of kind '{}' cannot share a layer: they have no link", q.on.tp, q.on.chip.name);
  check(q.user_tokens_per_s > 0 && q.user_tokens_per_s <= 1e9, "{} tokens/s for every user were asked for: more than none, up to 1e9",
        q.user_tokens_per_s);
  check(q.deadline_s > 0 && q.deadline_s <= 1e9, "a first token within {} s was asked for: it takes some time, up to 1e9 s", q.deadline_s);
  check(q.price >= 0 && q.price <= 1e9, "a chip cannot cost {} an hour: 0 to 1e9 can be analysed", q.price);
  check(q.demand_words >= 0 && q.demand_words <= 1e18, "{} words a day cannot be asked for: up to 1e18 can", q.demand_words);
  check_split(q.subject.spec, q.on.tp);
  if (q.draft) check_split(q.draft->subject.spec, q.on.tp);
  if (q.draft)
    check(q.draft->acceptance >= 0 && q.draft->acceptance <= 1 && q.draft->lookahead >= 1,
          "an acceptance of {} with {} drafted tokens was asked for", q.draft->acceptance, q.draft->lookahead);
}

std::vector<std::string> warnings_about(const Question& q) {
  std::vector<std::string> out;
  if (!q.draft) return out;
  const Subject &draft = q.draft->subject, &target = q.subject;
  const int64_t small = active_parameters(draft.spec), large = active_parameters(target.spec);
  if (small >= large)
    out.push_back(fmt::format("the draft model {} uses {} parameters a token and its target {} {}: drafting costs more than it can gain",
                              draft.name, grouped(small), target.name, grouped(large)));
  if (draft.spec.vocab != target.spec.vocab)
    out.push_back(
        fmt::format("the draft model {} has {} tokens and its target {} has {}: drafts are tokens of one vocabulary, so take the "
                    "speed-up for that of a model of this size",
                    draft.name, grouped(draft.spec.vocab), target.name, grouped(target.spec.vocab)));
  return out;
}

// Of the first layer with global attention.
std::optional<FlashCost> flash_of(const Question& q) {
  for (const LayerSpec& layer : q.subject.spec.layers)
    if (auto* a = std::get_if<AttentionSpec>(&layer.mixer); a && !a->window && q.on.chip.unit_memory > 0)
      return flash_attention(double(q.contexts[0]), a->head_dim, q.on.chip.unit_memory / 2);
  return {};
}

}  // namespace

double memory_bytes(const Question& q, double batch, double context, int chips) {
  return memory_of(q.subject, batch, context, chips) + (q.draft ? memory_of(q.draft->subject, batch, context, chips) : 0);
}

std::optional<UnevenPart> uneven_part(const ModelSpec& spec, int chips) {
  std::optional<UnevenPart> found;
  auto whole = [&](const char* what, int n) {
    if (!found && n % chips != 0) found = {what, n};
  };
  for (const LayerSpec& layer : spec.layers) {
    const Division mixer = std::visit([](const auto& m) { return m.division(); }, layer.mixer);
    whole(mixer.what, mixer.units);
    if (mixer.state_ways && chips % mixer.state_ways != 0) whole("key/value heads", mixer.state_ways);
    if_ffn(layer.ffn, [&](const auto& ffn) { whole(ffn.division().what, ffn.division().units); });
  }
  return found;
}

void check_split(const ModelSpec& spec, int chips) {
  const auto uneven = uneven_part(spec, chips);
  if (!uneven) return;
  std::string can;
  for (int i = 1; i <= std::min(uneven->n, 1024); i++)
    if (uneven->n % i == 0) can += fmt::format("{}{}", can.empty() ? "" : ", ", i);
  fail("{} {} cannot be split over {} chips: {} can share them", uneven->n, uneven->what, chips, can);
}

Analysis analyze(Question question) {
  check_question(question);
  Analysis a{std::move(question)};
  const Question& q = a.question;
  a.warnings = warnings_about(q);
  const Subject& subject = q.subject;
  a.parameters_with_norms = parameters(subject.spec);
  a.parameters = a.parameters_with_norms - norm_parameters(subject.spec);
  a.active_parameters = active_parameters(subject.spec);
  a.state = state_kinds(subject.spec, subject.storage);
  a.flash = flash_of(q);
  for (int64_t context : q.contexts) {
    a.limits.push_back(limits_at(q, context));
    for (int64_t batch : q.batches) a.rows.push_back(row_of(q, batch, context));
  }
  for (int64_t batch = 1; batch <= std::clamp<int64_t>(a.limits[0].largest_batch, 1, 4096); batch *= 2)
    a.curve.push_back(row_of(q, batch, q.contexts[0]));
  for (int64_t batch : q.batches)
    a.longest_context.emplace_back(batch, largest([&](int64_t s) { return fits(q, double(batch), double(s)); }));

  auto add = [&](bool prefill, Phase phase) {
    for (Operation& o : operations(subject, phase, q.on.tp)) {
      RoofTime t = time_of(o, q.on);
      a.operations.push_back({prefill, phase, part_of(std::move(o), q.on.tp), t});
    }
  };
  add(true, Phase::prefill(1, double(q.contexts[0])));
  for (int64_t batch : q.batches) add(false, Phase::generation(double(batch), double(q.contexts[0])));
  return a;
}

int64_t shown_batch(const Analysis& a) {
  int64_t batch = a.question.batches[0];
  for (const AnalysisRow& r : a.rows)
    if (r.fits && r.context == a.question.contexts[0]) batch = std::max(batch, r.batch);
  return batch;
}

}  // namespace mr
