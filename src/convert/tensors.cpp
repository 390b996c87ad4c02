#include "convert/tensors.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "model/quantized.h"
#include "quant/encode.h"

namespace mr {

namespace {

// Digits at the front of `text`, which is shortened by them; -1: none.
int take_number(std::string_view& text) {
  int64_t n = 0;
  size_t digits = 0;
  while (digits < text.size() && digits < 9 && text[digits] >= '0' && text[digits] <= '9') n = n * 10 + (text[digits++] - '0');
  text.remove_prefix(digits);
  return digits ? int(n) : -1;
}

// The numbers in `name` where `pattern` has "{}"; what is left of the name goes to `rest`.
bool matches(std::string_view pattern, std::string_view name, std::vector<int>& numbers, std::string_view& rest) {
  while (true) {
    const size_t hole = pattern.find("{}");
    const std::string_view text = pattern.substr(0, hole);
    if (!name.starts_with(text)) return false;
    name.remove_prefix(text.size());
    if (hole == pattern.npos) break;
    numbers.push_back(take_number(name));
    if (numbers.back() < 0) return false;
    pattern.remove_prefix(hole + 2);
  }
  rest = name;
  return true;
}

std::string with_prefix(const NameMap& names, std::string_view pattern) {
  if (pattern.starts_with("model.")) return std::string(names.model_prefix) + std::string(pattern.substr(6));
  return std::string(names.other_prefix) + std::string(pattern);
}

int holes(std::string_view pattern) {
  int n = 0;
  for (size_t at = 0; (at = pattern.find("{}", at)) != pattern.npos; at += 2) n++;
  return n;
}

bool is_vector(std::string_view role) {  // whatever its dimensions: small, and never quantized
  return role.find("norm") != role.npos || role == "conv" || role == "a" || role == "a_log" || role == "d" || role == "dt_bias" ||
         role == "altup_scale" || role == "layer_scale";
}

int64_t product(std::span<const int64_t> shape) {
  int64_t n = 1;
  for (int64_t d : shape) check(!__builtin_mul_overflow(n, d, &n), "a tensor of shape {} has too many values", shape_string(shape));
  return n;
}

// Names that end with no suffix.
bool is_bare(std::string_view role, bool gguf) {
  if (role == "a" || role == "a_log" || role == "d" || role == "dt_bias") return true;
  return !gguf && (role == "altup_scale" || role == "layer_scale");
}

int head_dim_of(const ModelSpec& spec, int layer) {
  const AttentionSpec* a = std::get_if<AttentionSpec>(&spec.layers[size_t(layer)].mixer);
  return a ? a->head_dim : 0;
}

bool is_of_stream(std::string_view role) { return role == "altup_in" || role == "altup_out"; }  // the first number is not a layer's

std::vector<int64_t> shape_there(std::string_view role, std::vector<int64_t> shape, const Side& to) {
  const bool mamba2 = !to.spec.layers.empty() && std::holds_alternative<Mamba2Spec>(to.spec.layers[0].mixer);
  if (role == "conv" && to.gguf && shape.size() == 3 && shape[1] == 1) shape.erase(shape.begin() + 1);
  if (role == "conv" && !to.gguf && shape.size() == 2) shape.insert(shape.begin() + 1, 1);
  if (!mamba2) return shape;
  if (role == "a" || role == "a_log" || role == "d") return to.gguf ? std::vector<int64_t>{product(shape), 1} : std::vector{product(shape)};
  if (role == "gated_norm") {
    const int64_t groups = std::get<Mamba2Spec>(to.spec.layers[0].mixer).groups, n = product(shape);
    return to.gguf ? std::vector<int64_t>{groups, n / groups} : std::vector{n};
  }
  return shape;
}

class Planner {
 public:
  Planner(const Checkpoint& files, const Side& from, const Side& to, const WeightFormats* formats, bool again)
      : files_(files), from_(from), to_(to), formats_(formats), again_(again) {}

  std::vector<TensorJob> plan() {
    for (const StoredTensor& t : files_.tensors()) add(t);
    for (const TensorJob& job : jobs_) check_whole(job);
    return std::move(jobs_);
  }

