#include "core/machine.h"

#include <gtest/gtest.h>

#include <fstream>

namespace mr {
namespace {

namespace fs = std::filesystem;

class SurveyTest : public testing::Test {
 protected:
  SurveyTest() { fs::remove_all(root_); }
  ~SurveyTest() override { fs::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  const fs::path root_ = fs::path(testing::TempDir()) / "machine_test";
};

TEST_F(SurveyTest, reads_what_linux_writes) {
  write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some Xeon\nmodel\t\t: 143\nflags\t\t: fpu avx512bw amx_bf16 amx_tile\n");
  write("proc/meminfo", "MemTotal:       2097152 kB\nMemFree: 1 kB\nMemAvailable:   1048576 kB\nSwapTotal: 4096 kB\nSwapFree: 1024 kB\n");
  write("proc/loadavg", "1.50 0.70 0.30 2/300 4711\n");
  write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version: 12\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  write("sys/devices/system/cpu/online", "0-2,5\n");
  write("sys/devices/system/node/node0/meminfo", "");
  write("sys/devices/system/node/node1/meminfo", "");
  write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  write("sys/fs/cgroup/memory.current", "73741824\n");
  const Machine m = survey_machine(root_);
  EXPECT_EQ(m.processor, "Some Xeon");
  EXPECT_TRUE(m.has_avx512);
  EXPECT_TRUE(m.has_tiles);
  EXPECT_EQ(m.cpus, 4);
  EXPECT_EQ(m.nodes, 2);
  EXPECT_EQ(m.memory, 2147483648);
  EXPECT_EQ(m.memory_free, 1000000000);
  EXPECT_EQ(m.swapped, 3072 * 1024);
  EXPECT_EQ(m.memory_limit, 1073741824);
  EXPECT_DOUBLE_EQ(m.cpu_quota, 1.5);
  EXPECT_DOUBLE_EQ(m.load, 1.5);
  EXPECT_EQ(m.huge_pages, "madvise");
  EXPECT_EQ(m.governor, "powersave");
  EXPECT_EQ(m.nvidia_driver, "580.95.05");
}

TEST_F(SurveyTest, what_is_not_said_stays_unknown) {
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/kernel/mm/transparent_hugepage/enabled", "]broken[");
  const Machine m = survey_machine(root_);
  EXPECT_EQ(m.processor, "");
  EXPECT_EQ(m.cpu_quota, 0);
  EXPECT_EQ(m.memory_limit, 0);
  EXPECT_EQ(m.huge_pages, "");
  EXPECT_EQ(m.nodes, 1);
}

}  // namespace
}  // namespace mr
