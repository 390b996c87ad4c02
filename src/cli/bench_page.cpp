// The picture of bench --url: a self-contained page with inline SVG. Throughput goes to the right, latency upwards on a
// logarithmic scale, so the better of two curves lies lower and reaches further right.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/bench_load.h"

namespace mr {

namespace {

constexpr std::array colours = {"#2a6fdb", "#d9480f", "#2b8a3e", "#862e9c", "#b08900", "#0b7285", "#c2255c", "#495057"};

struct Point {
  double x, y;
  std::string load;  // streams or rate
};
struct Curve {
  std::string label;
  std::vector<Point> points;
};

struct Picture {
  std::string title, unit;
  const char* key;  // of the latency in a row
  double factor;    // seconds to the unit
};

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string load_of(const Json& row) {
  return row["rate"].is_null() ? fmt::format("{}", row["streams"].get<int>()) : fmt::format("{:g}/s", row["rate"].get<double>());
}

std::vector<Curve> curves_of(const Json& rows, const Picture& p) {
  std::vector<Curve> curves;
  for (const Json& row : rows) {
    std::string label = row["label"];
    auto curve = std::ranges::find(curves, label, &Curve::label);
    if (curve == curves.end()) curve = curves.insert(curves.end(), {label, {}});
    double x = row["tokens_per_s"], y = p.factor * row[p.key]["p50"].get<double>();
    if (x > 0 && y > 0) curve->points.push_back({x, y, load_of(row)});
  }
  return curves;
}

// From data to the picture: x linear from 0, y logarithmic over whole steps of 1, 2, 5.
class Axes {
 public:
  static constexpr double width = 560, height = 380, left = 64, right = 24, top = 34, bottom = 46;

  explicit Axes(const std::vector<Curve>& curves) {
    double low = INFINITY, high = 0;
    for (const Curve& c : curves)
      for (const Point& p : c.points) x_max_ = std::max(x_max_, p.x), low = std::min(low, p.y), high = std::max(high, p.y);
    if (high == 0) low = high = 1;
    x_step_ = nice_step(x_max_ / 5);
    x_max_ = x_step_ * std::ceil(x_max_ * 1.02 / x_step_);
    int first = int(std::floor(std::log10(low))) - 1, last = int(std::ceil(std::log10(high))) + 1;
    for (int e = first; e <= last; e++)
      for (double m : {1.0, 2.0, 5.0}) y_ticks_.push_back(m * std::pow(10, e));
    while (y_ticks_.size() > 2 && y_ticks_[1] <= low) y_ticks_.erase(y_ticks_.begin());
    while (y_ticks_.size() > 2 && y_ticks_[y_ticks_.size() - 2] >= high) y_ticks_.pop_back();
  }

  double x(double v) const { return left + (width - left - right) * v / x_max_; }
  double y(double v) const {
    double low = std::log(y_ticks_.front()), high = std::log(y_ticks_.back());
    return height - bottom - (height - top - bottom) * (std::log(v) - low) / (high - low);
  }

  std::string draw(const Picture& p) const {
    std::string out = fmt::format("<text class=title x=\"{}\" y=\"18\">{}</text>", left, p.title);
    for (double t : y_ticks_)
      out += fmt::format(
          "<line class=grid x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
          "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=end>{5:g}</text>",
          left, width - right, y(t), left - 6, y(t) + 4, t);
    for (double t = 0; t <= x_max_ * 1.001; t += x_step_)
      out += fmt::format(
          "<line class=grid x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
          "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=middle>{4:g}</text>",
          x(t), top, height - bottom, height - bottom + 16, t);
    return out + fmt::format(
                     "<text x=\"{}\" y=\"{}\" text-anchor=middle>output tokens per second, all streams together</text>"
                     "<text x=\"14\" y=\"{}\" text-anchor=middle transform=\"rotate(-90 14 {})\">{}</text>",
                     (left + width - right) / 2, height - 10, (top + height - bottom) / 2, (top + height - bottom) / 2, p.unit);
  }

