// The hash of a file's content, fed in pieces: SHA-256, or git's SHA-1 of a blob ("blob SIZE\0" before the content).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace mr {

class Digest {
 public:
  Digest(const std::string& expected, int64_t size);  // the length of `expected` selects the hash
  void add(std::string_view bytes);
  std::string hex();  // of everything added; call once

 private:
  struct Free {
    void operator()(evp_md_ctx_st*) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace mr
