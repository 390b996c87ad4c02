// Writes a float32 matrix as a NumPy .npy file, row by row, so that [tokens, vocabulary] logits are never in memory at once.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>

namespace mr {

class NpyWriter {
 public:
  NpyWriter(std::filesystem::path path, int64_t rows, int64_t cols);
  void append(std::span<const float> values);  // one row or several
  void close();                                // throws unless all rows are written to disk; without it the file may be incomplete

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::filesystem::path path_;
  int64_t rows_, cols_, written_ = 0;  // written_: rows
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace mr
