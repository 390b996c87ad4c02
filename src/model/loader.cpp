#include "model/loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "core/error.h"
#include "core/random.h"
#include "quant/encode.h"

namespace mr {

// What runs, and what to take instead of what does not.
static std::string advice(const Checkpoint& files) {
  std::string names = codec_names();
  names += " do. Take the model's BF16 safetensors, or a GGUF file in Q8_0, Q6_K or Q4_K_M";
  return files.is_gguf() ? names + "; llama.cpp's `llama-quantize --allow-requantize IN.gguf OUT.gguf Q8_0` makes one of this file" : names;
}

Loader::Loader(const Checkpoint& files, NameMap names, Backend& backend, WeightStore& store, std::optional<uint64_t> random_seed)
    : files_(files), names_(std::move(names)), backend_(backend), store_(store), random_seed_(random_seed) {
  if (!random_seed) quantization_ = Quantization(files);
  for (const StoredTensor& t : files.tensors()) bytes_total_ += int64_t(t.bytes.size());
}

const StoredTensor* Loader::find(std::string_view role, std::string_view suffix, Place at) const {
  if (!names_.find(role)) return nullptr;
  std::string name = names_.name(role, at);
  if (const StoredTensor* t = files_.find(name + std::string(suffix))) return t;
  return suffix == ".weight" ? files_.find(name) : nullptr;
}

const StoredTensor& Loader::get(std::string_view role, std::string_view suffix, Place at) const {
  if (const StoredTensor* t = find(role, suffix, at)) return *t;
  return files_.get(names_.name(role, at) + std::string(suffix));  // throws, naming the tensor and the file
}

bool Loader::has(std::string_view role, Place at) const {
  if (random_seed_ || !names_.find(role)) return names_.find(role) != nullptr;
  return find(role, ".weight", at) || has_quantized(files_, quantization_, names_.name(role, at));
}

void Loader::done_with(const StoredTensor& t) {
  if (outlines()) return;
  files_.drop(t);
  bytes_done_ += int64_t(t.bytes.size());
  if (progress) progress(bytes_done_, bytes_total_);
}

// Random, and in a format that is asked for: a few rows of it, repeated.
Weight Loader::made_up(std::string_view role, int64_t rows, int64_t in, Place at) {
  const uint64_t seed = *random_seed_ + (++random_stream_ << 32);
  const Codec &f32 = get_codec("f32"), &codec = formats ? formats->choose(role, at.layer, in, f32) : f32;
  if (&codec == &f32) return backend_.make_up(rows, in, seed, store_);
  if (outlines()) return backend_.place(StoredWeight(codec, nullptr, rows, in), store_);
  const int64_t different = std::min<int64_t>(rows, 64);
  std::vector<float> values(size_t(different * in));
  const float spread = std::sqrt(3.0f / float(in));
  for (size_t i = 0; i < values.size(); i++) values[i] = spread * float(2 * uniform(seed, 0, uint32_t(i)) - 1);
  const Buffer encoded = encode_rows(f32, reinterpret_cast<const std::byte*>(values.data()), codec, different, in, backend_.pool());
  std::vector<int64_t> order(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; r++) order[size_t(r)] = r % different;
  StoredWeight stored(codec, in);
  stored.add(encoded.data(), rows, std::move(order));
  return backend_.place(stored, store_);
}

const Codec& Loader::codec_for(const StoredTensor& t, std::string_view role, int64_t in, Place at) const {
  const Codec& stored = get_codec(t.format);
  if (!formats) return stored;
  const Codec& codec = formats->choose(role, at.layer, in, stored);
  check(&codec == &stored || stored.storage != DType::u8 || again,
        "tensor {} is quantized already ({}): quantizing it to {} loses more than quantizing the original would; --requantize does it",
        t.name, t.format, codec.name);
  return codec;
}

// Where row i of a head lies in a file whose q and k rows are paired for interleaved rope.
static int64_t paired_row(int64_t row, int head_dim) {
  int64_t i = row % head_dim, half = head_dim / 2;
  return row - i + (i % half) * 2 + i / half;
}

// What a file stacks in one tensor [n, rows, in] (experts, streams) has no number in its name: the slice that belongs to `at`.
static StoredTensor slice_of(const StoredTensor& t, std::string_view pattern, Place at) {
  const size_t layer = pattern.find("{}"), expert = layer == pattern.npos ? layer : pattern.find("{}", layer + 2);
  if (t.shape.size() != 3 || expert != pattern.npos || t.shape[1] == 1) return t;
  const int64_t i = layer == pattern.npos ? at.layer : at.expert;
  check(i < t.shape[0], "tensor {} has shape {}, but the configuration asks for more than {} parts", t.name, shape_string(t.shape), i);
  const size_t bytes = t.bytes.size() / size_t(t.shape[0]);
  return {t.name, t.format, {t.shape[1], t.shape[2]}, t.bytes.subspan(size_t(i) * bytes, bytes), t.file};
}

StoredTensor Loader::part_of(const Part& part, int64_t in, Place at) {
  const StoredTensor t = slice_of(get(part.role, ".weight", at), names_.find(part.role)->pattern, at);
  std::vector<int64_t> shape = t.shape;
  if (shape.size() == 3 && shape[1] == 1) shape.erase(shape.begin() + 1);  // a depthwise convolution
  check(shape == std::vector<int64_t>{part.rows, in}, "tensor {} has shape {}, but the configuration asks for [{}, {}]", t.name,
        shape_string(t.shape), part.rows, in);
  check(find_codec(t.format), "tensor {} is stored as {}, which does not run here: {}", t.name, t.format, advice(files_));
  return t;
}

float Loader::scale_of(const StoredTensor& t, const Part& part, Place at) const {
  const StoredTensor* scale = t.format == "nvfp4" ? find(part.role, ".scale", at) : nullptr;
  if (!scale) return 1;
  return factor_at(*scale, t, size_t(at.expert));
}

std::vector<Weight> Loader::weights(std::initializer_list<Part> parts, int64_t in, Place at) {
  if (random_seed_) {
    int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    return {made_up(parts.begin()->role, rows, in, at)};
  }
  std::vector<Weight> weights;
  StoredWeight pending;
  ActivationRounding rounding;
  std::vector<StoredTensor> used;
  std::vector<Buffer> encoded;
  auto flush = [&] {
    if (pending.out()) weights.emplace_back(backend_.place(pending, store_)).activations = rounding;
    for (const StoredTensor& t : used) done_with(t);
    used.clear();
    encoded.clear();
  };
  // Parts that are read alike are one weight: the same codec, rounding of inputs and order of groups.
  auto begin = [&](const Codec& codec, const ActivationRounding& activations, std::span<const std::byte> group_of = {}) {
    if (pending.codec == &codec && rounding == activations && std::ranges::equal(pending.parts.back().beside.group_of, group_of)) return;
    flush();
    pending = {codec, in};
    rounding = activations;
  };
  for (const Part& part : parts) {
    if (names_.find(part.role))
      if (auto q = find_quantized(files_, quantization_, names_.name(part.role, at), part.rows, in, !outlines())) {
        check(!formats, "'{}' is quantized already ({}): --quantize takes float models and GGUF files", files_.path().native(),
              q->codec->name);
        begin(*q->codec, q->activations, q->beside.group_of);
        pending.add(part.rows, q->beside);
        pending.parts.back().factor = q->factor;
        for (const StoredTensor* t : q->tensors) used.push_back(*t);
        continue;
      }
    const StoredTensor t = part_of(part, in, at);
    const Codec &codec = codec_for(t, part.role, in, at), &stored = get_codec(t.format);
    begin(codec, {});
    std::vector<int64_t> order;
    for (int64_t r = 0; names_.permuted_qk && part.head_dim && r < part.rows; r++) order.push_back(paired_row(r, part.head_dim));
    const std::byte* data = t.bytes.data();
    if (&codec != &stored && !outlines()) {
      encoded.push_back(encode_rows(stored, data, codec, part.rows, in, backend_.pool()));
      data = encoded.back().data();
    }
    pending.add(data, part.rows, std::move(order));
    pending.parts.back().factor = scale_of(t, part, at);
    used.push_back(t);
  }
  flush();
  return weights;
}

Linear Loader::linear(std::initializer_list<Part> parts, int64_t in, bool bias, Place at) {
  std::vector<Weight> packed = weights(parts, in, at);
  std::string name;
  for (const Part& part : parts) name.append(name.empty() ? "" : "+").append(part.role);
  if (!bias) return {std::move(name), std::move(packed), {}};
  std::vector<float> joined;
  int64_t n_joined = 0;
  for (const Part& part : parts) {
    n_joined += part.rows;
    std::vector<float> b = values(part.role, ".bias", {part.rows}, at);
    bool paired = names_.permuted_qk && part.head_dim && !random_seed_;
    for (int64_t r = 0; r < int64_t(b.size()); r++) joined.push_back(b[size_t(paired ? paired_row(r, part.head_dim) : r)]);
  }
  return {std::move(name), std::move(packed), place(joined, {n_joined})};
}

Weight Loader::weight(std::string_view role, int64_t rows, int64_t in, Place at) { return weights({{role, rows}}, in, at)[0]; }

Tensor Loader::place(const std::vector<float>& values, std::initializer_list<int64_t> shape) {
  Tensor out = view(nullptr, DType::f32, shape);
  out.data = store_.take(size_t(out.bytes()));
  if (out) backend_.copy_in(out.data, values.data(), size_t(out.bytes()));
  return out;
}

Tensor Loader::filled(int64_t n, float value) { return place(std::vector<float>(size_t(outlines() ? 0 : n), value), {n}); }

Tensor Loader::vector(std::string_view role, std::string_view suffix, std::initializer_list<int64_t> shape, Place at, float (*map)(float)) {
  std::vector<float> all = values(role, suffix, shape, at);
  if (map) std::ranges::transform(all, all.begin(), map);
  return place(all, shape);
}

std::vector<float> Loader::values(std::string_view role, std::string_view suffix, std::initializer_list<int64_t> shape, Place at) {
  Tensor all = view(nullptr, DType::f32, shape);
  std::vector<float> out(size_t(outlines() ? 0 : all.size()), suffix == ".bias" ? 0.0f : 1.0f);
  all.data = out.data();
  if (!random_seed_) read(all, get(role, suffix, at));
  return out;
}

void Loader::read(Tensor out, const StoredTensor& t) {
  std::vector<int64_t> stored = t.shape;
  if (stored.size() == 3 && stored[1] == 1) stored.erase(stored.begin() + 1);
  int64_t count = 1;
  for (int64_t n : stored)
    if (__builtin_mul_overflow(count, n, &count)) count = 0;  // a shape of no bytes, one size of which is 0
  const bool folded = out.rank == 1 && count == out.size();   // a vector, however the file folds it
  check(folded || std::ranges::equal(stored, std::span(out.shape.data(), size_t(out.rank))),
        "tensor {} has shape {}, but the configuration asks for {}", t.name, shape_string(t.shape), shape_string(out));
  check(t.format == "f32" || t.format == "f16" || t.format == "bf16", "tensor {} is stored as {}, but must be f32, f16 or bf16", t.name,
        t.format);
  if (outlines()) return;
  float* values = out.as<float>();
  const std::byte* p = t.bytes.data();
  for (int64_t i = 0; i < out.size(); i++) {
    uint16_t h;
    if (t.format == "f32") {
      std::memcpy(values + i, p + i * 4, 4);
    } else {
      std::memcpy(&h, p + i * 2, 2);
      values[i] = t.format == "f16" ? f32_from_f16(h) : f32_from_bf16(h);
    }
  }
  done_with(t);
}

float Loader::number(std::string_view role, Place at) {
  std::vector<float> value = values(role, ".weight", {1}, at);
  return outlines() ? 1.0f : value[0];
}

float Loader::kv_scale(std::string_view role, Place at) {
  if (random_seed_ || !names_.find(role)) return 1;
  const std::string projection = names_.name(role, at), suffix = fmt::format(".{}_scale", role);
  const StoredTensor* t = files_.find(projection.substr(0, projection.rfind('.')) + suffix);
  if (!t) t = files_.find(projection + suffix);
  if (!t) return 1;
  float scale = 1;
  read(view(outlines() ? nullptr : &scale, DType::f32, {1}), *t);
  check(std::isfinite(scale) && scale > 0, "tensor {} is {}, but keys and values are divided by it", t->name, scale);
  return scale;
}

Norm Loader::norm(const NormSpec& spec, std::string_view role, int64_t dim, Place at) {
  Norm norm{spec.kind, spec.eps, vector(role, ".weight", {dim}, at)};
  if (spec.kind == Norm::Kind::layer) norm.bias = vector(role, ".bias", {dim}, at);
  norm.offset = spec.offset;
  return norm;
}

}  // namespace mr
