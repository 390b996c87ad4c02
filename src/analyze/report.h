// An analysis written down: for a terminal, as JSON, and as one HTML page that needs nothing else.
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

// The pictures of the page, each a whole SVG document.
std::string roofline_svg(const Analysis&);    // operations as points under the chip's roof
std::string throughput_svg(const Analysis&);  // latency against throughput over B
std::string memory_svg(const Analysis&);      // memory against B, with the chip's line

std::string with_unit(double value, const char* unit);  // 26.87 GB, 8.02 ms, 3.35 TB/s
std::string grouped(int64_t value);                     // 13,015,449,600
std::string figure(double value, int digits = 4);       // at least so many digits, never an exponent: 0.0391, 3.984, 16,384
std::string speed(double tokens_per_s);                 // 124.7, 1,359
std::string about(std::string figure, bool busy);       // with "~" before it: it was measured on a busy machine, or follows from what was

// Layers, widths, heads and vocabulary by their letters: those of the first layer that has them.
Json symbols(const ModelSpec&);

// What the reports for readers have in common, each a line or a sentence.
std::string ratio_text(const Analysis&);  // the chip's flops a byte: "295", or one for each speed that the model's operations have
std::vector<std::string> symbol_lines(const ModelSpec&);
std::vector<std::string> state_lines(const Analysis&);  // what a token and a sequence keep, and how much less than with MHA
std::vector<std::string> limit_lines(const Analysis&);  // below the table of what fits: who is not served and why, longest contexts
std::string draft_line(const Analysis&);                // empty: there is none
std::vector<std::string> law_lines(const Analysis&, bool prefill, int64_t batch);  // below a table of operations: how far its laws reach
std::vector<std::string> flash_lines(const Analysis&);  // one alone where the memory beside a unit is not known, none where nothing attends
std::vector<std::array<std::string, 4>> flash_rows(const Analysis&);  // name, exact, law, its symbols

}  // namespace mr