 private:
  bool crosses() const { return from_.gguf != to_.gguf; }

  void add(const StoredTensor& t) {
    if (is_applied_scale(t)) return;
    const std::optional<Role> role = role_of(from_.names, t.name);
    if (!crosses()) return add_job(t, role, t.name, t.shape, t.bytes);
    const bool of_rope = t.name.starts_with("rope_f") || t.name.ends_with("rotary_emb.inv_freq");
    if (of_rope) return;  // in the configuration there
    std::string_view there = role ? role->name : "";
    if (there == "a_log" || there == "a") there = to_.gguf ? "a" : "a_log";
    const NameMap::Entry* entry = to_.names.find(there);
    check(role && entry, "tensor '{}' of '{}' has no name in {}", t.name, files_.file_of(t).native(),
          to_.gguf ? "GGUF files of this family" : "this family's safetensors");
    check(is_of_stream(role->name) || size_t(role->at.layer) < from_.spec.layers.size(), "tensor '{}' is of layer {}, but the model has {}",
          t.name, role->at.layer, from_.spec.layers.size());
    const std::string suffix(is_bare(there, to_.gguf) ? "" : role->suffix.empty() ? ".weight" : role->suffix);
    const int here_holes = holes(from_.names.find(role->name)->pattern), there_holes = holes(entry->pattern);
    auto name = [&](Place at) { return to_.names.name(there, at) + suffix; };
    if (here_holes > there_holes) return stack(t, *role, name(role->at), here_holes == 2 ? role->at.expert : role->at.layer);
    if (here_holes < there_holes) return unstack(t, *role, there_holes, name);
    add_job(t, role, name(role->at), shape_there(there, t.shape, to_), t.bytes);
  }

  // One of several tensors [rows, in] that are one there, [n, rows, in].
  void stack(const StoredTensor& t, const Role& role, const std::string& name, int index) {
    auto [known, fresh] = stacks_.emplace(name, jobs_.size());
    if (fresh) {
      std::vector<int64_t> shape = t.shape;
      shape.insert(shape.begin(), 1);
      add_job(t, role, name, shape, t.bytes);
      jobs_.back().pieces.clear();
    }
    TensorJob& job = jobs_[known->second];
    const bool alike = t.format == format_of_[&job - jobs_.data()] && product(t.shape) == product(job.head.shape) / job.head.shape[0];
    check(alike, "tensor '{}' differs in format or shape from the others that become '{}'", t.name, name);
    if (size_t(index) >= job.pieces.size()) {
      check(index < 1 << 16, "tensor '{}' has an impossible number", t.name);
      job.pieces.resize(size_t(index) + 1);
      std::vector<int64_t> shape = job.head.shape;
      shape[0] = index + 1;
      job.head = tensor_head(name, job.head.format, shape);
    }
    job.pieces[size_t(index)] = {&t, t.bytes};
  }

  template <class Name>
  void unstack(const StoredTensor& t, const Role& role, int there_holes, Name name) {
    const int64_t parts = parts_of(role);
    check(t.shape.size() == 3 && t.shape[0] == parts && parts > 0, "tensor '{}' has shape {}, but must have {} parts of 2 dimensions",
          t.name, shape_string(t.shape), parts);
    const size_t bytes = t.bytes.size() / size_t(parts);
    for (int64_t i = 0; i < parts; i++) {
      const Place at = there_holes == 2 ? Place(role.at.layer, int(i)) : Place(int(i));
      add_job(t, role, name(at), {t.shape[1], t.shape[2]}, t.bytes.subspan(size_t(i) * bytes, bytes), i);
    }
  }

  // How many a file stacks in one tensor: the experts of a layer, or the projections of the streams but one.
  int64_t parts_of(const Role& role) const {
    if (is_of_stream(role.name)) return from_.spec.altup.streams - 1;
    const MoeSpec* moe = std::get_if<MoeSpec>(&from_.spec.layers[size_t(role.at.layer)].ffn);
    return moe ? moe->experts : 0;
  }

