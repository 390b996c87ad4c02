// The reference backend: plain loops, f32 values, sums in double. It defines what an operation means; every other
// backend is tested against it. Speed matters only as far as tests on a small model need it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/angles.h"
#include "backend/backend.h"
#include "backend/kv_pages.h"
#include "backend/sample.h"
#include "core/config.h"
#include "core/error.h"

namespace mr {

namespace {

double apply(Activation act, double x) {
  switch (act) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::relu2:
      return x > 0 ? x * x : 0;
  }
  return x;
}

// Eight independent partial sums, so that the compiler can vectorize.
double dot(const float* a, const float* b, int64_t n) {
  double sum[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; j++) sum[j] += double(a[i + j]) * b[i + j];
  for (; i < n; i++) sum[0] += double(a[i]) * b[i];
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

// What is left of x when it is stored as `type`.
float rounded(DType type, float x) {
  float y = 0;
  set_kv_code(type, reinterpret_cast<std::byte*>(&y), size_of(type), 0, x, 1);
  return kv_code(type, reinterpret_cast<const std::byte*>(&y), size_of(type), 0);
}

// Whether row `row` of sequence `seq` attends to the token at index `place` of that sequence.
bool sees(const Batch& batch, int seq, int row, int place, int window) {
  int own = place - batch.context[seq];  // its row within the step; negative: in the context
  int position = own < 0 ? place : batch.position[batch.row_begin[seq] + own];
  if (window && batch.position[row] - position >= window) return false;
  if (own < 0 || batch.corner[seq] == Corner::full) return true;
  if (batch.corner[seq] == Corner::causal) return own <= row - batch.row_begin[seq];
  return batch.ancestors[row] >> own & 1;
}

int sequence_of(const Batch& batch, int row) {
  int seq = 0;
  while (batch.row_begin[seq + 1] <= row) seq++;
  return seq;
}

float max_of(const float* x, int64_t n) { return *std::max_element(x, x + n); }
float sum_exp(const float* x, int64_t n, float max, float factor) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += std::exp(double(x[i] - max) * factor);
  return float(sum);
}

class RefBackend : public Backend {
 public:
  std::string_view name() const override { return "ref"; }
  ThreadPool& pool() override { return pool_; }

  void embed(Tensor out, const Weight& table, float scale, const Batch& batch) override {
    for (int r = 0; r < batch.n_tokens; r++) {
      int32_t token = batch.token[r];
      if (token < 0) token = std::max(0, sampled_.at(size_t(-1 - token)));  // a row without finite logits has none
      table.decode(token < table.out ? token : 0, 1, out.row<float>(r));
      for (int64_t i = 0; i < table.in; i++) out.row<float>(r)[i] *= scale;
    }
  }

  void norm(Tensor out, Tensor x, const Norm& norm) override {
    if (x.rank == 3) {  // per-head norms
      for (int64_t i = 0; i < x.shape[0]; i++) this->norm(slice(out, i), slice(x, i), norm);
      return;
    }
    const int64_t n = x.shape[x.rank - 1];
    for (int64_t r = 0; r < x.shape[0]; r++) {
      const float* in = x.row<float>(r);
      double mean = 0, square = 0;
      if (norm.kind == Norm::Kind::layer) {
        for (int64_t i = 0; i < n; i++) mean += in[i];
        mean /= double(n);
      }
      for (int64_t i = 0; i < n; i++) square += (in[i] - mean) * (in[i] - mean);
      double inverse = norm.kind == Norm::Kind::none ? 1 : 1 / std::sqrt(square / double(n) + norm.eps);
      for (int64_t i = 0; i < n; i++) {
        double w = norm.weight ? double(norm.offset) + norm.weight.as<float>()[i] : 1.0;
        double b = norm.bias ? norm.bias.as<float>()[i] : 0.0;
        out.row<float>(r)[i] = float((in[i] - mean) * inverse * w + b);
      }
    }
  }

