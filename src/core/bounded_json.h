// JSON from strangers: what a text may cost is bounded while it is read, before anything is built of it. One pass; a text of n
// bytes takes O(n log n) at worst (long keys are compared to find duplicates).
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "core/json.h"

namespace mr {

struct JsonLimits {
  int depth = 64;                   // of lists and objects in each other
  size_t keys = 4096;               // of one object: lookups in an OrderedJson are linear
  size_t values = 1 << 20;          // of the whole text, lists and objects among them
  size_t bytes = size_t(64) << 20;  // of memory for the whole document, roughly
};

// Throws an Error that begins with `what` ("the body") for a text that is no JSON or over a limit, and for an object with the same
// key twice, which readers may understand differently. Json and OrderedJson.
// `on_growth` is told now and then what the document will take in memory, before it does; it may throw.
using OnGrowth = std::function<void(size_t bytes)>;
template <class AnyJson>
AnyJson parse_json(std::string_view text, std::string_view what, const JsonLimits& = {}, const OnGrowth& on_growth = {});

}  // namespace mr
