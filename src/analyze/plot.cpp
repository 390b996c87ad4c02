#include "analyze/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "analyze/report.h"

namespace mr {

static constexpr double kWidth = 720, kHeight = 440, kLeft = 104, kRight = 24, kTop = 44, kBottom = 56;
static constexpr const char* kColors[Plot::n_colors] = {"#1f2933", "#d1495b", "#2e7da8", "#3a8f5c",
                                                        "#9aa5b1", "#e0902a", "#862e9c", "#0b7285"};

static const char* color_of(int i) { return kColors[i % Plot::n_colors]; }

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

// The least 1, 2 or 5 times a power of ten that is not below v.
static double round_up(double v) {
  double power = std::pow(10, std::floor(std::log10(v)));
  for (double m : {1.0, 2.0, 5.0})
    if (m * power >= v * (1 - 1e-9)) return m * power;
  return 10 * power;
}

static void set_marks(Plot::Axis& a) {
  if (a.scale == Plot::Scale::linear) {
    double step = round_up(a.high / 5);
    for (int i = 0; i == 0 || a.marks.back() < a.high; i++) a.marks.push_back(i * step);
  } else {
    double low = std::pow(10, std::floor(std::log10(a.low) + 1e-9)), high = std::pow(10, std::ceil(std::log10(a.high) - 1e-9));
    if (high <= low) high = low * 10;
    const bool fine = a.scale == Plot::Scale::fine;
    for (double v = low; v <= high * 1.001; v *= 10)
      for (double m : {1.0, 2.0, 5.0})
        if (m == 1 || (fine && v < high * 0.999)) a.marks.push_back(m * v);
    while (fine && a.marks.size() > 2 && a.marks[1] <= a.low) a.marks.erase(a.marks.begin());
    while (fine && a.marks.size() > 2 && a.marks[a.marks.size() - 2] >= a.high) a.marks.pop_back();
  }
  a.low = a.marks.front();
  a.high = a.marks.back();
}

Plot::Plot(std::string title, Axis x, Axis y) : title_(std::move(title)), x_(std::move(x)), y_(std::move(y)) {
  set_marks(x_);
  set_marks(y_);
  grid();
}

static double share(double v, const Plot::Axis& a) {
  if (a.scale == Plot::Scale::linear) return std::clamp(v / a.high, 0.0, 1.0);
  return std::clamp((std::log10(std::max(v, a.low)) - std::log10(a.low)) / (std::log10(a.high) - std::log10(a.low)), 0.0, 1.0);
}
double Plot::px(double x) const { return kLeft + share(x, x_) * (kWidth - kLeft - kRight); }
double Plot::py(double y) const { return kHeight - kBottom - share(y, y_) * (kHeight - kTop - kBottom); }

// "10 GB", "100 ms", "1".
static std::string tick(double value, const Plot::Axis& a) {
  if (a.unit.empty() && (value < 1 || a.scale == Plot::Scale::linear)) return fmt::format("{:g}", value);
  std::string text = with_unit(value * 1.0000001, a.unit.c_str());
  size_t dot = text.find('.'), space = text.find(' ');
  text = text.substr(0, dot) + text.substr(space);
  return text.ends_with(' ') ? text.substr(0, text.size() - 1) : text;
}

void Plot::grid() {
  for (double v : x_.marks) {
    body_ += fmt::format(R"(<line class="g" x1="{0:.1f}" y1="{1}" x2="{0:.1f}" y2="{2}"/>)", px(v), kTop, kHeight - kBottom);
    body_ += fmt::format(R"(<text class="t" x="{:.1f}" y="{}" text-anchor="middle">{}</text>)", px(v), kHeight - kBottom + 18,
                         x_.marks.size() > 10 ? "" : escaped(tick(v, x_)));
  }
  for (double v : y_.marks) {
    body_ += fmt::format(R"(<line class="g" x1="{1}" y1="{0:.1f}" x2="{2}" y2="{0:.1f}"/>)", py(v), kLeft, kWidth - kRight);
    body_ += fmt::format(R"(<text class="t" x="{}" y="{:.1f}" text-anchor="end">{}</text>)", kLeft - 8, py(v) + 4, escaped(tick(v, y_)));
  }
  body_ += "\n";
}

void Plot::line(const std::vector<Point>& points, int color, bool dashed) {
  std::string path;
  for (Point p : points) path += fmt::format("{:.1f},{:.1f} ", px(p.x), py(p.y));
  body_ += fmt::format(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"{}/>)", path, color_of(color),
                       dashed ? R"( stroke-dasharray="6 4")" : "");
  body_ += "\n";
  for (size_t i = 1; i < points.size(); i++)
    lines_.push_back(stroke({px(points[i - 1].x), py(points[i - 1].y)}, {px(points[i].x), py(points[i].y)}));
}

void Plot::point(Point p, int color, const std::string& tooltip) {
  body_ += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4.5" fill="{}"><title>{}</title></circle>)", px(p.x), py(p.y), color_of(color),
                       escaped(tooltip));
  body_ += "\n";
  taken_.push_back({px(p.x) - 4, py(p.y), 8, 8, 0});
}

