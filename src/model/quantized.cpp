#include "model/quantized.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/bounded_json.h"
#include "core/error.h"
#include "quant/value_tables.h"

namespace mr {

using Format = WeightScheme::Format;
using Shape = std::vector<int64_t>;

namespace {

constexpr uint8_t kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};   // of 8 columns in a word: nibble i holds column 0, 2, 4, 6, 1, 3, 5, 7
constexpr uint8_t kHighFirst[8] = {1, 0, 3, 2, 5, 4, 7, 6};  // of two nibbles in a byte

bool is_plain(const StoredTensor& t) { return t.format == "f32" || t.format == "f16" || t.format == "bf16"; }

std::optional<Grid::Scale> scale_type(const StoredTensor& t) {
  if (t.format == "f32") return Grid::Scale::f32;
  if (t.format == "f16") return Grid::Scale::f16;
  if (t.format == "bf16") return Grid::Scale::bf16;
  if (t.format == "f8_e4m3") return Grid::Scale::e4m3;
  if (t.format == "f8_e8m0") return Grid::Scale::e8m0;
  return std::nullopt;
}

float value_at(const StoredTensor& t, Grid::Scale type, size_t i) {
  uint32_t bits = 0;
  const size_t bytes = size_t(size_of(type));
  std::memcpy(&bits, t.bytes.data() + i * bytes, bytes);
  return scale_of(type, bits);
}

bool is_one_number(const StoredTensor& t) {
  const auto type = scale_type(t);
  return type && t.bytes.size() == size_t(size_of(*type));
}

class Finder {
 public:
  Finder(const Checkpoint& files, const std::string& module, const WeightScheme& scheme, int64_t out, int64_t in, bool check_values)
      : files_(files),
        module_(module),
        s_(scheme),
        out_(out),
        in_(in),
        check_values_(check_values),
        group_(scheme.group ? scheme.group : in) {
    int64_t bits;  // the largest product of sizes here
    check(out > 0 && in > 0 && !__builtin_mul_overflow(out, in, &bits) && !__builtin_mul_overflow(bits, 32, &bits),
          "'{}' has {} of [{}, {}], which is no size", files.path().native(), module, out, in);
    found_.activations = scheme.activations;
  }

  QuantizedTensors find();

 private:
  const StoredTensor* find(const char* suffix) {
    const StoredTensor* t = files_.find(module_ + suffix);
    if (t && std::ranges::count(found_.tensors, t) == 0) found_.tensors.push_back(t);
    return t;
  }
  const StoredTensor& get(const char* suffix) {
    const StoredTensor* t = find(suffix);
    check(t, "'{}' has {} in {}, but no tensor '{}{}'", files_.path().native(), module_, name_of_format(), module_, suffix);
    return *t;
  }
  const StoredTensor& get(const char* suffix, const Shape& shape, std::initializer_list<std::string_view> formats = {}) {
    const StoredTensor& t = get(suffix);
    expect(t, t.shape == shape, shape_string(shape));
    if (formats.size() > 0)
      check(std::ranges::count(formats, std::string_view(t.format)), "tensor {} of '{}' is stored as {}, but {} is needed", t.name, file(t),
            t.format, *formats.begin());
    return t;
  }
  std::string file(const StoredTensor& t) const { return files_.file_of(t).native(); }
  void expect(const StoredTensor& t, bool fits, const std::string& wanted) const {
    check(fits, "tensor {} of '{}' has shape {}, but a [{}, {}] weight of {} needs {}", t.name, file(t), shape_string(t.shape), out_, in_,
          name_of_format(), wanted);
  }
  std::string name_of_format() const;
  int64_t groups() const { return (in_ + group_ - 1) / group_; }
  int64_t words(int64_t n) const { return (n * s_.bits + 31) / 32; }

