// The suite of plain operations, which every backend passes: ref, each instruction set of the CPU, and a GPU with f32 and bf16
// activations, kernel by kernel, through the chain of one-row operations, and with those kernels alone that need nothing of Hopper. Each
// is compared with a definition, or with ref where that is the definition. What this machine cannot run is reported as skipped. Tests of
// the suite are in the file of their operation.
#pragma once

#include <array>
#include <map>
#include <set>

#include "backend/on_device.h"

namespace mr::test {

struct Place {
  enum class On { ref, cpu, gpu } on;
  const char* name;
  Isa isa{};                // of the CPU
  DType type = DType::f32;  // of activations
  bool chained = false;     // on a GPU: operations of one row go through the chain's kernel
  bool plain = false;       // on a GPU: no kernel that needs Hopper
};
inline const Place kPlaces[] = {{Place::On::ref, "ref"},
                                {Place::On::cpu, "scalar", Isa::scalar},
                                {Place::On::cpu, "avx2", Isa::avx2},
                                {Place::On::cpu, "avx512", Isa::avx512},
                                {Place::On::cpu, "vnni", Isa::vnni},
                                {Place::On::cpu, "amx", Isa::amx},
                                {Place::On::gpu, "cuda_f32", {}, DType::f32},
                                {Place::On::gpu, "cuda_bf16", {}, DType::bf16},
                                {Place::On::gpu, "cuda_bf16_chained", {}, DType::bf16, true},
                                {Place::On::gpu, "cuda_f32_plain", {}, DType::f32, false, true},
                                {Place::On::gpu, "cuda_bf16_plain", {}, DType::bf16, false, true}};

// The kernels that need Hopper, as the log of launches names them.
inline bool needs_hopper(const std::string& launch) {
  return std::ranges::any_of(std::array{"product_kernel<", "many_kernel<", "wide_kernel", "decode_kernel<", "prefill_kernel<",
                                        "outer_stream_kernel", "chain_kernel<", "rows_kernel<"},
                             [&](const char* name) { return launch.starts_with(name); });
}

inline void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

// Tolerances of a result.
struct Nearness {
  double absolute, relative;
};

class Operations : public testing::TestWithParam<Place> {
 protected:
  static void TearDownTestSuite() { backends().clear(); }
  void SetUp() override {
    const Place& p = GetParam();
    if (p.on == Place::On::cpu && !std::ranges::count(available_isas(), p.isa)) GTEST_SKIP() << "this machine has no " << p.name;
    if (p.on == Place::On::gpu && !cuda_available()) GTEST_SKIP() << "no GPU";
    std::unique_ptr<Backend>& made = backends()[p.name];
    if (!made) made = make();
    backend_ = made.get();
    if (p.plain)
      device().gpu().log_launches([this](const std::string& line) {
        if (needs_hopper(line)) hoppers_.insert(line);
      });
  }
  void TearDown() override {
    if (!backend_ || !GetParam().plain) return;
    device().gpu().log_launches({});
    EXPECT_TRUE(hoppers_.empty()) << *hoppers_.begin() << " needs Hopper";
  }

  Backend& backend() { return *backend_; }
  Backend& ref() { return *ref_; }
  OnDevice& device() { return static_cast<OnDevice&>(*backend_); }  // if it is a GPU
  bool is_ref() const { return GetParam().on == Place::On::ref; }
  bool on_cpu() const { return GetParam().on == Place::On::cpu; }
  bool on_gpu() const { return GetParam().on == Place::On::gpu; }
  bool slow() const { return is_ref() || (on_cpu() && GetParam().isa == Isa::scalar); }
  std::string name() const { return GetParam().name; }
  double step() const { return GetParam().type == DType::bf16 ? kHalfStep : 0; }  // rounding of activations
  double bound(double host, double gpu) const { return on_gpu() ? gpu : host; }
  // Inputs that this backend represents exactly, so that only arithmetic differs.
  Array& given(Array& x) const { return GetParam().type == DType::bf16 ? whole(x) : x; }

  // op(backend) must give ref's values, and on the CPU the same bits on every instruction set.
  template <class Op>
  void expect_ref(const std::string& what, const Nearness& most, Op op) {
    const std::vector<float> got = op(backend());
    expect_close(got, op(ref()), most.absolute, most.relative + step(), what + " on " + name());
    if (on_cpu()) expect_same_bits(got, op(*scalar_), what + " on " + name() + " and on scalar");
  }

 private:
  static std::map<std::string, std::unique_ptr<Backend>>& backends() {  // kept for the whole suite
    static std::map<std::string, std::unique_ptr<Backend>> all;
    return all;
  }
  std::unique_ptr<Backend> make() const {
    const Place& p = GetParam();
    if (p.on == Place::On::ref) return make_ref_backend();
    if (p.on == Place::On::cpu) return make_cpu_backend(p.isa, 3);
    return std::make_unique<OnDevice>(p.type, CudaOptions{.chain = p.chained ? 1 : 1000, .plain = p.plain});
  }

  Backend* backend_ = nullptr;
  std::set<std::string> hoppers_;  // launches of a plain place that need it
  std::unique_ptr<Backend> ref_ = make_ref_backend(), scalar_ = make_cpu_backend(Isa::scalar, 1);
};

#define SKIP_WHERE_REF_IS_THE_DEFINITION() \
  if (is_ref()) GTEST_SKIP() << "ref is the definition"

}  // namespace mr::test
