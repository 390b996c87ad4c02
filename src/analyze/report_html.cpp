#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "analyze/plot.h"
#include "analyze/report.h"

namespace mr {

namespace {

enum Color { ink, red, blue, green, grey, orange };

const std::string separator = " · ";  // between names, which may contain commas

struct Dot {
  double x, y, seconds;
  std::string name, label;  // label: empty if it takes little time or overlaps a labelled one
};

// The operations of one phase, slowest first; neighbours on the roof share a label.
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
    first->label += (first->label.empty() ? "" : separator) + out[i].name;
  }
  return out;
}

std::string shortened(const std::string& text) {
  constexpr size_t most = 46;
  if (text.size() <= most) return text;
  const size_t cut = text.rfind(separator, most);
  return cut == std::string::npos ? text : text.substr(0, cut) + separator + "…";
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

std::string paragraph(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += (out.empty() ? "<p>" : "<br/>") + escaped(line);
  return out.empty() ? "" : out + "</p>\n";
}

std::string rows_html(const Analysis& a) {
  std::vector<std::string> head{"batch",      "context",    "memory",   "fits",  "latency",   "tokens/s",
                                "step moves", "step takes", "tokens/s", "bound", "$/M tokens"};
  if (a.question.draft) head.push_back("with drafts");
  std::vector<std::vector<std::string>> rows;
  for (const AnalysisRow& r : a.rows) {
    rows.push_back({grouped(r.batch), grouped(r.context), with_unit(r.memory_bytes, "B"), r.fits ? "yes" : "no",
                    about(a, with_unit(r.latency_s, "s")), about(a, speed(r.tokens_per_s)), with_unit(r.step.bytes, "B"),
                    about(a, with_unit(r.step.seconds, "s")), about(a, speed(r.step_tokens_per_s)), std::string(name_of(r.step.bound)),
                    about(a, figure(r.price_per_million))});
    if (a.question.draft) rows.back().push_back(about(a, fmt::format("{:.2f}×", r.draft_speedup)));
  }
  return table(head, rows);
}

std::string limits_html(const Analysis& a) {
  const bool demand = a.question.demand_words > 0;
  std::vector<std::string> head{"context",         "first token", "largest batch",      "at user speed",
                                "within deadline", "both",        "tokens/s with both", "$/M tokens"};
  if (demand) head.push_back("chips for demand");
  std::vector<std::vector<std::string>> rows;
  for (const Fitting& l : a.limits) {
    auto made = [&](std::string text) { return l.both ? about(a, std::move(text)) : "none"; };
    auto users = [&](int64_t n) { return n ? about(a, grouped(n)) : "none"; };
    rows.push_back({grouped(l.context), about(a, with_unit(l.ttft_s, "s")), l.largest_batch ? grouped(l.largest_batch) : "none",
                    users(l.users), users(l.within_deadline), users(l.both), made(speed(l.tokens_per_s)),
                    made(figure(l.price_per_million))});
    if (demand) rows.back().push_back(made(grouped(l.chips_for_demand)));
  }
  return table(head, rows);
}

std::string operations_html(const Analysis& a, bool prefill, int64_t batch) {
  std::vector<std::vector<std::string>> rows;
  for (const Analysis::Point& p : a.operations)
    if (p.prefill == prefill && int64_t(p.phase.batch) == batch)
      rows.push_back({p.op.name + (p.op.link > 0 ? fmt::format(", {} sent", with_unit(p.op.link, "B")) : ""), std::to_string(p.op.layers),
                      with_unit(p.op.flops, "FLOP"), with_unit(p.op.weights + p.op.state + p.op.read, "B"), with_unit(p.op.written, "B"),
                      figure(p.op.intensity()), about(a, with_unit(p.time.seconds, "s")), std::string(name_of(p.time.bound)),
                      p.op.law.empty() ? "" : fmt::format("{} = {}", p.op.law, figure(p.op.law_intensity))});
  return table({"operation", "×", "flops", "reads", "writes", "flops a byte", "at least", "bound", "law"}, rows) +
         paragraph(law_lines(a, prefill, batch));
}

std::string flash_section(const Analysis& a) {
  if (!a.flash) return flash_lines(a).empty() ? "" : "<h2>FlashAttention</h2>" + paragraph(flash_lines(a));
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, exact, law, letters] : flash_rows(a)) rows.push_back({name, exact, law, letters});
  return "<h2>FlashAttention</h2>" + paragraph(flash_lines(a)) + "<div>" + table({"", "exact", "by the law", "law"}, rows) + "</div>\n";
}

}  // namespace

