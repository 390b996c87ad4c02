// One HTTP answer of a server that may be anyone's, as its bytes come. For client.cpp alone: Beast takes long to compile.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "net/unreserved_body.h"

namespace mr {

class ResponseReader {
 public:
  static constexpr size_t max_unparsed = 1 << 20;  // bytes of a header, a chunk's extension or a trailer
  using OnBody = std::function<void(int status, std::string_view)>;

  explicit ResponseReader(OnBody on_body) : on_body_(std::move(on_body)) {
    parser_.body_limit(boost::none);
    parser_.eager(true);
  }

  // False: this is no valid HTTP. What comes after the end is left alone.
  bool feed(std::string_view bytes) {
    input_ += bytes;
    while (!input_.empty() && !parser_.is_done()) {
      boost::system::error_code bad;
      input_.erase(0, parse(bad));
      deliver();
      if (bad == boost::beast::http::error::need_more && input_.size() <= max_unparsed) break;
      if (bad) return false;
    }
    return true;
  }

  // The connection ends here: whether the answer is whole.
  bool finish() {
    boost::system::error_code bad;
    if (parser_.got_some()) parser_.put_eof(bad);
    return parser_.is_done() && !bad;
  }

  bool is_done() const { return parser_.is_done(); }
  int status() const { return parser_.is_header_done() ? int(parser_.get().result_int()) : 0; }  // 0: not known yet

 private:
  // Bytes that the parser took. It throws for trailers that are too long.
  size_t parse(boost::system::error_code& bad) {
    try {
      return parser_.put(boost::asio::buffer(input_), bad);
    } catch (const std::length_error&) {
      bad = boost::beast::http::error::header_limit;
      return 0;
    }
  }

  void deliver() {
    if (!parser_.is_header_done()) return;
    std::string& body = parser_.get().body();
    if (!body.empty()) on_body_(status(), body);
    body.clear();
  }

  OnBody on_body_;
  std::string input_;
  boost::beast::http::response_parser<UnreservedBody> parser_;
};

}  // namespace mr
