// linear on every backend against f64, for all that may come after the sum.
#include "backend/products.h"

#include "backend/operations.h"

namespace mr::test {
namespace {

TEST_P(Operations, linear) {
  for (auto [out, in] :
       {std::pair{1, 8}, {15, 32}, {17, 33}, {16, 64}, {100, 96}, {333, 576}, {48, 1536}, {64, 4096}, {24, 14336}, {8, 5}, {96, 104}}) {
    Made w(out, in, uint64_t(out * 10000 + in));
    for (int rows : {1, 2, 7, 8, 9, 16, 17, 40, 130, 256, 300})
      for (int parts = 0; parts < 8; parts += rows == 9 ? 1 : 7) ASSERT_NO_FATAL_FAILURE(expect_product(backend(), step(), w, rows, parts));
  }
  if (!on_gpu()) return;
  // cuBLASLt's eight proposals three times in turn, and the one that stays
  const Made w(96, 104, 1);
  for (int i = 0; i < 26; i++) ASSERT_NO_FATAL_FAILURE(expect_product(backend(), step(), w, 2051 + i, 7));
}

}  // namespace
}  // namespace mr::test
