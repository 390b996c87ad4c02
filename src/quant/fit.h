// From values to codes: scales and codes of a block that lose little. The inverse of values_of (codec.h).
#pragma once

#include "quant/codec.h"

namespace mr {

// One f16 scale a block: the value of largest magnitude (the first of equals) becomes the grid's lowest, or with a minimum, the range
// of the values becomes that of the codes. Rounds as the `gguf` package does, to the bit.
void fit_range(const Grid&, int weights, const float* x, BlockCodes&);

// The scale of least squared error, of those around that of the largest value.
void fit_scale(const Grid&, int weights, const float* x, BlockCodes&);

// The scale of E8M0 whose largest value reaches the block's; as the `gguf` package.
void fit_exponent(const Grid&, int weights, const float* x, BlockCodes&);

// Two levels: scales of groups (and minima) are integers of `bits` under an f16. Signed, unless there are minima. Least squares for
// each group alone, then for the block's scales with the codes given, then for the integers and codes with those.
void fit_levels(const Grid&, int bits, int weights, const float* x, BlockCodes&);

}  // namespace mr
