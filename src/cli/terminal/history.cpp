#include "cli/terminal/history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "text/unicode.h"

namespace mr {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMost = 1000;  // entries kept

// One entry a line: newlines are escaped as \n, backslashes doubled.
std::string escaped(std::string entry) {
  replace_all(entry, "\\", "\\\\");
  replace_all(entry, "\n", "\\n");
  return entry + "\n";
}

std::string unescaped(const std::string& line) {
  std::string entry;
  for (size_t i = 0; i < line.size(); i++) {
    if (line[i] != '\\' || i + 1 == line.size())
      entry += line[i];
    else
      entry += line[++i] == 'n' ? '\n' : line[i];
  }
  return to_valid_utf8(entry);
}

// One write(), so that entries of two processes do not interleave.
void write_all(const fs::path& file, const std::string& text, int flags) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
  if (fd < 0) return;
  ::fchmod(fd, 0600);
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
  ::close(fd);
}

}  // namespace

History::History(fs::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  std::ifstream in(file_, std::ios::binary);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) entries_.push_back(unescaped(line));
  if (entries_.size() <= 2 * kMost) return;
  entries_.erase(entries_.begin(), entries_.end() - long(kMost));
  std::string kept;
  for (const std::string& entry : entries_) kept += escaped(entry);
  write_all(file_, kept, O_TRUNC);
}

void History::add(const std::string& entry) {
  if (entry.empty() || entry[0] == ' ' || (!entries_.empty() && entries_.back() == entry)) return;
  entries_.push_back(entry);
  if (file_.empty()) return;
  std::error_code ignored;
  if (fs::create_directories(file_.parent_path(), ignored)) fs::permissions(file_.parent_path(), fs::perms::owner_all, ignored);
  write_all(file_, escaped(entry), O_APPEND);
}

}  // namespace mr