  void linear(Tensor out, Tensor x, const Weight& weight, const Epilogue& e) override {
    std::vector<float> rounded;
    if (weight.activations) {
      rounded.resize(size_t(x.shape[0] * weight.in));
      const Tensor values = view(rounded.data(), DType::f32, {x.shape[0], weight.in});
      for (int64_t t = 0; t < x.shape[0]; t++) round_activations(weight.activations, x.row<float>(t), weight.in, values.row<float>(t));
      x = values;
    }
    pool_.parallel(weight.out, 16, [&](int64_t begin, int64_t end, int) {
      std::vector<float> w(size_t((end - begin) * weight.in));
      weight.decode(begin, end - begin, w.data());
      for (int64_t t = 0; t < x.shape[0]; t++) {
        for (int64_t o = begin; o < end; o++) {
          double sum = dot(w.data() + (o - begin) * weight.in, x.row<float>(t), weight.in);
          if (e.bias) sum += e.bias.as<float>()[o];
          sum *= e.scale;
          if (e.residual) sum += e.residual.row<float>(t)[o];
          out.row<float>(t)[o] = float(sum);
        }
      }
    });
  }

  void add(Tensor into, Tensor x, float scale) override {
    for (int64_t r = 0; r < x.shape[0]; r++)
      for (int64_t i = 0; i < x.shape[1]; i++) into.row<float>(r)[i] += scale * x.row<float>(r)[i];
  }

  void gate(Tensor out, Tensor gate, Tensor up, Activation act) override {
    for (int64_t r = 0; r < out.shape[0]; r++)
      for (int64_t i = 0; i < out.shape[1]; i++) out.row<float>(r)[i] = float(apply(act, gate.row<float>(r)[i]) * up.row<float>(r)[i]);
  }

  void activate(Tensor x, Activation act) override {
    for (int64_t r = 0; r < x.shape[0]; r++)
      for (int64_t i = 0; i < x.shape[1]; i++) x.row<float>(r)[i] = float(apply(act, x.row<float>(r)[i]));
  }

  void angles(Tensor out, const RopeTable& rope, const Batch& batch) override { fill_angles(out, rope, batch); }

  void rope(Tensor x, Tensor angles, bool interleaved) override {
    const int64_t half = angles.shape[1] / 2;
    for (int64_t r = 0; r < x.shape[0]; r++) {
      const float *cosine = angles.row<float>(r), *sine = cosine + half;
      for (int64_t h = 0; h < x.shape[1]; h++) {
        float* head = x.row<float>(r) + h * x.stride[1];
        for (int64_t i = 0; i < half; i++) {
          float &a = head[interleaved ? 2 * i : i], &b = head[interleaved ? 2 * i + 1 : half + i];
          double a0 = a, b0 = b;
          a = float(a0 * cosine[i] - b0 * sine[i]);
          b = float(b0 * cosine[i] + a0 * sine[i]);
        }
      }
    }
  }

  void store_kv(const PagedKv& kv, Tensor k, Tensor v, const Batch& batch, const StateMemory& state) override {
    KvPages pages(kv, batch, state);
    for (int s = 0; s < batch.n_seqs; s++) {
      for (int r = batch.row_begin[s]; r < batch.row_begin[s + 1]; r++) {
        int64_t place = batch.context[s] + r - batch.row_begin[s];
        for (int h = 0; h < kv.kv_heads; h++) {
          std::byte *k_tile = pages.k_tile(s, h, place), *v_tile = pages.v_tile(s, h, place);
          store_row(kv.format(), pages.k_row(s, h, place), kKeyTile * pages.code, k.row<float>(r) + h * k.stride[1], kv.k_dim, kv.k_scale,
                    pages.k_scales(k_tile) + place % kKeyTile);
          store_row(kv.format(), pages.v_row(s, h, place), pages.code, v.row<float>(r) + h * v.stride[1], kv.v_dim, kv.v_scale,
                    pages.v_scales(v_tile) + place % kKeyTile);
        }
      }
    }
  }

