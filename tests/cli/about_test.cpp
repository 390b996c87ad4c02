#include "cli/about.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

Machine good() {
  Machine m;
  m.processor = "Some Xeon";
  m.cpus = 8;
  m.memory = m.memory_free = int64_t(8) << 30;
  m.huge_pages = "madvise";
  m.governor = "performance";
  return m;
}

std::string advice(const Machine& m, const Reach& r, const std::string& topic) {
  for (const Finding& f : examine(m, r))
    if (f.topic == topic) return f.advice;
  return "no such topic";
}

const Reach kReach{Isa::avx2, 4, "there is none", true};

TEST(Doctor, has_no_advice_for_a_good_machine) {
  for (const Finding& f : examine(good(), kReach)) EXPECT_EQ(f.advice, "") << f.topic;
}

TEST(Doctor, names_what_slows_a_machine_down) {
  Machine m = good();
  m.cpu_quota = 1.5;
  EXPECT_NE(advice(m, kReach, "processors").find("--threads 1"), std::string::npos);
  m.cpu_quota = 0;
  m.load = 7;
  EXPECT_NE(advice(m, kReach, "processors").find("other programs"), std::string::npos);
  m.huge_pages = "never";
  EXPECT_NE(advice(m, kReach, "huge pages").find("transparent_hugepage"), std::string::npos);
  m.governor = "powersave";
  EXPECT_NE(advice(m, kReach, "clock").find("performance"), std::string::npos);
  m.nodes = 2;
  EXPECT_NE(advice(m, kReach, "memory nodes").find("numactl"), std::string::npos);
  m.swapped = m.memory;
  EXPECT_NE(advice(m, kReach, "memory").find("swapped"), std::string::npos);
  m.nvidia_driver = "550.1";
  EXPECT_NE(advice(m, kReach, "GPU").find("550.1"), std::string::npos);
}

TEST(Doctor, compares_instructions_with_what_the_program_may_use) {
  Machine m = good();
  m.has_avx512 = true;
  EXPECT_NE(advice(m, kReach, "instructions").find("AVX-512"), std::string::npos);
  EXPECT_EQ(advice(m, {Isa::vnni, 4, "", true}, "instructions"), "");
  m.has_tiles = true;
  EXPECT_NE(advice(m, {Isa::vnni, 4, "", true}, "instructions").find("AMX"), std::string::npos);
  EXPECT_EQ(advice(m, {Isa::amx, 4, "", true}, "instructions"), "");
}

TEST(Doctor, says_how_to_get_the_default_model) {
  EXPECT_EQ(advice(good(), kReach, "default model"), "no such topic");
  EXPECT_NE(advice(good(), {Isa::avx2, 4, "", false}, "default model").find("millrace run"), std::string::npos);
}

}  // namespace
}  // namespace mr
