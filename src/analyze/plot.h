// A small plot as SVG. Both axes are logarithmic by default.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mr {

std::string escaped(const std::string&);  // for XML text and attributes

class Plot {
 public:
  // Whole decades; logarithmic with marks at 1, 2 and 5; or linear from 0.
  enum class Scale : uint8_t { decades, fine, linear };
  struct Axis {
    std::string label, unit;
    double low, high;  // > 0
    Scale scale = Scale::decades;
    std::vector<double> marks{};  // set by Plot, which widens the axis to the outer ones
  };
  struct Point {
    double x, y;
  };
  struct Box {
    double x, y, width, height, angle;  // pixels, radians; rotated around (x, y), the middle of its left side
    std::array<Point, 4> corners() const;
  };
  Plot(std::string title, Axis x, Axis y);

  static constexpr int n_colors = 8;  // color 0 is that of text
  void line(const std::vector<Point>&, int color, bool dashed = false);
  void point(Point, int color, const std::string& tooltip);
  void text(Point, int color, const std::string&);
  // Next to a point, or as far from it as necessary to cover no earlier label, point or legend, with a leader line; false: there was
  // no room, and nothing is drawn.
  bool label(Point, int color, const std::string&);
  enum class Corner : uint8_t { top_left, bottom_right };
  void legend(const std::vector<std::pair<int, std::string>>& lines, Corner = Corner::top_left);  // colors and texts; once
  double x_low() const { return x_.low; }
  double x_high() const { return x_.high; }
  std::string svg() const;

 private:
  double px(double x) const;  // pixels; clamped to the border
  double py(double y) const;
  void grid();
  std::string title_;
  Axis x_, y_;
  static bool is_inside(const Box&);
  static Box stroke(Point from, Point to);  // in pixels
  void write(const Box&, int color, const std::string&, bool from_right = false);
  std::string body_;
  std::vector<Box> taken_, lines_;
};

}  // namespace mr
