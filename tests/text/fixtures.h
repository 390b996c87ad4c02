// Reading the fixtures that tests/oracle/text_*.py wrote.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/json.h"

namespace mr {

inline Json read_json(const std::string& name) {
  std::ifstream file(std::string(MR_FIXTURES "/text/") + name);
  EXPECT_TRUE(file.good()) << name;
  return Json::parse(file);
}

inline std::vector<Json> read_jsonl(const std::string& name) {
  std::ifstream file(std::string(MR_FIXTURES "/text/") + name);
  EXPECT_TRUE(file.good()) << name;
  std::vector<Json> out;
  for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line));
  return out;
}

}  // namespace mr
