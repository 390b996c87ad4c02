#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "analyze/plot.h"
#include "analyze/report.h"

namespace mr {

namespace {

enum Color { ink, red, blue, green, grey, orange };

// The largest batch that fits, of those asked for; the first if none does.
int64_t shown_batch(const Analysis& a) {
  int64_t batch = a.question.batches[0];
  for (const AnalysisRow& r : a.rows)
    if (r.fits && r.context == a.question.contexts[0]) batch = std::max(batch, r.batch);
  return batch;
}

struct Dot {
  double x, y, seconds;
  std::string name, label;  // label: empty for what takes little time, or lies where another is labelled
};

// The operations of one phase, those that take longest first; neighbours on the roof share a label.
std::vector<Dot> dots(const Analysis& a, bool prefill, int64_t batch) {
  std::vector<Dot> out;
  double all = 0;
  for (const Analysis::Point& p : a.operations)
    if (p.prefill == prefill && int64_t(p.phase.batch) == batch && p.op.flops > 0 && p.op.bytes() > 0) {
      out.push_back({p.op.intensity(), p.op.flops / p.time.seconds, p.time.seconds, p.op.name, ""});
      all += p.time.seconds;
    }
  std::ranges::sort(out, std::greater{}, &Dot::seconds);
  auto near = [](double a, double b) { return a < b * 1.4 && b < a * 1.4; };
  for (size_t i = 0; i < out.size() && out[i].seconds > 0.02 * all; i++) {
    auto first = std::find_if(out.begin(), out.begin() + int64_t(i),
                              [&](const Dot& d) { return !d.label.empty() && near(d.x, out[i].x) && near(d.y, out[i].y); });
    first->label += (first->label.empty() ? "" : ", ") + out[i].name;
  }
  return out;
}

std::string shortened(const std::string& text) {
  if (text.size() <= 34) return text;
  size_t cut = text.rfind(", ", 34);
  return text.substr(0, cut == std::string::npos ? 34 : cut) + ", …";
}

std::string table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<table><thead><tr>";
  for (const std::string& h : head) out += "<th>" + escaped(h) + "</th>";
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += "<td>" + escaped(cell) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table>\n";
}

std::string rows_table(const Analysis& a) {
  std::vector<std::vector<std::string>> rows;
  for (const AnalysisRow& r : a.rows)
    rows.push_back({grouped(r.batch), grouped(r.context), with_unit(r.memory_bytes, "B"), r.fits ? "yes" : "no",
                    with_unit(r.latency_s, "s"), fmt::format("{:.1f}", r.tokens_per_s), with_unit(r.step.bytes, "B"),
                    with_unit(r.step.seconds, "s"), fmt::format("{:.1f}", r.step_tokens_per_s), std::string(name_of(r.step.bound)),
                    fmt::format("{:.4g}", r.price_per_million)});
  return table({"batch", "context", "memory", "fits", "latency", "tokens/s", "step moves", "step takes", "tokens/s", "bound", "$/M tokens"},
               rows);
}

std::string limits_table(const Analysis& a) {
  std::vector<std::vector<std::string>> rows;
  for (const Fitting& l : a.limits)
    rows.push_back({grouped(l.context), with_unit(l.ttft_s, "s"), grouped(l.largest_batch), grouped(l.users), grouped(l.within_deadline),
                    grouped(l.both), l.both ? fmt::format("{:.1f}", l.tokens_per_s) : "none",
                    l.both ? fmt::format("{:.4g}", l.price_per_million) : "none",
                    l.chips_for_demand ? grouped(l.chips_for_demand) : "none"});
  std::vector<std::string> head{"context", "first token",        "largest batch", "at user speed",   "within deadline",
                                "both",    "tokens/s with both", "$/M tokens",    "chips for demand"};
  if (a.question.demand_words <= 0) {
    head.pop_back();
    for (auto& row : rows) row.pop_back();
  }
  return table(head, rows);
}

std::string operations_table(const Analysis& a, bool prefill, int64_t batch) {
  std::vector<std::vector<std::string>> rows;
  for (const Analysis::Point& p : a.operations)
    if (p.prefill == prefill && int64_t(p.phase.batch) == batch)
      rows.push_back({p.op.name, std::to_string(p.op.layers), with_unit(p.op.flops, "FLOP"), with_unit(p.op.bytes(), "B"),
                      fmt::format("{:.4g}", p.op.intensity()), with_unit(p.time.seconds, "s"), std::string(name_of(p.time.bound)),
                      p.op.law.empty() ? "" : fmt::format("{} = {:.4g}", p.op.law, p.op.law_intensity)});
  return table({"operation", "×", "flops", "moves", "flops a byte", "at least", "bound", "law"}, rows);
}

}  // namespace

