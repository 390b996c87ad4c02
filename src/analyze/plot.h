// A small picture, as SVG. Both axes are logarithmic unless they say otherwise.
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
    std::vector<double> marks{};  // Plot sets them, and widens the axis to the outer ones
  };
  struct Point {
    double x, y;
  };
  Plot(std::string title, Axis x, Axis y);

  static constexpr int n_colors = 8;  // color 0 is that of text
  void line(const std::vector<Point>&, int color, bool dashed = false);
  void point(Point, int color, const std::string& tooltip);
  void text(Point, int color, const std::string&);
  // Beside a point, turned and moved so that it covers no label, point or legend before it; false: there was no room, and nothing is drawn.
  bool label(Point, int color, const std::string&);
  enum class Corner : uint8_t { top_left, bottom_right };
  void legend(int color, const std::string&, Corner = Corner::top_left);
  double x_low() const { return x_.low; }
  double x_high() const { return x_.high; }
  std::string svg() const;

 private:
  double px(double x) const;  // pixels; values outside are held at the border
  double py(double y) const;
  void grid();
  std::string title_;
  Axis x_, y_;
  struct Box {
    double x, y, width, height, angle;  // pixels, radians; turned around (x, y), the middle of its left side
    std::array<Point, 4> corners() const;
  };
  bool is_free(const Box&) const;  // within the picture, and of every box that is taken
  void write(const Box&, int color, const std::string&);
  std::string body_;
  std::vector<Box> taken_;
  int n_legend_ = 0;
};

}  // namespace mr
