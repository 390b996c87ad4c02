// Parsing untrusted JSON: its cost is bounded during parsing, before values are built. One pass; a text of n bytes takes O(n log n) at
// worst (long keys are compared to find duplicates).
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "core/json.h"

namespace mr {

struct JsonLimits {
  int depth = 64;                   // of nested lists and objects
  size_t keys = 4096;               // of one object: lookups in an OrderedJson are linear
  size_t values = 1 << 20;          // of the whole text, lists and objects included
  size_t bytes = size_t(64) << 20;  // of memory for the whole document, roughly
};

// Throws an Error that begins with `what` ("the body") for a text that is not JSON or over a limit, and for duplicate keys, which
// parsers treat differently. For Json and OrderedJson.
// `on_growth` is called now and then with the memory that the document is about to take; it may throw.
using OnGrowth = std::function<void(size_t bytes)>;
template <class AnyJson>
AnyJson parse_json(std::string_view text, std::string_view what, const JsonLimits& = {}, const OnGrowth& on_growth = {});

}  // namespace mr
