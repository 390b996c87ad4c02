// An analysis written down: for a terminal, as JSON, and as one HTML page that needs nothing else.
#pragma once

#include <string>

#include "analyze/analysis.h"

namespace mr {

std::string text_report(const Analysis&);
Json json_report(const Analysis&);
std::string html_report(const Analysis&);
std::string formats_table();

// The pictures of the page, each a whole SVG document.
std::string roofline_svg(const Analysis&);    // operations as points under the chip's roof
std::string throughput_svg(const Analysis&);  // latency against throughput over B
std::string memory_svg(const Analysis&);      // memory against B, with the chip's line

std::string with_unit(double value, const char* unit);  // 26.87 GB, 8.02 ms, 3.35 TB/s
std::string grouped(int64_t value);                     // 13,015,449,600

// Layers, widths, heads and vocabulary by their letters: those of the first layer that has them.
Json symbols(const ModelSpec&);

}  // namespace mr