  // part: of what is stacked in t; -1: all of it.
  void add_job(const StoredTensor& t, const std::optional<Role>& role, const std::string& name, std::vector<int64_t> shape,
               std::span<const std::byte> bytes, int64_t part = -1) {
    TensorJob job;
    if (role && crosses()) set_values(job, *role);
    std::string format = target(t, role, shape);
    job.head = tensor_head(name, std::move(format), std::move(shape));
    add_pieces(job, t, bytes, part);
    jobs_.push_back(std::move(job));
    format_of_.push_back(t.format);
  }

  // One, or one of every expert where each has a factor of its own.
  void add_pieces(TensorJob& job, const StoredTensor& t, std::span<const std::byte> bytes, int64_t part) const {
    const StoredTensor* scale = job.head.format == t.format ? nullptr : scale_of(t);
    const bool each = scale && part < 0 && scale->bytes.size() > 4 && t.shape.size() == 3;
    const size_t n = each ? size_t(t.shape[0]) : 1, size = n ? bytes.size() / n : 0;
    for (size_t i = 0; i < n; i++)
      job.pieces.push_back({&t, bytes.subspan(i * size, size), scale ? factor_at(*scale, t, part < 0 ? i : size_t(part)) : 1});
  }

  // The factor, or factors of experts, that GGUF's NVFP4 keeps in a tensor of its own; may be null.
  const StoredTensor* scale_of(const StoredTensor& t) const {
    constexpr std::string_view weight = ".weight";
    if (t.format != "nvfp4" || !t.name.ends_with(weight)) return nullptr;
    return files_.find(t.name.substr(0, t.name.size() - weight.size()) + ".scale");
  }

  // Whether t holds the factors of a weight that is written in another format, with its factors in the values.
  bool is_applied_scale(const StoredTensor& t) const {
    constexpr std::string_view scale = ".scale";
    if (!from_.gguf || !t.name.ends_with(scale)) return false;
    const StoredTensor* weight = files_.find(t.name.substr(0, t.name.size() - scale.size()) + ".weight");
    if (!weight || weight->format != "nvfp4") return false;
    return crosses() || target(*weight, role_of(from_.names, weight->name), weight->shape) != "nvfp4";
  }

  std::string target(const StoredTensor& t, const std::optional<Role>& role, std::span<const int64_t> shape) const {
    const Codec* stored = find_codec(t.format);
    if (!role || !stored) return t.format;  // what is not known stays as it is
    const bool matrix = role->suffix != ".bias" && !is_vector(role->name) && shape.size() > 1;
    if (!matrix && to_.gguf) return crosses() || formats_ ? "f32" : t.format;
    if (!formats_) return t.format;
    const Codec& codec = matrix ? formats_->choose(role->name, role->at.layer, shape.back(), *stored) : get_codec(formats_->name());
    check(&codec == stored || stored->storage != DType::u8 || codec.block == 1 || again_,
          "tensor '{}' is quantized already ({}): quantizing it to {} loses more than quantizing the original would; --requantize does it",
          t.name, t.format, codec.name);
    return std::string(codec.name);
  }

  void set_values(TensorJob& job, const Role& role) const {
    const NameMap& names = to_.gguf ? to_.names : from_.names;
    const ModelSpec& plain = to_.gguf ? from_.spec : to_.spec;  // as Hugging Face means it
    if (names.permuted_qk && (role.name == "q" || role.name == "k")) {
      job.rows = to_.gguf ? TensorJob::Rows::pair : TensorJob::Rows::unpair;
      job.head_dim = head_dim_of(plain, role.at.layer);
    }
    if (role.name.ends_with("norm") && role.suffix == ".weight") job.map.add = to_.gguf ? plain.norm.offset : -plain.norm.offset;
    if (role.name == "a_log") job.map.function = ValueMap::Function::minus_exp;
    if (role.name == "a") job.map.function = ValueMap::Function::log_minus;
    if (to_.gguf) job.map.scale = query_scale(role, plain);
  }

  // Gemma's GGUF files cannot say how scores are scaled: readers take it from the sizes. What differs goes into q, or into its norm.
  float query_scale(const Role& role, const ModelSpec& plain) const {
    const bool gemma2 = plain.arch == "gemma2", gemma3 = plain.arch == "gemma3_text";
    if (!(gemma2 && role.name == "q") && !(gemma3 && role.name == "q_norm")) return 1;
    const auto& a = std::get<AttentionSpec>(plain.layers[size_t(role.at.layer)].mixer);
    const auto& read = std::get<AttentionSpec>(to_.spec.layers[size_t(role.at.layer)].mixer);
    return a.scale / read.scale;
  }

