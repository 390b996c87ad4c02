// What was typed before, kept in a file that only its owner reads. Several programs may add to it at once.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mr {

class History {
 public:
  explicit History(std::filesystem::path file);  // empty: nothing is kept. A file that cannot be read or written is no error

  void add(const std::string& entry);                                   // not what is empty, begins with a space or is what was added last
  const std::vector<std::string>& entries() const { return entries_; }  // the oldest first

 private:
  std::filesystem::path file_;
  std::vector<std::string> entries_;
};

}  // namespace mr
