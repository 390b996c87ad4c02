// Incremental parser of one HTTP/1.1 request body, by Content-Length or chunked (RFC 9112, 7.1). Strict: framing that a proxy could
// parse differently is an error (request smuggling). Extensions and trailers are skipped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "serve/memory_budget.h"

namespace mr {

class BodyReader {
 public:
  struct Limits {
    size_t body = 0;
    size_t framing = 0;  // bytes of all extensions and trailers
  };
  enum class Status { more, done, broken, too_large, too_much_framing, no_memory };

  // Without a length: chunked.
  BodyReader(std::optional<uint64_t> length, const Limits&, Charge);

  // Consumes the bytes that belong to the body and returns their number. After no_memory the rest may be fed again later.
  size_t feed(std::string_view bytes);
  Status status() const { return status_; }

  std::string body;
  Charge charge;  // for the body's buffer

 private:
  enum class At : uint8_t {
    data,
    size,
    size_space,
    extension,
    size_lf,
    data_cr,
    data_lf,
    trailer_begin,
    trailer_name,
    trailer,
    trailer_lf,
    end_lf
  };

  size_t take_data(std::string_view);
  void take(char);
  void take_size(char);
  void take_after_size(char);
  void take_trailer_name(char);
  void skip(char c, At here, At after_cr);
  void expect(char c, char wanted, At next);
  bool reserve(size_t n);

  const Limits limits_;
  const bool chunked_;
  Status status_ = Status::more;
  At at_;
  uint64_t n_left_ = 0;   // of the current chunk
  uint64_t n_total_ = 0;  // announced so far
  int n_digits_ = 0;      // of the chunk's size
  size_t n_framing_ = 0;
};

}  // namespace mr
