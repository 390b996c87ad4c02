#include "quant/grouped.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>

namespace mr {

namespace {

constexpr int64_t kNestedGroup = 256;

// One stream of a BitMatrix.
struct Stream {
  const std::byte* data;
  int64_t word_stride;  // bytes from one word of 32 bits to the next
  int bits;

  uint8_t byte(int64_t bit) const { return uint8_t(data[(bit >> 5) * word_stride + (bit >> 3 & 3)]); }
  uint32_t operator[](int64_t i) const {
    const int64_t bit = i * bits, shift = bit & 7;
    uint32_t value = uint32_t(byte(bit)) >> shift;
    if (shift + bits > 8) value |= uint32_t(byte((bit | 7) + 1)) << (8 - shift);  // of the next byte, perhaps of the next word
    return value & ((1u << bits) - 1);
  }
};

int64_t stream_bytes(const BitMatrix& m, int64_t length) {
  const int64_t bits = int64_t(m.unit) * 8;
  return (length * m.bits + bits - 1) / bits * m.unit;
}

// Stream s of a tensor of [outputs, inputs].
Stream stream_of(const BitMatrix& m, const std::byte* data, int64_t outputs, int64_t inputs, int64_t s) {
  if (m.words_apart) return {data + 4 * s, 4 * (m.along_outputs ? inputs : outputs), m.bits};
  return {data + s * stream_bytes(m, m.along_outputs ? outputs : inputs), 4, m.bits};
}

int64_t place_of(const BitMatrix& m, int64_t i) { return m.order ? (i & ~int64_t(7)) + m.order[i & 7] : i; }

uint32_t flip_of(const BitMatrix& m) { return m.is_signed ? 1u << (m.bits - 1) : 0; }

uint32_t integer_at(const BitMatrix& m, std::span<const std::byte> data, int64_t outputs, int64_t inputs, int64_t output, int64_t input) {
  const Stream stream = stream_of(m, data.data(), outputs, inputs, m.along_outputs ? input : output);
  return stream[place_of(m, m.along_outputs ? output : input)] ^ flip_of(m);
}

// Inputs [first, first + n) of an output.
void read_codes(const BitMatrix& m, const std::byte* data, int64_t outputs, int64_t inputs, int64_t output, int64_t first, int64_t n,
                uint8_t* code) {
  const auto flip = uint8_t(flip_of(m));
  if (m.along_outputs) {
    const int64_t place = place_of(m, output);
    for (int64_t i = 0; i < n; i++) code[i] = uint8_t(stream_of(m, data, outputs, inputs, first + i)[place] ^ flip);
    return;
  }
  const Stream stream = stream_of(m, data, outputs, inputs, output);
  if (m.bits == 8 && !m.words_apart && !m.order) {
    for (int64_t i = 0; i < n; i++) code[i] = uint8_t(uint8_t(stream.data[first + i]) ^ flip);
  } else if (m.bits == 4 && !m.order && first % 8 == 0 && n % 8 == 0) {
    for (int64_t i = 0; i < n; i += 8) {
      uint32_t word;
      std::memcpy(&word, stream.data + (first + i) / 8 * stream.word_stride, 4);
      for (int j = 0; j < 8; j++) code[i + j] = uint8_t((word >> 4 * j & 15) ^ flip);
    }
  } else {
    for (int64_t i = 0; i < n; i++) code[i] = uint8_t(stream[place_of(m, first + i)] ^ flip);
  }
}

uint32_t bits_at(Grid::Scale type, std::span<const std::byte> data, int64_t i) {
  uint32_t bits = 0;
  const size_t bytes = size_t(size_of(type));
  std::memcpy(&bits, data.data() + size_t(i) * bytes, bytes);
  return bits;
}

float f32_at(std::span<const std::byte> data, int64_t i) { return std::bit_cast<float>(bits_at(Grid::Scale::f32, data, i)); }

// The scale, zero and minimum of a group; `input` is one of its inputs where groups run on.
void put_group(const Grouped& g, const StoredWeight::Part& part, int64_t in, int64_t row, int64_t group, int64_t input, BlockCodes& c) {
  const StoredWeight::Beside& b = part.beside;
  const int64_t scale_row = g.scale_rows == 0 ? 0 : row / g.scale_rows;
  const int64_t index = g.flat              ? (row * in + input) / g.group
                        : g.scales_by_group ? group * part.stored_rows + scale_row
                                            : scale_row * g.groups(in) + group;
  c.scale = bits_at(g.scale, b.scale, index);
  const float scale = g.outer == Grouped::Outer::none ? 0 : scale_of(g.scale, c.scale);
  switch (g.outer) {
    case Grouped::Outer::none:
      break;
    case Grouped::Outer::times:
      c.scale = std::bit_cast<uint32_t>(scale * b.outer);
      break;
    case Grouped::Outer::divides:
      c.scale = std::bit_cast<uint32_t>(scale / b.outer);
      break;
    case Grouped::Outer::nested: {
      const float part_of = f32_at(b.nested_map, c.scale) * f32_at(b.nested_scale, index / kNestedGroup);
      c.scale = std::bit_cast<uint32_t>(part_of + b.outer);
      break;
    }
  }
  if (g.grid.minimum) c.minimum = bits_at(g.scale, b.zero, index);
  if (g.grid.zero) {
    const uint32_t stored = integer_at(g.zeros, b.zero, part.stored_rows, g.groups(in), row, group);
    c.zero = uint16_t((stored + uint32_t(g.zero_added)) & ((1u << g.zeros.bits) - 1));  // 0 minus 1 was stored as the largest code
  }
}

}  // namespace

int64_t BitMatrix::bytes(int64_t outputs, int64_t inputs) const {
  return along_outputs ? inputs * stream_bytes(*this, outputs) : outputs * stream_bytes(*this, inputs);
}

int64_t Grouped::scales(int64_t out, int64_t in) const {
  if (flat) return (out * in + group - 1) / group;
  return (scale_rows == 0 ? 1 : (out + scale_rows - 1) / scale_rows) * groups(in);
}

void decode_grouped(const StoredWeight& w, const StoredWeight::Part& part, int64_t row, int64_t first, int64_t n, float* to) {
  const Grouped& g = *w.codec->grouped;
  const StoredWeight::Beside& b = part.beside;
  BlockCodes c;
  for (int64_t k = first, end = first + n; k < end;) {
    const int64_t place = g.flat ? row * w.in + k : k;  // counts through the groups
    int64_t next = std::min({end, k + g.group - place % g.group, k + BlockCodes::kWeights}), group = k / g.group;
    if (g.any_order) {
      int32_t named;
      std::memcpy(&named, b.group_of.data() + k * 4, 4);
      group = named;
      next = k + 1;
    }
    read_codes(g.codes, b.codes.data(), part.stored_rows, w.in, row, k, next - k, c.code);
    put_group(g, part, w.in, row, group, k, c);
    values_of(g.grid, int(next - k), c, to);
    to += next - k;
    k = next;
  }
}

std::vector<int32_t> inputs_by_group(const StoredWeight& w) {
  const Grouped* g = w.codec->grouped;
  if (!g || !g->any_order) return {};
  std::vector<int32_t> order(size_t(w.in)), numbers(size_t(w.in));
  std::memcpy(numbers.data(), w.parts[0].beside.group_of.data(), size_t(w.in) * 4);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t k) { return numbers[size_t(k)]; });
  for (int64_t k = 0; k < w.in; k++)
    if (numbers[size_t(order[size_t(k)])] != k / g->group) return {};
  return order;
}

