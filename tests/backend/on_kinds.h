// Tests that run on the CUDA backend with f32 activations, with bf16 ones, and with bf16 ones through the chain of one-row operations.
#pragma once

#include <utility>

#include "backend/on_device.h"

namespace mr::test {
namespace {

struct Kind {
  DType type;
  bool chained;  // operations of one row go through the chain
  operator DType() const { return type; }
  int index() const { return chained ? 2 : type == DType::bf16; }
};
const Kind kKinds[] = {{DType::f32, false}, {DType::bf16, false}, {DType::bf16, true}};

[[maybe_unused]] std::string name_of_kind(const testing::TestParamInfo<Kind>& info) {
  return std::string(name_of(info.param.type)) + (info.param.chained ? "_chained" : "");
}

class OnKinds : public testing::TestWithParam<Kind> {
 protected:
  static void SetUpTestSuite() {
    if (cuda_available())
      for (const Kind& k : kKinds) device_[k.index()] = new OnDevice(k, {.chain = k.chained ? 1 : 1000});
  }
  static void TearDownTestSuite() {
    for (OnDevice*& d : device_) delete std::exchange(d, nullptr);
  }
  void SetUp() override {
    if (!cuda_available()) GTEST_SKIP() << "no GPU";
  }
  OnDevice& device() { return *device_[GetParam().index()]; }
  double step() const { return GetParam() == DType::bf16 ? kHalfStep : 0; }
  static inline OnDevice* device_[3] = {};
};

}  // namespace
}  // namespace mr::test