 private:
  static double nice_step(double about) {
    if (about <= 0) return 1;
    double power = std::pow(10, std::floor(std::log10(about)));
    for (double m : {1.0, 2.0, 5.0})
      if (m * power >= about) return m * power;
    return 10 * power;
  }

  double x_max_ = 0, x_step_ = 1;
  std::vector<double> y_ticks_;
};

std::string draw(const Json& rows, const Picture& p) {
  std::vector<Curve> curves = curves_of(rows, p);
  Axes axes(curves);
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=img>{}", Axes::width, Axes::height, axes.draw(p));
  for (size_t i = 0; i < curves.size(); i++) {
    const char* colour = colours[i % colours.size()];
    std::string path, marks;
    for (const Point& q : curves[i].points) {
      double x = axes.x(q.x), y = axes.y(q.y);
      path += fmt::format("{:.1f},{:.1f} ", x, y);
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>{}, {}: {:.1f} tok/s, {:.3g}</title></circle>",
                           x, y, colour, escaped(curves[i].label), q.load, q.x, q.y);
      marks += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>", x + 7, y - 6, colour, q.load);
    }
    out += fmt::format("<polyline points=\"{}\" fill=none stroke=\"{}\" stroke-width=\"2\"/>{}", path, colour, marks);
  }
  return out + "</svg>";
}

std::string legend(const Json& rows, const Picture& p) {
  std::string out = "<p>";
  std::vector<Curve> curves = curves_of(rows, p);
  for (size_t i = 0; i < curves.size(); i++)
    out += fmt::format("<span class=key><b style=\"background:{}\"></b>{}</span> ", colours[i % colours.size()], escaped(curves[i].label));
  return out + "</p>";
}

std::string table(const Json& rows) {
  std::string out =
      "<table><tr><th>server<th>streams<th>requests<th>failed<th>prompt<th>answer<th>output tok/s"
      "<th>TTFT p50 s<th>p90<th>p99<th>per token p50 ms<th>p90<th>p99<th>end to end p50 s<th>p90<th>p99<th>goodput req/s</tr>";
  for (const Json& r : rows) {
    auto text = [&](const char* key) { return escaped(r.value(key, std::string())); };
    out += fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{:.1f}", text("label"), load_of(r), r["requests"].get<int>(),
                       r["failed"].get<int>(), text("prompt_length"), text("output_length"), r["tokens_per_s"].get<double>());
    for (auto [key, factor] : {std::pair{"ttft_s", 1.0}, {"tpot_s", 1e3}, {"e2e_s", 1.0}})
      for (const char* p : {"p50", "p90", "p99"}) out += fmt::format("<td>{:.3g}", factor * r[key][p].get<double>());
    out += fmt::format("<td>{:.2f}</tr>", r["goodput_requests_per_s"].get<double>());
  }
  return out + "</table>";
}

constexpr const char* style = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d7dce2; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe4ea; --paper: #15181c; --line: #353b43; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1200px; margin: 2rem auto; padding: 0 1rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; } svg { flex: 1 1 480px; max-width: 100%; }
svg text { font: 12px system-ui, sans-serif; } svg text:not([fill]) { fill: var(--ink); } svg .title { font-weight: 600; font-size: 14px; }
.grid { stroke: var(--line); } .key { margin-right: 1.2rem; white-space: nowrap; }
.key b { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .4em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); } th:first-child, td:first-child { text-align: left; }
)";

}  // namespace

std::string load_page(const Json& rows) {
  const Picture first{"Waiting for the first token (median)", "seconds", "ttft_s", 1};
  const Picture later{"Time per output token after it (median)", "milliseconds", "tpot_s", 1e3};
  return fmt::format(
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>Latency and throughput"
      "</title><style>{}</style><h1>Latency and throughput</h1><p>A number at a point is how many streams were open, or how many requests "
      "came a second. Lower and further right is better.</p>{}<div class=pictures>{}{}</div><div class=wide>{}</div></html>\n",
      style, legend(rows, first), draw(rows, first), draw(rows, later), table(rows));
}

}  // namespace mr
