#include "io/npy.h"

#include "io/files.h"

namespace mr::test {

TEST(NpyWriter, WritesTheSameBytesAsNumpy) {
  TempDir dir;
  std::vector<float> values(15);
  for (size_t i = 0; i < values.size(); i++) values[i] = ramp(i);
  NpyWriter out(dir / "x.npy", 3, 5);
  out.append(std::span(values).first(5));
  out.append(std::span(values).subspan(5));
  out.close();
  EXPECT_EQ(read_file(dir / "x.npy"), read_file(fixture("ramp.npy")));
}

TEST(NpyWriter, DataBeginsAtAMultipleOf64) {
  TempDir dir;
  for (int64_t cols : {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000}) {
    NpyWriter(dir / "x.npy", 0, cols).close();
    std::string file = read_file(dir / "x.npy");
    EXPECT_EQ(file.size() % 64, 0u);
    EXPECT_EQ(size_t(uint8_t(file[8])) + 256 * size_t(uint8_t(file[9])) + 10, file.size());
    EXPECT_EQ(file.back(), '\n');
  }
}

TEST(NpyWriter, SaysWhatIsWrong) {
  TempDir dir;
  std::vector<float> values(10);
  expect_says(error_of([&] { NpyWriter(dir / "no/x.npy", 1, 1); }), {"cannot write", "no/x.npy", "No such file"});
  expect_says(error_of([&] { NpyWriter(dir / "x.npy", 1, 0); }), {"1 rows and 0 columns"});
  NpyWriter out(dir / "x.npy", 2, 5);
  expect_says(error_of([&] { out.append(std::span(values).first(4)); }), {"4 values", "5 columns"});
  out.append(std::span(values).first(5));
  expect_says(error_of([&] { out.close(); }), {"2 rows", "got 1"});
  expect_says(error_of([&] { out.append(values); }), {"2 rows", "not for 3"});
  if (fs::exists("/dev/full")) {
    NpyWriter full("/dev/full", 1, 10);
    auto write_all = [&] {
      full.append(values);
      full.close();
    };
    expect_says(error_of(write_all), {"cannot write '/dev/full'", "No space"});
  }
}

}  // namespace mr::test
