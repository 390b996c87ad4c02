#include <cmath>

#include "analyze/report.h"

namespace mr {

static int64_t whole(double bytes) { return int64_t(std::llround(bytes)); }

static Json row_json(const AnalysisRow& r) {
  Json j{{"batch", r.batch},
         {"context", r.context},
         {"parameter_bytes", whole(r.parameter_bytes)},
         {"state_bytes_per_sequence", whole(r.state_bytes_per_sequence)},
         {"memory_bytes", whole(r.memory_bytes)},
         {"memory_bytes_per_chip", whole(r.memory_per_chip)},
         {"fits", r.fits},
         {"latency_s", r.latency_s},
         {"tokens_per_s", r.tokens_per_s},
         {"step_bytes", whole(r.step.bytes)},
         {"step_flops", whole(r.step.flops)},
         {"step_latency_s", r.step.seconds},
         {"step_tokens_per_s", r.step_tokens_per_s},
         {"bound", name_of(r.step.bound)},
         {"price_per_million_tokens", r.price_per_million}};
  if (r.draft_speedup > 0) j["draft_speedup"] = r.draft_speedup;
  return j;
}

static Json operation_json(const Analysis::Point& p) {
  const Operation& o = p.op;
  Json j{{"phase", p.prefill ? "prefill" : "generation"},
         {"batch", whole(p.phase.batch)},
         {"context", whole(p.phase.context)},
         {"operation", o.name},
         {"layers", o.layers},
         {"flops", whole(o.flops)},
         {"bytes_read", whole(o.weights + o.state + o.read)},
         {"bytes_written", whole(o.written)},
         {"intensity", o.intensity()},
         {"seconds", p.time.seconds},
         {"bound", name_of(p.time.bound)}};
  if (!o.law.empty()) {
    j["law"] = o.law;
    j["law_intensity"] = o.law_intensity;
  }
  if (o.link > 0) j["link_bytes"] = whole(o.link);
  return j;
}

static Json limits_json(const Fitting& l) {
  Json j{{"context", l.context},
         {"ttft_s", l.ttft_s},
         {"largest_batch", l.largest_batch},
         {"largest_batch_at_user_speed", l.users},
         {"largest_batch_within_deadline", l.within_deadline},
         {"largest_batch_with_both", l.both},
         {"tokens_per_s", l.tokens_per_s},
         {"price_per_million_tokens", l.both ? Json(l.price_per_million) : Json()}};
  if (l.chips_for_demand) j["chips_for_demand"] = l.chips_for_demand;
  return j;
}

static Json state_json(const Analysis& a) {
  Json j{{"kinds", Json::array()}};
  int64_t per_token = 0, per_sequence = 0;
  for (const StateKind& k : a.state) {
    j["kinds"].push_back({{"kind", k.name},
                          {"layers", k.layers},
                          {"bytes_per_token", k.bytes_per_token},
                          {"bytes_per_sequence", k.bytes_per_sequence},
                          {"window", k.window}});
    per_token += k.bytes_per_token;
    per_sequence += k.bytes_per_sequence;
  }
  const Subject& s = a.question.subject;
  double context = double(a.question.contexts[0]), own = state_bytes(s.spec, s.storage, context);
  j["bytes_per_token"] = per_token;
  j["bytes_per_sequence"] = per_sequence;
  if (double mha = mha_state_bytes(s.spec, s.storage, context); mha > 0) {
    j["mha_bytes_per_sequence"] = whole(mha);
    j["times_less_than_mha"] = mha / own;
  }
  return j;
}

Json json_report(const Analysis& a) {
  const Question& q = a.question;
  Json j{{"model", q.subject.name},
         {"symbols", symbols(q.subject.spec)},
         {"hardware", q.on.chip.name},
         {"architecture", q.subject.spec.arch},
         {"parameters", a.parameters},
         {"parameters_with_norms", a.parameters_with_norms},
         {"active_parameters", a.active_parameters},
         {"weight_format", q.subject.storage.block_name},
         {"table_format", q.subject.storage.table_name},
         {"kv_format", keeps_keys(q.subject.spec) ? Json(q.subject.storage.kv_name) : Json()},
         {"chip", json_of(q.on.chip)},
         {"ratio", product_rate(q.on.chip, q.subject.storage.block_product) / q.on.chip.bandwidth},  // of products with the weights
         {"tp", q.on.tp},
         {"replicas", q.on.replicas},
         {"price_per_hour", q.price},
         {"deadline_s", q.deadline_s},
         {"user_tokens_per_s", q.user_tokens_per_s},
         {"state", state_json(a)}};
  j["rows"] = j["curve"] = j["limits"] = j["longest_context"] = j["operations"] = Json::array();
  for (const AnalysisRow& r : a.rows) j["rows"].push_back(row_json(r));
  for (const AnalysisRow& r : a.curve) j["curve"].push_back(row_json(r));
  for (const Fitting& l : a.limits) j["limits"].push_back(limits_json(l));
  for (auto [batch, context] : a.longest_context) j["longest_context"].push_back({{"batch", batch}, {"context", context}});
  for (const Analysis::Point& p : a.operations) j["operations"].push_back(operation_json(p));
  j["warnings"] = a.warnings;
  if (a.flash)
    j["flash_attention"] = {{"context", whole(a.flash->context)},
                            {"head_dim", whole(a.flash->head_dim)},
                            {"fast_words", whole(a.flash->fast_words)},
                            {"tile_tokens", whole(a.flash->tile)},
                            {"flops", whole(a.flash->flops)},
                            {"law_flops", whole(a.flash->law_flops)},
                            {"words", whole(a.flash->words)},
                            {"law_words", a.flash->law_words},
                            {"extra_words", whole(a.flash->extra_words)},
                            {"law_extra_words", whole(a.flash->law_extra_words)}};
  if (q.demand_words > 0) j["demand_words_per_day"] = q.demand_words;
  if (q.draft) j["draft"] = {{"model", q.draft->subject.name}, {"acceptance", q.draft->acceptance}, {"lookahead", q.draft->lookahead}};
  for (const NumberFormat& f : number_formats())
    j["formats"].push_back({{"format", f.name}, {"bytes", f.bytes}, {"largest", f.largest}, {"smallest", f.smallest}, {"step", f.step}});
  return j;
}

}  // namespace mr