std::string roofline_svg(const Analysis& a) {
  const Chip& c = a.question.on.chip;
  struct Series {
    Color color;
    std::string name;
    std::vector<Dot> dots;
  };
  int64_t first = a.question.batches[0], shown = shown_batch(a);
  std::vector<Series> series{{green, "prefill of one prompt", dots(a, true, 1)}};
  if (shown != first) series.push_back({blue, fmt::format("generation, batch {}", shown), dots(a, false, shown)});
  series.push_back({red, fmt::format("generation, batch {}", first), dots(a, false, first)});
  double roof = product_rate(c, a.question.subject.storage.block_product);
  double top = std::max(roof, c.bf16), low = 1, high = 4 * top / c.bandwidth;
  for (const Series& s : series)
    for (const Dot& d : s.dots) {
      low = std::min(low, d.x);
      high = std::max(high, d.x);
    }
  Plot plot("Roofline: " + a.question.subject.name + " on " + c.name, {"flops a byte", "", low, high},
            {"FLOP/s that can be reached", "FLOP/s", std::pow(10, std::floor(std::log10(low))) * c.bandwidth, 1.5 * top});
  plot.line({{plot.x_low(), plot.x_low() * c.bandwidth}, {roof / c.bandwidth, roof}, {plot.x_high(), roof}}, ink);
  const double plain = c.bf16;  // for products of activations, as in attention
  if (plain != roof) plot.line({{plain / c.bandwidth, plain}, {plot.x_high(), plain}}, ink, true);
  std::vector<std::pair<int, std::string>> legend;
  for (const Series& s : series) legend.emplace_back(s.color, s.name);
  legend.emplace_back(ink, fmt::format("roof: {}, {}", about(a, with_unit(c.bandwidth, "B/s")), about(a, with_unit(roof, "FLOP/s"))));
  if (plain != roof) legend.emplace_back(ink, fmt::format("dashed: {} in products without weights", about(a, with_unit(plain, "FLOP/s"))));
  plot.legend(legend, Plot::Corner::bottom_right);  // far below the roof
  struct Label {
    int rank;  // in its series: slowest first
    double x;
    const Dot* dot;
    Color color;
  };
  std::vector<Label> labels;
  for (const Series& s : series) {
    int rank = 0;
    for (const Dot& d : s.dots) {
      plot.point({d.x, d.y}, s.color, fmt::format("{}: {} flops a byte, {}", d.name, figure(d.x), about(a, with_unit(d.y, "FLOP/s"))));
      if (!d.label.empty()) labels.push_back({rank++, d.x, &d, s.color});
    }
  }
  // There may not be room for all; the rightmost have the least.
  std::ranges::sort(labels, std::less{}, [](const Label& l) { return std::pair(l.rank, -l.x); });
  for (const Label& l : labels) plot.label({l.dot->x, l.dot->y}, l.color, shortened(l.dot->label));
  return plot.svg();
}

std::string throughput_svg(const Analysis& a) {
  const std::vector<AnalysisRow>& curve = a.curve;
  double low = 1e300, high = 0, slow = 0, quick = 1e300, user = 1 / a.question.user_tokens_per_s;
  for (const AnalysisRow& r : curve) {
    low = std::min({low, r.tokens_per_s, r.step_tokens_per_s});
    high = std::max({high, r.tokens_per_s, r.step_tokens_per_s});
    quick = std::min({quick, r.latency_s, r.step.seconds, user});
    slow = std::max({slow, r.latency_s, r.step.seconds, user});
  }
  Plot plot(fmt::format("Latency against throughput over B, context {}", grouped(a.question.contexts[0])),
            {"tokens/s, all users", "", low, high}, {"one step, a token for everyone", "s", quick, 1.5 * slow});
  std::vector<Plot::Point> napkin, step;
  for (const AnalysisRow& r : curve) {
    napkin.push_back({r.tokens_per_s, r.latency_s});
    step.push_back({r.step_tokens_per_s, r.step.seconds});
  }
  plot.line({{plot.x_low(), user}, {plot.x_high(), user}}, grey, true);
  plot.text({plot.x_low(), user}, grey, fmt::format("{:g} tokens/s for every user", a.question.user_tokens_per_s));
  plot.line(napkin, orange, true);
  plot.line(step, blue);
  for (size_t i = 0; i < curve.size(); i++)
    plot.point(step[i], blue,
               fmt::format("B = {}: {}, {} tokens/s", curve[i].batch, about(a, with_unit(step[i].y, "s")), about(a, speed(step[i].x))));
  std::vector<std::pair<int, std::string>> legend{{orange, "napkin: parameters + state over bandwidth"},
                                                  {blue, "every operation at the roofline, B as labelled"}};
  if (a.question.on.chip.busy()) legend.emplace_back(ink, "~ measured on a busy machine: it can do better");
  plot.legend(legend);
  for (size_t i = 0; i < curve.size(); i++) plot.label(step[i], blue, std::to_string(curve[i].batch));
  return plot.svg();
}

