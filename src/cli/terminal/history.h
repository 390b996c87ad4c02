// The input history, in a file readable only by its owner. Several processes may append to it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mr {

class History {
 public:
  explicit History(std::filesystem::path file);  // empty: not saved. Errors of the file are ignored

  void add(const std::string& entry);  // skips entries that are empty, begin with a space or repeat the last
  const std::vector<std::string>& entries() const { return entries_; }  // oldest first

 private:
  std::filesystem::path file_;
  std::vector<std::string> entries_;
};

}  // namespace mr
