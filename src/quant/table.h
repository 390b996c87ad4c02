// The formats that exist, each defined in its own file. A new one is one line here and one in format.cpp.
#pragma once

#include "quant/format.h"

namespace mr {

extern const FormatOps kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1;

}  // namespace mr
