// From values, or rows of another codec, to stored rows.
#pragma once

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "quant/codec.h"

namespace mr {

// Row by row over the pool: nothing but the result and a row for each worker is in memory. `values` gives a row's `in` values.
Buffer encode_rows(const Codec& to, int64_t rows, int64_t in, ThreadPool&, FunctionRef<void(int64_t row, float* values)> values);
// Of rows that are stored in another format.
Buffer encode_rows(const Codec& from, const std::byte* stored, const Codec& to, int64_t rows, int64_t in, ThreadPool&);

std::string encodable_names();  // of the codecs that can be written: "f32, f16, …"

}  // namespace mr