std::string memory_svg(const Analysis& a) {
  const Question& q = a.question;
  const double chip = q.on.chip.memory * q.on.tp, weights = memory_bytes(q, 0, 1, 1);
  std::vector<Color> colors{blue, red, green, orange};
  double most = std::pow(10, std::ceil(std::log10(std::clamp(double(a.limits[0].largest_batch) * 4, 64.0, 65536.0))));
  double high = chip;
  for (int64_t context : q.contexts) high = std::max(high, memory_bytes(q, most, double(context), 1));
  Plot plot("Memory against B", {"B, sequences at once", "", 1, most}, {"parameters and state", "B", std::min(weights, chip), high});
  plot.line({{1, chip}, {plot.x_high(), chip}}, ink, true);
  plot.text({1, chip}, ink, fmt::format("{} of {}", with_unit(chip, "B"), q.on.chip.name));
  plot.line({{1, weights}, {plot.x_high(), weights}}, grey);
  plot.text({plot.x_high() / 6, weights}, grey, "parameters alone");
  std::vector<std::pair<int, std::string>> legend;
  for (size_t i = 0; i < q.contexts.size() && i < colors.size(); i++) {
    std::vector<Plot::Point> line;
    for (double b = 1; b <= plot.x_high() * 1.001; b *= std::pow(10, 0.05))
      line.push_back({b, memory_bytes(q, b, double(q.contexts[i]), 1)});
    plot.line(line, colors[i]);
    legend.emplace_back(colors[i], fmt::format("context {}", grouped(q.contexts[i])));
  }
  plot.legend(legend);
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
      "<p>{} parameters, {} in {}{}. The chip reads {} and computes {}: below {} flops a byte it waits for "
      "memory.</p>\n",
      grouped(a.parameters), with_unit(parameter_bytes(s.spec, s.storage), "B"), escaped(s.storage.block_name),
      keeps_keys(s.spec) ? "; keys and values in " + escaped(s.storage.kv_name) : "", about(a, with_unit(c.bandwidth, "B/s")),
      about(a, with_unit(product_rate(c, s.storage.block_product), "FLOP/s")), ratio_text(a));
  out += paragraph(symbol_lines(s.spec)) + paragraph(state_lines(a));
  if (c.busy())
    out += fmt::format("<p><b>It was measured while other programs used {:.0f} % of the processors: its true limits are higher.</b></p>\n",
                       100 * c.others);
  for (const std::string& w : a.warnings) out += "<p><b>Warning:</b> " + escaped(w) + ".</p>\n";
  out += roofline_svg(a) + throughput_svg(a) + memory_svg(a);
  out += "<h2>Generation</h2><p>Memory, latency and tokens/s by the napkin law, then by what the operations of a step move.</p><div>" +
         rows_html(a) + "</div>\n" + paragraph({fmt::format("${:.2f} an hour for a chip. {}", a.question.price, draft_line(a))});
  out += fmt::format(
             "<h2>What fits</h2><p>{:g} tokens/s for every user, the first token within {:g} s when all prompts come at once. The last "
             "columns are those of the largest batch with both.</p><div>",
             a.question.user_tokens_per_s, a.question.deadline_s) +
         limits_html(a) + "</div>\n" + paragraph(limit_lines(a));
  const std::string context = grouped(a.question.contexts[0]);
  if (const Deployment& on = a.question.on; on.tp > 1 || on.replicas > 1)
    out += fmt::format(
        "<p>Batches, memory and steps are those of one group of {} chips, tokens/s those of {} such groups; operations and "
        "the roofline those of one chip.</p>\n",
        on.tp, on.replicas);
  out += fmt::format("<h2>Prefill of one prompt of {} tokens, by operation</h2><div>{}</div>\n", context, operations_html(a, true, 1));
  out += fmt::format("<h2>Generation of batch {}, context {}, by operation</h2><div>{}</div>\n", grouped(shown_batch(a)), context,
                     operations_html(a, false, shown_batch(a)));
  out += flash_section(a);
  return out + "</body></html>\n";
}

}  // namespace mr
