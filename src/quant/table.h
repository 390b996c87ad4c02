// The codecs that exist, each defined in its own file. A new one is one line here and one in codec.cpp.
#pragma once

#include "quant/codec.h"

namespace mr {

extern const Codec kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1;

}  // namespace mr