std::string roofline_svg(const Analysis& a) {
  const Chip& c = a.question.on.chip;
  const double bandwidth = c.bandwidth * a.question.on.tp;
  struct Series {
    Color color;
    std::string name;
    std::vector<Dot> dots;
  };
  int64_t first = a.question.batches[0], shown = shown_batch(a);
  std::vector<Series> series{{green, "prefill of one prompt", dots(a, true, 1)}};
  if (shown != first) series.push_back({blue, fmt::format("generation, batch {}", shown), dots(a, false, shown)});
  series.push_back({red, fmt::format("generation, batch {}", first), dots(a, false, first)});
  double roof = product_rate(c, a.question.subject.storage.block_product) * a.question.on.tp;
  double top = std::max(roof, c.bf16 * a.question.on.tp), low = 1, high = 4 * top / bandwidth;
  for (const Series& s : series)
    for (const Dot& d : s.dots) low = std::min(low, d.x), high = std::max(high, d.x);
  Plot plot("Roofline: " + a.question.subject.name + " on " + a.question.on.chip.name, {"flops a byte", "", low, high},
            {"FLOP/s that can be reached", "FLOP/s", std::pow(10, std::floor(std::log10(low))) * bandwidth, 1.5 * top});
  plot.line({{plot.x_low(), plot.x_low() * bandwidth}, {roof / bandwidth, roof}, {plot.x_high(), roof}}, ink);
  for (const Series& s : series) plot.legend(s.color, s.name);
  struct Label {
    int rank;  // in its series: what takes longest is first
    double x;
    const Dot* dot;
    Color color;
  };
  std::vector<Label> labels;
  for (const Series& s : series) {
    int rank = 0;
    for (const Dot& d : s.dots) {
      plot.point({d.x, d.y}, s.color, fmt::format("{}: {:.4g} flops a byte, {}", d.name, d.x, with_unit(d.y, "FLOP/s")));
      if (!d.label.empty()) labels.push_back({rank++, d.x, &d, s.color});
    }
  }
  // There may not be room for all. Those at the right have the least of it.
  std::ranges::sort(labels, std::less{}, [](const Label& l) { return std::pair(l.rank, -l.x); });
  for (const Label& l : labels) plot.label({l.dot->x, l.dot->y}, l.color, shortened(l.dot->label));
  return plot.svg();
}

std::string throughput_svg(const Analysis& a) {
  const std::vector<AnalysisRow>& curve = a.curve;
  double low = 1e300, high = 0, slow = 0, quick = 1e300, user = 1 / a.question.user_tokens_per_s;
  for (const AnalysisRow& r : curve) {
    low = std::min({low, r.tokens_per_s, r.step_tokens_per_s}), high = std::max({high, r.tokens_per_s, r.step_tokens_per_s});
    quick = std::min({quick, r.latency_s, r.step.seconds, user}), slow = std::max({slow, r.latency_s, r.step.seconds, user});
  }
  Plot plot(fmt::format("Latency against throughput over B, context {}", a.question.contexts[0]), {"tokens/s, all users", "", low, high},
            {"one step, a token for everyone", "s", quick, 1.5 * slow});
  std::vector<Plot::Point> napkin, step;
  for (const AnalysisRow& r : curve) napkin.push_back({r.tokens_per_s, r.latency_s}), step.push_back({r.step_tokens_per_s, r.step.seconds});
  plot.line({{plot.x_low(), user}, {plot.x_high(), user}}, grey, true);
  plot.text({plot.x_low(), user}, grey, fmt::format("{:g} tokens/s for every user", a.question.user_tokens_per_s));
  plot.line(napkin, orange, true);
  plot.line(step, blue);
  for (size_t i = 0; i < curve.size(); i++) {
    plot.point(step[i], blue, fmt::format("B = {}: {}, {:.1f} tokens/s", curve[i].batch, with_unit(step[i].y, "s"), step[i].x));
    plot.text(step[i], blue, std::to_string(curve[i].batch));
  }
  plot.legend(orange, "napkin: parameters + state over bandwidth");
  plot.legend(blue, "every operation at the roofline, B as labelled");
  return plot.svg();
}