  void attend(Tensor out, Tensor q, const PagedKv& kv, const Batch& batch, const StateMemory& state, const AttendArgs& args) override {
    KvPages pages(kv, batch, state);
    pool_.parallel(batch.n_tokens, 1, [&](int64_t begin, int64_t end, int) {
      for (int r = int(begin); r < end; r++)
        for (int h = 0; h < args.heads; h++)
          attend_head(out.row<float>(r) + h * out.stride[1], q.row<float>(r) + h * q.stride[1], pages, batch, r, h, args);
    });
  }

  void short_conv(Tensor out, Tensor x, Tensor weight, Tensor bias, Activation act, const SlotState& slot, const Batch& batch,
                  const StateMemory& state) override {
    const int64_t channels = x.shape[1], width = weight.shape[1];
    each_row(slot, batch, state, size_t((width - 1) * channels), [&](int r, std::vector<float>& last) {
      last.insert(last.end(), x.row<float>(r), x.row<float>(r) + channels);  // [width, channels]
      for (int64_t c = 0; c < channels; c++) {
        double sum = bias ? bias.as<float>()[c] : 0.0;
        for (int64_t j = 0; j < width; j++) sum += double(weight.row<float>(c)[j]) * last[size_t(j * channels + c)];
        out.row<float>(r)[c] = float(apply(act, sum));
      }
      last.erase(last.begin(), last.begin() + channels);
    });
  }

  void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan& scan, const Batch& batch,
                 const StateMemory& state) override {
    const int64_t n = scan.n_state;
    each_row(scan.state, batch, state, size_t(scan.inner * n), [&](int r, std::vector<float>& h) {
      for (int64_t i = 0; i < scan.inner; i++) {
        float step = dt.row<float>(r)[i], in = x.row<float>(r)[i];
        double sum = scan.d ? double(scan.d.as<float>()[i]) * in : 0.0;
        for (int64_t j = 0; j < n; j++) {
          float& value = h[size_t(i * n + j)];
          value = float(std::exp(double(step) * scan.a.row<float>(i)[j]) * value + double(step) * b.row<float>(r)[j] * in);
          value = rounded(scan.state.dtype, value);
          sum += double(c.row<float>(r)[j]) * value;
        }
        out.row<float>(r)[i] = float(sum);
      }
    });
  }