void codes_grouped(const StoredWeight& w, const StoredWeight::Part& part, int64_t row, int64_t first, BlockCodes& c) {
  const Grouped& g = *w.codec->grouped;
  if (!w.inputs.empty()) {
    for (int64_t i = 0; i < w.codec->block; i++)
      c.code[i] = uint8_t(integer_at(g.codes, part.beside.codes, part.stored_rows, w.in, row, w.inputs[size_t(first + i)]));
    return put_group(g, part, w.in, row, first / g.group, first, c);
  }
  read_codes(g.codes, part.beside.codes.data(), part.stored_rows, w.in, row, first, w.codec->block, c.code);
  put_group(g, part, w.in, row, first / g.group, first, c);
}

const Codec& grouped_codec(std::string_view name, const Grouped& g, int64_t in) {
  struct Kept {
    std::string name;
    Grouped form;
    int64_t in;
    Codec codec;
  };
  static std::mutex mutex;
  static std::deque<Kept> all;
  Grouped form = g;
  form.grid.group = g.group;
  std::lock_guard lock(mutex);
  for (const Kept& k : all)
    if (k.name == name && k.form == form && k.in == in) return k.codec;
  Kept& k = all.emplace_back(Kept{std::string(name), form, in, {}});
  const bool shared = !g.any_order && !(g.flat && in % g.group);
  const int64_t rows = g.scale_rows == 0 ? 1 << 20 : g.scale_rows;
  const double beside = double(size_of(g.scale)) * (g.grid.minimum ? 2 : 1) + double(g.grid.zero ? g.zeros.bits : 0) / 8;
  k.codec = {k.name, DType::u8, std::gcd(std::gcd<int64_t>(32, g.group), in), 0, shared ? k.form.grid : Grid{}, nullptr};
  k.codec.grouped = &k.form;
  k.codec.grouped_bytes = double(g.codes.bits) / 8 + beside / double(g.group * rows);
  return k.codec;
}

}  // namespace mr