// In a font of 12 pixels, on average; no letter of a label is much wider.
static double width_of(const std::string& text) {
  return 6.6 * double(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));  // characters, not bytes
}

std::array<Plot::Point, 4> Plot::Box::corners() const {
  const double c = std::cos(angle), s = std::sin(angle), h = height / 2;
  auto at = [&](double along, double across) { return Point{x + along * c - across * s, y + along * s + across * c}; };
  return {at(0, -h), at(width, -h), at(width, h), at(0, h)};
}

// Separating axis: two rectangles are apart if a line along a side of one has all corners of the other beyond it.
static bool are_apart(const std::array<Plot::Point, 4>& a, const std::array<Plot::Point, 4>& b) {
  for (const auto& box : {a, b})
    for (size_t i = 0; i < 2; i++) {
      const double nx = box[i + 1].x - box[i].x, ny = box[i + 1].y - box[i].y;
      auto range = [&](const std::array<Plot::Point, 4>& corners) {
        double low = 1e300, high = -1e300;
        for (Plot::Point p : corners) {
          low = std::min(low, p.x * nx + p.y * ny);
          high = std::max(high, p.x * nx + p.y * ny);
        }
        return std::pair(low, high);
      };
      auto [a_low, a_high] = range(a);
      auto [b_low, b_high] = range(b);
      if (a_high < b_low || b_high < a_low) return true;
    }
  return false;
}

Plot::Box Plot::stroke(Point from, Point to) {
  const double dx = to.x - from.x, dy = to.y - from.y;
  return {from.x, from.y, std::hypot(dx, dy), 2, std::atan2(dy, dx)};
}

static bool is_apart_from_all(const Plot::Box& box, const std::vector<Plot::Box>& others) {
  const auto corners = box.corners();
  return std::ranges::all_of(others, [&](const Plot::Box& other) { return are_apart(corners, other.corners()); });
}

bool Plot::is_inside(const Box& box) {
  return std::ranges::all_of(box.corners(),
                             [](Point p) { return p.x >= kLeft && p.x <= kWidth - 2 && p.y >= kTop && p.y <= kHeight - kBottom; });
}

void Plot::write(const Box& box, int color, const std::string& text, bool from_right) {
  body_ += fmt::format(R"(<text class="l" x="{:.1f}" y="{:.1f}" fill="{}"{}>{}</text>)", box.x + (from_right ? box.width : 0), box.y + 4,
                       color_of(color), from_right ? R"( text-anchor="end")" : "", escaped(text));
  body_ += "\n";
  taken_.push_back(box);
}

void Plot::text(Point p, int color, const std::string& text) { write({px(p.x) + 7, py(p.y) - 11, width_of(text), 13, 0}, color, text); }