  void whole_groups() const;
  void scales(const StoredTensor&, std::initializer_list<Grid::Scale> possible = {Grid::Scale::f16, Grid::Scale::bf16, Grid::Scale::f32});
  void check_scales(const StoredTensor&, Grid::Scale) const;
  float number(const StoredTensor&);  // a tensor of one value
  void integers() { g_.grid = {.bits = s_.bits, .offset = 1 << (s_.bits - 1), .scale = g_.scale}; }
  void group_numbers();
  void gptq_convention();
  void input_scale();

  void gptq();
  void awq();
  void packed();
  void bytes();
  void floats();
  void e2m1();
  void mxfp8();
  void mlx();
  void bnb_int8();
  void bnb_4bit();

  const Checkpoint& files_;
  const std::string& module_;
  const WeightScheme& s_;
  int64_t out_, in_;
  bool check_values_;
  int64_t group_;
  Grouped g_;
  QuantizedTensors found_;
};

std::string Finder::name_of_format() const {
  const std::string groups = s_.group && s_.group < in_ ? fmt::format(" g{}", s_.group) : "";
  switch (s_.format) {
    case Format::gptq:
      return fmt::format("gptq{}{}", s_.bits, groups);
    case Format::awq:
      return fmt::format("awq{}{}", s_.bits, groups);
    case Format::packed:
    case Format::integers:
      return fmt::format("int{}{}", s_.bits, groups);
    case Format::floats:
      return s_.group ? fmt::format("fp8 {}x{}", s_.block_rows, s_.group) : "fp8";
    case Format::mxfp4:
      return "mxfp4";
    case Format::nvfp4:
      return "nvfp4";
    case Format::mxfp8:
      return "mxfp8";
    case Format::mlx:
      return fmt::format("mlx{}{}", s_.bits, groups);
    case Format::bnb_int8:
      return "bnb int8";
    case Format::bnb_4bit:
      return "bnb 4-bit";
  }
  return "";
}

void Finder::whole_groups() const {
  check(in_ % group_ == 0, "'{}' has {} in groups of {} inputs, which do not divide its {}", files_.path().native(), module_, group_, in_);
}

void Finder::check_scales(const StoredTensor& t, Grid::Scale type) const {
  if (!check_values_) return;
  const size_t n = t.bytes.size() / size_t(size_of(type));
  for (size_t i = 0; i < n; i++) {
    const float scale = value_at(t, type, i);
    check(std::isfinite(scale), "tensor {} of '{}' has the scale {} at {}", t.name, file(t), scale, i);
  }
}

void Finder::scales(const StoredTensor& t, std::initializer_list<Grid::Scale> possible) {
  const auto type = scale_type(t);
  check(type && std::ranges::count(possible, *type), "tensor {} of '{}' holds scales as {}, which no {} has", t.name, file(t), t.format,
        name_of_format());
  check_scales(t, *type);
  g_.scale = *type;
  found_.beside.scale = t.bytes;
}

float Finder::number(const StoredTensor& t) {
  const auto type = scale_type(t);
  check(is_one_number(t), "tensor {} of '{}' should be one number, but is {} of {}", t.name, file(t), shape_string(t.shape), t.format);
  const float value = value_at(t, *type, 0);
  check(std::isfinite(value) && value != 0, "tensor {} of '{}' is {}", t.name, file(t), value);
  return value;
}

// GPTQ's g_idx, and compressed-tensors' weight_g_idx.
void Finder::group_numbers() {
  const char* suffix = s_.format == Format::gptq ? ".g_idx" : ".weight_g_idx";
  if (!find(suffix)) return;
  const StoredTensor& t = get(suffix, {in_}, {"i32"});
  bool in_order = true;
  for (int64_t k = 0; k < in_; k++) {
    int32_t group;
    std::memcpy(&group, t.bytes.data() + k * 4, 4);
    check(group >= 0 && group < groups(), "tensor {} of '{}' puts input {} into group {}, but there are {} groups", t.name, file(t), k,
          group, groups());
    in_order &= group == k / group_;
  }
  if (in_order) return;
  g_.any_order = true;
  found_.beside.group_of = t.bytes;
}

// Zeros are stored minus 1, or as they are; some files of the second kind do not say so. A symmetric weight shows it: its zeros are all
// 2^(bits - 1).
void Finder::gptq_convention() {
  g_.zero_added = s_.zeros_as_they_are ? 0 : 1;
  if (!s_.symmetric || found_.beside.zero.empty()) return;
  const uint32_t first = uint32_t(found_.beside.zero[0]) & ((1u << s_.bits) - 1), middle = 1u << (s_.bits - 1);
  if (first == middle) g_.zero_added = 0;
  if (first == middle - 1) g_.zero_added = 1;
}

void Finder::gptq() {
  whole_groups();
  check(in_ * s_.bits % 32 == 0 && out_ * s_.bits % 32 == 0, "'{}' has {} of [{}, {}], which does not divide into words of {} bits",
        files_.path().native(), module_, out_, in_, s_.bits);
  found_.beside.codes = get(".qweight", {words(in_), out_}, {"i32", "u32"}).bytes;
  scales(get(".scales", {groups(), out_}));
  found_.beside.zero = get(".qzeros", {groups(), words(out_)}, {"i32", "u32"}).bytes;
  g_.codes = {.bits = s_.bits, .words_apart = true};
  g_.zeros = {.bits = s_.bits, .along_outputs = true};
  g_.scales_by_group = true;
  g_.grid = {.bits = s_.bits, .scale = g_.scale, .zero = true};
  gptq_convention();
  group_numbers();
}

void Finder::awq() {
  whole_groups();
  check(out_ % 8 == 0, "'{}' has {} of {} outputs, but AWQ packs 8 at a time", files_.path().native(), module_, out_);
  found_.beside.codes = get(".qweight", {in_, words(out_)}, {"i32", "u32"}).bytes;
  scales(get(".scales", {groups(), out_}));
  g_.codes = {.bits = s_.bits, .along_outputs = true, .order = kAwqPlace};
  g_.scales_by_group = true;
  integers();
  if (!s_.zeros && !files_.find(module_ + ".qzeros")) return;
  found_.beside.zero = get(".qzeros", {groups(), words(out_)}, {"i32", "u32"}).bytes;
  g_.zeros = g_.codes;
  g_.grid.offset = 0;
  g_.grid.zero = true;
}

void Finder::packed() {
  whole_groups();
  found_.beside.codes = get(".weight_packed", {out_, words(in_)}, {"i32"}).bytes;
  if (const StoredTensor* t = find(".weight_shape")) {
    check((t->format == "i64" || t->format == "i32") && t->shape == Shape{2}, "tensor {} of '{}' is not two sizes", t->name, file(*t));
    int64_t shape[2] = {};
    const size_t size = t->format == "i64" ? 8 : 4;
    for (size_t i = 0; i < 2; i++) std::memcpy(&shape[i], t->bytes.data() + i * size, size);
    check(shape[0] == out_ && shape[1] == in_, "tensor {} of '{}' says [{}, {}], but the configuration asks for [{}, {}]", t->name,
          file(*t), shape[0], shape[1], out_, in_);
  }
  scales(get(".weight_scale", {out_, groups()}));
  g_.codes = {.bits = s_.bits};
  integers();
  if (s_.zeros) {
    found_.beside.zero = get(".weight_zero_point", {words(out_), groups()}, {"i32"}).bytes;
    g_.zeros = {.bits = s_.bits, .along_outputs = true, .words_apart = true};
    g_.grid.offset = 0;
    g_.grid.zero = true;
  }
  group_numbers();
}

// Signed bytes.
void Finder::bytes() {
  whole_groups();
  found_.beside.codes = get(".weight", {out_, in_}, {"i8"}).bytes;
  const StoredTensor& scale = get(".weight_scale");
  const bool one = s_.block_rows == 0;
  expect(scale, one ? is_one_number(scale) : scale.shape == Shape{out_, groups()} || (groups() == 1 && scale.shape == Shape{out_}),
         one ? "[1]" : shape_string(Shape{out_, groups()}));
  scales(scale);
  g_.scale_rows = one ? 0 : 1;
  g_.codes = {.bits = 8, .unit = 1, .is_signed = true};
  g_.grid = {.bits = 8, .offset = 128, .scale = g_.scale};
  if (s_.zeros) {
    const StoredTensor& zero = get(".weight_zero_point", scale.shape, {"i8"});
    check(!one, "tensor {} of '{}' is a zero point for a whole tensor, which does not run here", zero.name, file(zero));
    for (size_t i = 0; check_values_ && i < zero.bytes.size(); i++) {
      const int value = int8_t(zero.bytes[i]), most = 1 << (s_.bits - 1);
      check(value >= -most && value < most, "tensor {} of '{}' has the zero point {} at {}, but {} bits reach from {} to {}", zero.name,
            file(zero), value, i, s_.bits, -most, most - 1);
    }
    found_.beside.zero = zero.bytes;
    g_.zeros = {.bits = 8, .unit = 1, .is_signed = true};
    g_.grid.offset = 0;
    g_.grid.zero = true;
  }
  input_scale();
}

// A stored scale is the activations' where the configuration says so; beside dynamic ones it is left over.
void Finder::input_scale() {
  if (!found_.activations || !s_.stored_input_scale) return;
  const StoredTensor& t = get(".input_scale");
  found_.activations.scale = number(t);
  check(found_.activations.scale > 0, "tensor {} of '{}' is {}", t.name, file(t), found_.activations.scale);
}

void Finder::floats() {
  const StoredTensor& codes = get(".weight", {out_, in_}, {"f8_e4m3", "f8_e5m2"});
  found_.beside.codes = codes.bytes;
  const StoredTensor* inverse = find(".weight_scale_inv");  // multiplies, too
  const StoredTensor& scale = inverse ? *inverse : get(".weight_scale");
  if (is_one_number(scale)) {
    g_.scale_rows = 0;
    group_ = in_;
  } else if (scale.shape == Shape{out_, 1} || scale.shape == Shape{out_}) {
    group_ = in_;
  } else {
    g_.scale_rows = std::max<int64_t>(s_.block_rows, 1);
    const Shape blocks{(out_ + g_.scale_rows - 1) / g_.scale_rows, groups()};
    expect(scale, scale.shape == blocks, "[1], " + shape_string(Shape{out_, 1}) + " or " + shape_string(blocks));
  }
  scales(scale, {Grid::Scale::f32, Grid::Scale::bf16, Grid::Scale::f16, Grid::Scale::e8m0});
  g_.codes = {.bits = 8, .unit = 1};
  g_.grid = {.bits = 8, .scale = g_.scale, .values = codes.format == "f8_e4m3" ? e4m3_values() : e5m2_values()};
  input_scale();
}

// E2M1, two to a byte, the first low: mxfp4 and nvfp4.
void Finder::e2m1() {
  whole_groups();
  const char* suffix = files_.find(module_ + ".weight_packed") ? ".weight_packed" : ".weight";
  check(in_ % 2 == 0, "'{}' has {} of {} inputs, but two are packed in a byte", files_.path().native(), module_, in_);
  found_.beside.codes = get(suffix, {out_, in_ / 2}, {"u8", "i8"}).bytes;
  g_.codes = {.bits = 4, .unit = 1};
  const StoredTensor& scale = get(".weight_scale", {out_, groups()});
  g_.grid = {.bits = 4, .table = kE2m1Doubled};
  if (s_.format == Format::mxfp4) {
    check(scale.format == "u8" || scale.format == "f8_e8m0", "tensor {} of '{}' holds scales as {}, which no mxfp4 has", scale.name,
          file(scale), scale.format);
    check_scales(scale, Grid::Scale::e8m0);
    found_.beside.scale = scale.bytes;
    g_.scale = g_.grid.scale = Grid::Scale::e8m0_half;
    return;
  }
  scales(scale, {Grid::Scale::e4m3});
  g_.grid.table = nullptr;
  g_.grid.values = kE2m1;
  g_.grid.scale = Grid::Scale::f32;
  g_.outer = s_.outer_divides ? Grouped::Outer::divides : Grouped::Outer::times;
  const StoredTensor& outer = get(s_.outer_divides ? ".weight_global_scale" : ".weight_scale_2");
  found_.beside.outer = number(outer);
  check(std::isfinite(1 / found_.beside.outer), "tensor {} of '{}' is {}", outer.name, file(outer), found_.beside.outer);
}

void Finder::mxfp8() {
  whole_groups();
  found_.beside.codes = get(".weight", {out_, in_}, {"f8_e4m3"}).bytes;
  const StoredTensor& scale = get(".weight_scale", {out_, groups()}, {"u8", "f8_e8m0"});
  check_scales(scale, Grid::Scale::e8m0);
  found_.beside.scale = scale.bytes;
  g_.scale = Grid::Scale::e8m0;
  g_.codes = {.bits = 8, .unit = 1};
  g_.grid = {.bits = 8, .scale = g_.scale, .values = e4m3_values()};
}

void Finder::mlx() {
  whole_groups();
  found_.beside.codes = get(".weight", {out_, words(in_)}, {"u32"}).bytes;
  scales(get(".scales", {out_, groups()}));
  const StoredTensor& minimum = get(".biases", {out_, groups()});
  check(scale_type(minimum) == g_.scale, "tensor {} of '{}' is stored as {}, but its scales are not", minimum.name, file(minimum),
        minimum.format);
  check_scales(minimum, g_.scale);
  found_.beside.zero = minimum.bytes;
  g_.codes = {.bits = s_.bits};
  g_.grid = {.bits = s_.bits, .scale = g_.scale, .minimum = true};
}

void Finder::bnb_int8() {
  found_.beside.codes = get(".weight", {out_, in_}, {"i8"}).bytes;
  scales(get(".SCB", {out_}), {Grid::Scale::f32});
  if (const StoredTensor* t = find(".weight_format"))  // 0: rows
    check(t->bytes.size() == 1 && t->bytes[0] == std::byte(0),
          "tensor {} of '{}' names an order of rows for a GPU, which does not run here", t->name, file(*t));
  g_.codes = {.bits = 8, .unit = 1, .is_signed = true};
  g_.grid = {.bits = 8, .offset = 128, .scale = g_.scale};
  found_.factor = 7.874015718698502e-3f;  // 1 / 127, as bitsandbytes has it
}

void Finder::bnb_4bit() {
  const StoredTensor& codes = get(".weight");
  expect(codes, codes.format == "u8" && in_ % 2 == 0 && codes.bytes.size() == size_t(out_ * in_ / 2),
         shape_string(Shape{out_ * in_ / 2, 1}) + " bytes");
  found_.beside.codes = codes.bytes;
  const StoredTensor* state = find(".weight.quant_state.bitsandbytes__nf4");
  const bool nf4 = state != nullptr;
  if (!state) state = &get(".weight.quant_state.bitsandbytes__fp4");
  const std::string where = sentence("tensor {} of '{}'", state->name, file(*state));
  const Json json = parse_json<Json>({reinterpret_cast<const char*>(state->bytes.data()), state->bytes.size()}, where, {.depth = 8});
  check(json.is_object(), "{} is not a JSON object", where);
  auto size = [&](const char* name) {
    auto found = json.find(name);
    return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  };
  const int64_t block = size("blocksize");
  check(block >= 2 && block <= 1 << 16 && block % 2 == 0, "{} has blocks of {} weights", where, block);
  check(json.value("shape", Json()) == Json(Shape{out_, in_}), "{} is of another shape than the configuration's [{}, {}]", where, out_,
        in_);
  g_.group = group_ = block;
  g_.flat = true;
  g_.codes = {.bits = 4, .unit = 1, .order = kHighFirst};
  g_.grid = {.bits = 4, .scale = Grid::Scale::f32, .values = nf4 ? kNf4 : kBnbFp4};
  const StoredTensor& map = get(".weight.quant_map", {16}, {"f32"});
  for (size_t i = 0; i < 16; i++)
    check(value_at(map, Grid::Scale::f32, i) == g_.grid.values[i], "tensor {} of '{}' is not the table of its format", map.name, file(map));
  const int64_t blocks = (out_ * in_ + block - 1) / block;
  const StoredTensor& scale = get(".weight.absmax", {blocks});
  if (scale.format != "u8") return scales(scale, {Grid::Scale::f32});
  check(size("nested_blocksize") == 256, "{} has nested blocks of {} scales: 256 run here", where, size("nested_blocksize"));
  found_.beside.scale = scale.bytes;
  g_.scale = Grid::Scale::e8m0;  // a byte; nested scales only number the entries of a map
  g_.outer = Grouped::Outer::nested;
  const StoredTensor& nested = get(".weight.nested_absmax", {(blocks + 255) / 256}, {"f32"});
  check_scales(nested, Grid::Scale::f32);
  found_.beside.nested_scale = nested.bytes;
  const StoredTensor& nested_map = get(".weight.nested_quant_map", {256}, {"f32"});
  check_scales(nested_map, Grid::Scale::f32);
  found_.beside.nested_map = nested_map.bytes;
  auto offset = json.find("nested_offset");
  check(offset != json.end() && offset->is_number(), "{} has no nested_offset", where);
  found_.beside.outer = offset->get<float>();
  check(std::isfinite(found_.beside.outer), "{} has the nested_offset {}", where, offset->dump());
}

QuantizedTensors Finder::find() {
  switch (s_.format) {
    case Format::gptq:
      gptq();
      break;
    case Format::awq:
      awq();
      break;
    case Format::packed:
      packed();
      break;
    case Format::integers:
      bytes();
      break;
    case Format::floats:
      floats();
      break;
    case Format::mxfp4:
    case Format::nvfp4:
      e2m1();
      break;
    case Format::mxfp8:
      mxfp8();
      break;
    case Format::mlx:
      mlx();
      break;
    case Format::bnb_int8:
      bnb_int8();
      break;
    case Format::bnb_4bit:
      bnb_4bit();
      break;
  }
  g_.group = group_;
  g_.rounded_inputs = bool(found_.activations);
  found_.codec = &grouped_codec(name_of_format(), g_, in_);
  return std::move(found_);
}

}  // namespace

std::optional<QuantizedTensors> find_quantized(const Checkpoint& files, const Quantization& quantization, const std::string& module,
                                               int64_t out, int64_t in, bool check_values) {
  if (!has_quantized(files, quantization, module)) return std::nullopt;
  const WeightScheme scheme = quantization.of(module);
  return Finder(files, module, scheme, out, in, check_values).find();
}

float factor_at(const StoredTensor& scale, const StoredTensor& weight, size_t part) {
  const size_t i = scale.bytes.size() > 4 ? part : 0;
  check(scale.format == "f32" && scale.bytes.size() >= (i + 1) * 4, "tensor {} has shape {} of {}, but one f32 is needed for each of {}",
        scale.name, shape_string(scale.shape), scale.format, weight.name);
  const float value = value_at(scale, Grid::Scale::f32, i);
  check(std::isfinite(value), "tensor {} has the scale {}", scale.name, value);
  return value;
}

bool has_quantized(const Checkpoint& files, const Quantization& quantization, const std::string& module) {
  if (quantization.none()) return false;
  for (const char* suffix : {".qweight", ".weight_packed", ".weight"})
    if (const StoredTensor* t = files.find(module + suffix)) return !is_plain(*t);
  return false;
}

}  // namespace mr
