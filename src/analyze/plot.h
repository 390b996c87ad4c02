// A small picture with two logarithmic axes, as SVG.
#pragma once

#include <string>
#include <vector>

namespace mr {

std::string escaped(const std::string&);  // for XML text and attributes

class Plot {
 public:
  struct Axis {
    std::string label, unit;
    double low, high;  // > 0
  };
  struct Point {
    double x, y;
  };
  Plot(std::string title, Axis x, Axis y);  // the axes are widened to whole decades

  void line(const std::vector<Point>&, int color, bool dashed = false);
  void point(Point, int color, const std::string& tooltip);
  void text(Point, int color, const std::string&, int degrees = 0);
  void legend(int color, const std::string&);
  double x_low() const { return x_.low; }
  double x_high() const { return x_.high; }
  std::string svg() const;

 private:
  double px(double x) const;  // pixels; values outside are held at the border
  double py(double y) const;
  void grid();
  std::string title_;
  Axis x_, y_;
  std::string body_;
  int n_legend_ = 0;
};

}  // namespace mr
