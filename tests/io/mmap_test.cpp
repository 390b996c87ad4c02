#include "io/mmap.h"

#include <sys/stat.h>

#include "io/files.h"

namespace mr::test {

static size_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  size_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * size_t(sysconf(_SC_PAGESIZE));
}

TEST(MappedFile, ShowsTheFilesBytesAndMoves) {
  TempDir dir;
  MappedFile a(write_file(dir / "x", "hello"));
  MappedFile b = std::move(a);
  EXPECT_EQ(b.path(), dir / "x");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.bytes().data()), b.bytes().size()), "hello");
}

TEST(MappedFile, SaysWhatIsWrong) {
  TempDir dir;
  fs::create_directory(dir / "folder");
  mkfifo((dir / "pipe").c_str(), 0600);
  expect_says(error_of([&] { MappedFile(dir / "none"); }), {"cannot open", (dir / "none").native(), "No such file"});
  expect_says(error_of([&] { MappedFile(dir / "folder"); }), {(dir / "folder").native(), "is a directory"});
  expect_says(error_of([&] { MappedFile(dir / "pipe"); }), {(dir / "pipe").native(), "not a regular file"});
  expect_says(error_of([&] { MappedFile(write_file(dir / "void", "")); }), {(dir / "void").native(), "is empty"});
  if (geteuid() != 0) {
    write_file(dir / "secret", "x");
    chmod((dir / "secret").c_str(), 0);
    expect_says(error_of([&] { MappedFile(dir / "secret"); }), {"cannot open", "Permission denied"});
  }
}

TEST(MappedFile, DroppedPagesLeaveMemoryAndComeBackRight) {
  TempDir dir;
  std::string text(32 << 20, '\0');
  for (size_t i = 0; i < text.size(); i += 512) text[i] = char(i / 512);
  MappedFile file(write_file(dir / "x", text));
  auto equal = [&] { return !std::memcmp(file.bytes().data(), text.data(), text.size()); };
  ASSERT_TRUE(equal());
  size_t before = resident_bytes();
  file.drop(0, text.size());
  EXPECT_LT(resident_bytes() + (30 << 20), before);
  EXPECT_TRUE(equal());

  before = resident_bytes();
  file.drop(100, 4096);           // no whole page inside
  file.drop(text.size() + 5, 1);  // outside
  file.drop(5, size_t(-1));       // far beyond the end: only up to it, and the first page stays
  EXPECT_LT(resident_bytes() + (30 << 20), before);
  EXPECT_TRUE(equal());
}

}  // namespace mr::test
