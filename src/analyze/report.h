// Reports of an analysis: for a terminal, as JSON, and as a self-contained HTML page.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "analyze/analysis.h"

namespace mr {

std::string text_report(const Analysis&);
Json json_report(const Analysis&);
std::string html_report(const Analysis&);
std::string formats_table();

// The plots of the page, each a whole SVG document.
std::string roofline_svg(const Analysis&);    // operations as points under the chip's roof
std::string throughput_svg(const Analysis&);  // latency against throughput over B
std::string memory_svg(const Analysis&);      // memory against B, with the chip's line

std::string with_unit(double value, const char* unit);  // 26.87 GB, 8.02 ms, 3.35 TB/s
std::string grouped(int64_t value);                     // 13,015,449,600
std::string figure(double value, int digits = 4);       // at least this many digits, never an exponent: 0.0391, 3.984, 16,384
std::string speed(double tokens_per_s);                 // 124.7, 1,359
std::string about(std::string figure, bool busy);       // prefixed with "~" if it depends on a measurement on a busy machine
std::string about(const Analysis&, std::string figure);

// Layers, widths, heads and vocabulary by their letters: those of the first layer that has them.
Json symbols(const ModelSpec&);

// Shared by the text and HTML reports, each a line or a sentence.
std::string ratio_text(const Analysis&);  // the chip's flops a byte: "295", or one for each product rate in use
std::vector<std::string> symbol_lines(const ModelSpec&);
std::vector<std::string> state_lines(const Analysis&);  // state of a token and a sequence, and the saving over MHA
std::vector<std::string> limit_lines(const Analysis&);  // below the table of what fits: what does not and why, longest contexts
std::string draft_line(const Analysis&);                // empty: none
std::vector<std::string> law_lines(const Analysis&, bool prefill, int64_t batch);  // below a table of operations: limits of its laws
std::vector<std::string> flash_lines(const Analysis&);                // a single one if the unit memory is unknown, none without attention
std::vector<std::array<std::string, 4>> flash_rows(const Analysis&);  // name, exact, law, its symbols

}  // namespace mr