std::string memory_svg(const Analysis& a) {
  const Question& q = a.question;
  const double chip = q.on.chip.memory * q.on.tp, weights = a.rows[0].parameter_bytes;
  std::vector<Color> colors{blue, red, green, orange};
  double most = std::pow(10, std::ceil(std::log10(std::clamp(double(a.limits[0].largest_batch) * 4, 64.0, 65536.0))));
  double high = chip;
  for (int64_t context : q.contexts)
    high = std::max(high, weights + most * state_bytes(q.subject.spec, q.subject.storage, double(context)));
  Plot plot("Memory against B", {"B, sequences at once", "", 1, most}, {"parameters and state", "B", std::min(weights, chip), high});
  plot.line({{1, chip}, {plot.x_high(), chip}}, ink, true);
  plot.text({1, chip}, ink, fmt::format("{} of {}", with_unit(chip, "B"), q.on.chip.name));
  plot.line({{1, weights}, {plot.x_high(), weights}}, grey);
  plot.text({plot.x_high() / 6, weights}, grey, "parameters alone");
  for (size_t i = 0; i < q.contexts.size() && i < colors.size(); i++) {
    std::vector<Plot::Point> line;
    for (double b = 1; b <= plot.x_high() * 1.001; b *= std::pow(10, 0.05))
      line.push_back({b, weights + b * state_bytes(q.subject.spec, q.subject.storage, double(q.contexts[i]))});
    plot.line(line, colors[i]);
    plot.legend(colors[i], fmt::format("context {}", q.contexts[i]));
  }
  return plot.svg();
}

std::string html_report(const Analysis& a) {
  const Subject& s = a.question.subject;
  const std::string title = escaped(s.name + " on " + a.question.on.chip.title);
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>" + title + "</title>\n";
  out +=
      "<style>body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;max-width:960px;margin:2em auto;padding:0 1em}"
      "table{border-collapse:collapse;margin:1em 0;font-size:13px}td,th{padding:3px 10px;border-bottom:1px solid #e4e7eb;"
      "text-align:right;font-variant-numeric:tabular-nums}td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}"
      "svg{max-width:100%;height:auto}div{overflow-x:auto}</style></head><body>\n";
  out += "<h1>" + title + "</h1>\n";
  const Chip& c = a.question.on.chip;
  out += fmt::format(
      "<p>{} parameters, {} in {}; keys and values in {}. The chip reads {} and computes {}: below {:.0f} flops a byte it waits "
      "for memory.</p>\n",
      grouped(a.parameters), with_unit(parameter_bytes(s.spec, s.storage), "B"), escaped(s.storage.block_name), escaped(s.storage.kv_name),
      with_unit(c.bandwidth, "B/s"), with_unit(c.bf16, "FLOP/s"), c.ratio());
  if (c.busy())
    out += fmt::format("<p><b>It was measured while other programs used {:.0f} % of the processors: its true limits are higher.</b></p>\n",
                       100 * c.others);
  for (const std::string& w : a.warnings) out += "<p><b>Warning:</b> " + escaped(w) + ".</p>\n";
  out += roofline_svg(a) + throughput_svg(a) + memory_svg(a);
  out += "<h2>Generation</h2><p>Memory, latency and tokens/s by the napkin law, then by what the operations of a step move.</p><div>" +
         rows_table(a) + "</div>\n";
  out += fmt::format(
             "<h2>What fits</h2><p>{:g} tokens/s for every user, the first token within {:g} s when all prompts come at once. The last "
             "columns are those of the largest batch with both.</p><div>",
             a.question.user_tokens_per_s, a.question.deadline_s) +
         limits_table(a) + "</div>\n";
  out += "<h2>Prefill of one prompt, by operation</h2><div>" + operations_table(a, true, 1) + "</div>\n";
  out +=
      fmt::format("<h2>Generation of {}, by operation</h2><div>", shown_batch(a)) + operations_table(a, false, shown_batch(a)) + "</div>\n";
  return out + "</body></html>\n";
}

}  // namespace mr