  void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan& scan, const Batch& batch,
                  const StateMemory& state) override {
    const int64_t n = scan.n_state, width = scan.head_dim;
    each_row(scan.state, batch, state, size_t(scan.heads * n * width), [&](int r, std::vector<float>& h) {
      for (int64_t head = 0; head < scan.heads; head++) {
        const int64_t group = head / (scan.heads / scan.groups);
        const double step = std::clamp(dt.row<float>(r)[head], scan.dt_min, scan.dt_max);
        const double decay = std::exp(step * scan.a.as<float>()[head]);
        for (int64_t i = 0; i < width; i++) {
          const float in = x.row<float>(r)[head * width + i];
          double sum = scan.d ? double(scan.d.as<float>()[head]) * in : 0.0;
          for (int64_t j = 0; j < n; j++) {
            float& value = h[size_t((head * n + j) * width + i)];
            value = rounded(scan.state.dtype, float(decay * value + step * in * b.row<float>(r)[group * n + j]));
            sum += double(c.row<float>(r)[group * n + j]) * value;
          }
          out.row<float>(r)[head * width + i] = float(sum);
        }
      }
    });
  }

  void softplus(Tensor x, Tensor bias) override {
    for (int64_t r = 0; r < x.shape[0]; r++) {
      for (int64_t i = 0; i < x.shape[1]; i++) {
        double v = double(x.row<float>(r)[i]) + (bias ? bias.as<float>()[i] : 0.0f);
        x.row<float>(r)[i] = float(std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v))));
      }
    }
  }

  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    const int64_t n = logits.shape[1], k = expert.shape[1];
    for (int64_t r = 0; r < logits.shape[0]; r++) {
      const float* row = logits.row<float>(r);
      std::vector<int32_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
      double total = 0;
      for (int64_t j = 0; j < (renormalize ? k : n); j++) total += std::exp(double(row[order[size_t(j)]]) - row[order[0]]);
      for (int64_t j = 0; j < k; j++) {
        expert.row<int32_t>(r)[j] = order[size_t(j)];
        weight.row<float>(r)[j] = float(std::exp(double(row[order[size_t(j)]]) - row[order[0]]) / total);
      }
    }
  }

  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    for (int64_t p = 0; p < out.shape[0]; p++) {
      int64_t t = p / expert.shape[1], j = p % expert.shape[1];
      linear(out.rows(p, 1), x.rows(x.shape[0] == out.shape[0] ? p : t, 1), experts[size_t(expert.row<int32_t>(t)[j])], {});
    }
  }

  void combine(Tensor out, Tensor x, Tensor weight, bool add) override {
    out = by_token(out, weight.shape[0]);
    x = by_token(x, weight.shape[0]);
    const int64_t k = x.shape[1];
    for (int64_t t = 0; t < out.shape[0]; t++) {
      for (int64_t n = 0; n < out.shape[1]; n++) {
        for (int64_t i = 0; i < out.shape[2]; i++) {
          float& to = out.row<float>(t)[n * out.stride[1] + i];
          double sum = add ? to : 0;
          for (int64_t j = 0; j < k; j++) sum += double(weight.row<float>(t)[n * k + j]) * x.row<float>(t)[j * x.stride[1] + i];
          to = float(sum);
        }
      }
    }
  }

  void magnitude(Tensor out, Tensor x, const Magnitude& what) override {
    const int64_t n = x.shape[1];
    for (int64_t t = 0; t < x.shape[0]; t++) {
      const float* in = x.row<float>(t);
      const double mean = what.centered ? std::accumulate(in, in + n, 0.0) / double(n) : 0;
      double square = 0;
      for (int64_t i = 0; i < n; i++) square += (in[i] - mean) * (in[i] - mean);
      const double root = std::sqrt(std::max(square / double(n), double(what.floor)));
      *out.row<float>(t) = float(what.inverse ? 1 / root : root);
    }
  }

  void gather(Tensor out, Tensor x, const Batch& batch) override {
    for (int i = 0; i < batch.n_out; i++) std::copy_n(x.row<float>(batch.out_row[i]), x.shape[1], out.row<float>(i));
  }

  void softcap(Tensor x, float cap) override {
    for (int64_t r = 0; r < x.shape[0]; r++)
      for (int64_t i = 0; i < x.shape[1]; i++) x.row<float>(r)[i] = float(cap * std::tanh(double(x.row<float>(r)[i]) / cap));
  }

  void sample(Tensor logits, const Batch& batch, std::vector<Sampled>& out) override {
    sample_rows(logits, batch, {max_of, sum_exp}, pool_, scratch_, out);
    sampled_.clear();
    for (const Sampled& s : out) sampled_.push_back(s.token);
  }

 private:
  static Tensor slice(const Tensor& x, int64_t i) {
    Tensor t = view(x.row<float>(i), x.dtype, {x.shape[1], x.shape[2]});
    t.stride[0] = x.stride[1];
    return t;
  }

  // One head of a token. scale: the layer's; own: where the row's goes, in a format that is scaled.
  static void store_row(const KvFormat& format, std::byte* row, int64_t stride, const float* x, int n, float scale, uint16_t* own) {
    if (format.scaled) {
      scale = kv_scale(x, n, format.largest);
      *own = bf16_from_f32(scale);
    }
    for (int i = 0; i < n; i++) set_kv_code(format.element, row, stride, i, x[i], scale);
  }
  static float scale_of(const KvFormat& format, float scale, const uint16_t* own, int place) {
    return format.scaled ? f32_from_bf16(own[place % kKeyTile]) : format.largest > 0 ? scale : 1;
  }

  static void attend_head(float* out, const float* q, const KvPages& pages, const Batch& batch, int row, int head, const AttendArgs& args) {
    const PagedKv& kv = *pages.kv;
    const int seq = sequence_of(batch, row), kv_head = head / (args.heads / kv.kv_heads), n = batch.context[seq] + batch.rows(seq);
    std::vector<double> score(size_t(n), -std::numeric_limits<double>::infinity());
    double max = args.sinks ? args.sinks.as<float>()[head] : -std::numeric_limits<double>::infinity();
    for (int j = 0; j < n; j++) {
      if (!sees(batch, seq, row, j, args.window)) continue;
      const std::byte* k = pages.k_row(seq, kv_head, j);
      double sum = 0;
      for (int i = 0; i < kv.k_dim; i++) sum += double(q[i]) * kv_code(kv.dtype, k, kKeyTile * pages.code, i);
      sum *= args.scale * double(scale_of(kv.format(), kv.k_scale, pages.k_scales(pages.k_tile(seq, kv_head, j)), j));
      if (args.softcap) sum = args.softcap * std::tanh(sum / args.softcap);
      max = std::max(max, score[size_t(j)] = sum);
    }
    double total = args.sinks ? std::exp(args.sinks.as<float>()[head] - max) : 0;
    std::vector<double> value(size_t(kv.v_dim), 0.0);
    for (int j = 0; j < n; j++) {
      if (!sees(batch, seq, row, j, args.window)) continue;
      double p = std::exp(score[size_t(j)] - max);
      const std::byte* v = pages.v_row(seq, kv_head, j);
      total += p;
      p *= scale_of(kv.format(), kv.v_scale, pages.v_scales(pages.v_tile(seq, kv_head, j)), j);
      for (int i = 0; i < kv.v_dim; i++) value[size_t(i)] += p * kv_code(kv.dtype, v, pages.code, i);
    }
    for (int i = 0; i < kv.v_dim; i++) out[i] = float(value[size_t(i)] / total);
  }

  // Calls step(row, state) for every row with its parent's state, and stores the updated state in the row's slot.
  template <class Step>
  static void each_row(const SlotState& slot, const Batch& batch, const StateMemory& memory, size_t size, Step step) {
    const GroupTable& table = batch.group[slot.ref.group];
    auto at = [&](int32_t unit) { return memory.group[slot.ref.group].unit(unit) + slot.ref.offset + slot.offset; };
    const int64_t each = size_of(slot.dtype);
    for (int s = 0; s < batch.n_seqs; s++) {
      std::vector<float> first(size);
      for (size_t i = 0; i < size; i++) first[i] = kv_code(slot.dtype, at(table.src[s]), each, int64_t(i));
      std::vector<std::vector<float>> after;  // of each row
      for (int r = batch.row_begin[s]; r < batch.row_begin[s + 1]; r++) {
        int parent = batch.corner[s] == Corner::bits ? batch.parent[r] : r - 1;
        std::vector<float> now = parent < batch.row_begin[s] ? first : after[size_t(parent - batch.row_begin[s])];
        step(r, now);
        for (size_t i = 0; table.dst[r] >= 0 && i < size; i++) set_kv_code(slot.dtype, at(table.dst[r]), each, int64_t(i), now[i], 1);
        after.push_back(std::move(now));
      }
    }
  }

  ThreadPool pool_{default_threads()};
  std::vector<SampleScratch> scratch_;
  std::vector<int32_t> sampled_;  // by output row of the previous step
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<RefBackend>(); }

}  // namespace mr
