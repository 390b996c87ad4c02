#include "bench/requests.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mr {

std::string path_of(const Workload& w) { return w.chat ? "/v1/chat/completions" : "/v1/completions"; }

std::string request_body(const Workload& w, uint32_t index) {
  Json body{{"model", w.model}, {"max_tokens", answer_length(w, index)},      {"temperature", 0}, {"ignore_eos", true},
            {"stream", true},   {"stream_options", {{"include_usage", true}}}};
  const LoadItem* item = item_of(w, index);
  const bool has_ids = item && !item->tokens.empty();
  check(!w.chat || !has_ids, "a chat needs prompts as text, but one of the load is token ids");
  std::string text = item ? item->text : "";
  if (text.empty() && !has_ids && (w.chat || w.text)) text = made_up_text(w, index);
  if (w.chat)
    body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
  else if (!text.empty())
    body["prompt"] = text;
  else
    body["prompt"] = has_ids ? item->tokens : made_up_tokens(w, index);
  return body.dump();
}

bool Deadlines::met(const Outcome& o) const {
  return o.error.empty() && (ttft <= 0 || o.ttft() <= ttft) && (tpot <= 0 || o.tpot() <= tpot);
}

LoadReport summarize(const std::vector<Outcome>& outcomes, const Deadlines& deadlines) {
  LoadReport r;
  std::vector<double> ttft, tpot, e2e;
  double begin = INFINITY, end = 0;
  for (const Outcome& o : outcomes) {
    r.requests++;
    begin = std::min(begin, o.sent);
    end = std::max(end, o.done);
    r.good += deadlines.met(o);
    if (!o.error.empty()) {
      r.failed++;
      r.errors[o.error]++;
      continue;
    }
    r.prompt_tokens += o.prompt_tokens;
    r.tokens += o.n_tokens;
    ttft.push_back(o.ttft());
    e2e.push_back(o.e2e());
    if (o.n_tokens > 1) tpot.push_back(o.tpot());
  }
  r.seconds = outcomes.empty() ? 0 : end - begin;
  r.ttft = spread_of(ttft);
  r.tpot = spread_of(tpot);
  r.e2e = spread_of(e2e);
  return r;
}

Json report_json(const LoadReport& r, const Deadlines& deadlines) {
  double seconds = std::max(r.seconds, 1e-9);
  return {{"requests", r.requests},
          {"failed", r.failed},
          {"errors", r.errors},
          {"seconds", r.seconds},
          {"prompt_tokens", r.prompt_tokens},
          {"output_tokens", r.tokens},
          {"tokens_per_s", double(r.tokens) / seconds},
          {"requests_per_s", (r.requests - r.failed) / seconds},
          {"ttft_s", spread_json(r.ttft)},
          {"tpot_s", spread_json(r.tpot)},
          {"e2e_s", spread_json(r.e2e)},
          {"ttft_deadline_s", deadlines.ttft},
          {"tpot_deadline_s", deadlines.tpot},
          {"goodput_requests_per_s", r.good / seconds},
          {"goodput_share", r.requests ? double(r.good) / r.requests : 0}};
}

}  // namespace mr
