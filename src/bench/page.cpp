// The plots of bench --url as a self-contained page. x: throughput, y: latency on a logarithmic scale, so the better of two curves
// is lower and reaches further right.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analyze/plot.h"
#include "analyze/report.h"
#include "bench/load.h"

namespace mr {

namespace {

struct Point {
  double x, y;
  std::string load;  // streams or rate; "~16": the machine was busy
};
struct Curve {
  std::string label;
  std::vector<Point> points;
};

// `key`: of the latency in a row, in seconds.
std::vector<Curve> curves_of(const Json& rows, const char* key) {
  std::vector<Curve> curves;
  for (const Json& row : rows) {
    std::string label = row["label"];
    auto curve = std::ranges::find(curves, label, &Curve::label);
    if (curve == curves.end()) curve = curves.insert(curves.end(), {label, {}});
    double x = row["tokens_per_s"], y = row[key]["p50"].get<double>();
    if (x > 0 && y > 0) curve->points.push_back({x, y, about(load_of(row), is_busy(row))});
  }
  return curves;
}

std::string draw(const Json& rows, const std::string& title, const char* key) {
  std::vector<Curve> curves = curves_of(rows, key);
  double right = 0, low = INFINITY, high = 0;
  for (const Curve& c : curves)
    for (const Point& p : c.points) {
      right = std::max(right, p.x);
      low = std::min(low, p.y);
      high = std::max(high, p.y);
    }
  if (high == 0) right = low = high = 1;
  Plot plot(title, {"output tokens per second, all streams together", "", 0, 1.02 * right, Plot::Scale::linear},
            {"time", "s", low, high, Plot::Scale::fine});
  // Color 0 is that of text. Curves rise to the right: the corner below them is free.
  std::vector<std::pair<int, std::string>> legend;
  for (size_t i = 0; i < curves.size(); i++) legend.emplace_back(int(i) + 1, curves[i].label);
  if (std::ranges::any_of(rows, is_busy)) legend.emplace_back(0, "~ measured on a busy machine: it can do better");
  plot.legend(legend, Plot::Corner::bottom_right);
  for (size_t i = 0; i < curves.size(); i++) {
    std::vector<Plot::Point> line;
    for (const Point& p : curves[i].points) line.push_back({p.x, p.y});
    plot.line(line, int(i) + 1);
  }
  for (size_t i = 0; i < curves.size(); i++)
    for (const Point& p : curves[i].points)
      plot.point({p.x, p.y}, int(i) + 1, fmt::format("{}, {}: {:.1f} tok/s, {}", curves[i].label, p.load, p.x, with_unit(p.y, "s")));
  for (size_t i = 0; i < curves.size(); i++)
    for (const Point& p : curves[i].points) plot.label({p.x, p.y}, int(i) + 1, p.load);
  return plot.svg();
}

std::string table(const Json& rows) {
  std::string out =
      "<table><tr><th>server<th>streams<th>requests<th>failed<th>prompt<th>answer<th>output tok/s"
      "<th>TTFT p50 s<th>p90<th>p99<th>per token p50 ms<th>p90<th>p99<th>end to end p50 s<th>p90<th>p99<th>goodput req/s<th>within</tr>";
  for (const Json& r : rows) {
    auto text = [&](const char* key) {
      const Json value = r.value(key, Json());
      return value.is_string() ? escaped(value) : "the file's";
    };
    auto measured = [&](double value) { return about(figure(value, 3), is_busy(r)); };
    out += fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}", text("label"), load_of(r), r["requests"].get<int>(),
                       r["failed"].get<int>(), text("prompt_length"), text("output_length"), about(speed(r["tokens_per_s"]), is_busy(r)));
    for (auto [key, factor] : {std::pair{"ttft_s", 1.0}, {"tpot_s", 1e3}, {"e2e_s", 1.0}})
      for (const char* p : {"p50", "p90", "p99"}) out += "<td>" + measured(factor * r[key][p].get<double>());
    std::string within;
    for (auto [key, what] : {std::pair{"ttft_deadline_s", "TTFT"}, {"tpot_deadline_s", "a token"}})
      if (const double limit = r.value(key, 0.0); limit > 0)
        within += fmt::format("{}{} {}", within.empty() ? "" : ", ", what, with_unit(limit, "s"));
    out += "<td>" + measured(r["goodput_requests_per_s"]) + "<td>" + (within.empty() ? "no deadline" : within) + "</tr>";
  }
  return out + "</table>";
}

constexpr const char* style = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d7dce2; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe4ea; --paper: #15181c; --line: #353b43; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1200px; margin: 2rem auto; padding: 0 1rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; } svg { flex: 1 1 480px; max-width: 100%; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); } th:first-child, td:first-child { text-align: left; }
)";

}  // namespace

std::string ttft_svg(const Json& rows) { return draw(rows, "Waiting for the first token (median)", "ttft_s"); }
std::string tpot_svg(const Json& rows) { return draw(rows, "Time per output token after it (median)", "tpot_s"); }

std::string load_page(const Json& rows) {
  const char* busy = std::ranges::any_of(rows, is_busy)
                         ? "<p><b>Rows with ~ were measured while other programs used the machine: it can do better.</b></p>"
                         : "";
  return fmt::format(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>Latency and throughput"
      "</title><style>{}</style><h1>Latency and throughput</h1><p>A number at a point is how many streams were open, or how many requests "
      "came a second. Lower and further right is better.</p>{}<div class=pictures>{}{}</div><div class=wide>{}</div></html>\n",
      style, busy, ttft_svg(rows), tpot_svg(rows), table(rows));
}

}  // namespace mr