  void check_whole(const TensorJob& job) const {
    for (const TensorJob::Piece& piece : job.pieces)
      check(piece.tensor, "of the {} tensors that become '{}' one is missing", job.pieces.size(), job.head.name);
  }

  const Checkpoint& files_;
  const Side &from_, &to_;
  const WeightFormats* formats_;
  bool again_;
  std::vector<TensorJob> jobs_;
  std::vector<std::string> format_of_;  // of each job's tensors
  std::map<std::string, size_t> stacks_;
};

// The row of the source that becomes `row`.
int64_t source_row(const TensorJob& job, int64_t row) {
  if (job.rows == TensorJob::Rows::same) return row;
  const int64_t i = row % job.head_dim, half = job.head_dim / 2, head = row - i;
  return head + (job.rows == TensorJob::Rows::pair ? i % 2 * half + i / 2 : i % half * 2 + i / half);
}

}  // namespace

std::optional<Role> role_of(const NameMap& names, std::string_view tensor) {
  for (auto e = names.entries.rbegin(); e != names.entries.rend(); ++e) {  // what a family adds comes last
    std::vector<int> numbers;
    std::string_view rest;
    if (!matches(with_prefix(names, e->pattern), tensor, numbers, rest)) continue;
    if (!rest.empty() && rest != ".weight" && rest != ".bias") continue;
    return Role{e->role, Place(numbers.empty() ? 0 : numbers[0], numbers.size() < 2 ? 0 : numbers[1]), rest};
  }
  return std::nullopt;
}

float ValueMap::operator()(float x) const {
  if (function == Function::minus_exp) x = float(-std::exp(double(x)));
  if (function == Function::log_minus) x = float(std::log(-double(x)));
  return (x + add) * scale;
}

std::vector<TensorJob> plan_tensors(const Checkpoint& files, const Side& from, const Side& to, const WeightFormats* formats, bool again) {
  return Planner(files, from, to, formats, again).plan();
}

void write_tensor(const TensorJob& job, const Checkpoint& files, ThreadPool& pool,
                  const std::function<void(std::span<const std::byte>)>& write) {
  constexpr int64_t together = int64_t(32) << 20;  // values
  if (!job.values.empty()) write(std::as_bytes(std::span(job.values)));
  for (const TensorJob::Piece& piece : job.pieces) {
    const StoredTensor& t = *piece.tensor;
    const bool as_it_is = t.format == job.head.format && job.rows == TensorJob::Rows::same && !job.map.changes() && piece.factor == 1;
    if (as_it_is || piece.bytes.empty()) {
      write(piece.bytes);
      files.drop(t);
      continue;
    }
    const Codec &from = get_codec(t.format), &to = get_codec(job.head.format);
    const bool flat = job.head.shape.size() < 2;  // a vector: rows of 1
    const int64_t in = flat ? 1 : job.head.shape.back(), rows = product(job.head.shape) / int64_t(job.pieces.size()) / in;
    check(job.rows == TensorJob::Rows::same || (job.head_dim > 0 && job.head_dim % 2 == 0 && rows % job.head_dim == 0),
          "tensor '{}' has {} rows, which are not heads of {}", t.name, rows, job.head_dim);
    const int64_t step = std::max<int64_t>(1, together / in);
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t n = std::min(step, rows - first);
      const Buffer encoded = encode_rows(to, n, in, pool, [&](int64_t r, float* values) {
        from.decode(piece.bytes.data() + source_row(job, first + r) * from.row_bytes(in), in, values);
        if (piece.factor != 1) std::transform(values, values + in, values, [&](float x) { return x * piece.factor; });
        if (job.map.changes()) std::transform(values, values + in, values, job.map);
      });
      write({encoded.data(), size_t(n * to.row_bytes(in))});
    }
    files.drop(t);
  }
}

}  // namespace mr