// Tries positions around the point first, then further and further away, below before above, with a leader line.
bool Plot::label(Point p, int color, const std::string& text) {
  const double x = px(p.x), y = py(p.y), width = width_of(text);
  struct Place {
    Box box;
    bool leads;
  };
  std::vector<Place> places;
  for (auto [dx, dy] : {Point{9, 0}, {6, 12}, {-9 - width, 0}, {6, -12}, {-6 - width, 12}, {-6 - width, -12}})
    places.push_back({{x + dx, y + dy, width, 13, 0}, false});
  for (double down = 16; down < kHeight; down += 16)
    for (double way : {down, -down})
      for (double aside : {12.0, -12.0 - width, 40.0, -40.0 - width, -width / 2})
        places.push_back({{x + aside, y + way, width, 13, 0}, true});
  for (const auto& lines : {lines_, {}})  // a label that crosses a line is better than none
    for (const Place& place : places) {
      if (!is_inside(place.box) || !is_apart_from_all(place.box, taken_) || !is_apart_from_all(place.box, lines)) continue;
      if (place.leads) {
        const double end = std::clamp(x, place.box.x - 2, place.box.x + width + 2);
        const double away = end == x ? 8 : 0;  // the leader ends at a side of the label, or at its top or bottom
        const Point to{end, place.box.y - (place.box.y > y ? away : -away)};
        const double length = std::hypot(to.x - x, to.y - y), begin = 6.5 / length;
        const Box leader = stroke({x + begin * (to.x - x), y + begin * (to.y - y)}, to);
        if (!is_apart_from_all(leader, taken_)) continue;
        body_ += fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="0.8"/>)", leader.x,
                             leader.y, to.x, to.y, color_of(color));
        taken_.push_back(leader);
      }
      write(place.box, color, text, place.box.x + width < x);
      return true;
    }
  return false;
}

void Plot::legend(const std::vector<std::pair<int, std::string>>& lines, Corner corner) {
  double width = 0;
  for (auto& [color, text] : lines) width = std::max(width, 16 + width_of(text));
  const bool top = corner == Corner::top_left;
  const double x = top ? kLeft + 14 : kWidth - kRight - 10 - width;
  double y = top ? kTop + 18 : kHeight - kBottom + 4 - 18 * double(lines.size());
  for (auto& [color, text] : lines) {
    body_ += fmt::format(R"(<rect x="{:.1f}" y="{}" width="10" height="10" fill="{}"/><text class="l" x="{:.1f}" y="{}">{}</text>)", x,
                         y - 9, color_of(color), x + 16, y, escaped(text));
    body_ += "\n";
    taken_.push_back({x, y - 4, 16 + width_of(text), 14, 0});
    y += 18;
  }
}

std::string Plot::svg() const {
  std::string out =
      fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">)",
                  kWidth, kHeight, escaped(title_));
  out +=
      "<style>text{font-family:system-ui,sans-serif}.t{font-size:12px;fill:#52606d}.l{font-size:12px}"
      ".h{font-size:15px;font-weight:600;fill:#1f2933}.g{stroke:#e4e7eb}</style>\n";
  out += fmt::format(R"(<rect width="{}" height="{}" fill="#ffffff"/><text class="h" x="{}" y="24">{}</text>)", kWidth, kHeight, kLeft,
                     escaped(title_));
  out += "\n" + body_;
  out += fmt::format(R"(<text class="t" x="{}" y="{}" text-anchor="middle">{}</text>)", (kLeft + kWidth - kRight) / 2, kHeight - 14,
                     escaped(x_.label));
  out += fmt::format(R"_(<text class="t" transform="translate(16 {}) rotate(-90)" text-anchor="middle">{}</text>)_",
                     (kTop + kHeight - kBottom) / 2, escaped(y_.label));
  return out + "\n</svg>\n";
}

}  // namespace mr
