// Incremental parser of one HTTP response of an untrusted server. For .cpp files of clients only: Beast takes long to compile.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "net/unreserved_body.h"

namespace mr {

class ResponseReader {
 public:
  static constexpr size_t max_unparsed = 1 << 20;   // bytes of a chunk's extension or a trailer
  static constexpr uint32_t max_header = 64 << 10;  // bytes of all fields: signed addresses and policies are long
  static constexpr int max_news = 16;               // 1xx responses before the final one
  using Header = boost::beast::http::response_header<>;
  using OnHead = std::function<bool(const Header&)>;  // false: the body is not wanted
  using OnBody = std::function<void(int status, std::string_view)>;
  enum class State { more, done, unwanted, invalid };

  explicit ResponseReader(OnBody on_body, OnHead on_head = {}, bool head_only = false)
      : on_body_(std::move(on_body)), on_head_(std::move(on_head)), head_only_(head_only) {
    expect_answer();
  }

  // Bytes after the end are not consumed.
  State feed(std::string_view bytes) {
    input_ += bytes;
    while (!input_.empty() && !parser_->is_done()) {
      boost::system::error_code bad;
      input_.erase(0, parse(bad));
      if (parser_->is_header_done() && status() < 200) {
        if (++n_news_ > max_news) return State::invalid;
        expect_answer();
        continue;
      }
      if (!deliver()) return State::unwanted;
      if (bad == boost::beast::http::error::need_more && input_.size() <= max_unparsed) break;
      if (bad) return State::invalid;
    }
    return parser_->is_done() ? State::done : State::more;
  }

  // At the end of the connection: whether the response is complete.
  bool finish() {
    boost::system::error_code bad;
    if (parser_->got_some()) parser_->put_eof(bad);
    return parser_->is_done() && !bad;
  }

  int status() const { return parser_->is_header_done() ? int(parser_->get().result_int()) : 0; }  // 0: not known yet
  // After a complete response: whether the connection can be reused.
  bool keeps_alive() const { return parser_->keep_alive() && input_.empty(); }

 private:
  void expect_answer() {
    parser_.emplace();
    parser_->body_limit(boost::none);
    parser_->header_limit(max_header);
    parser_->eager(true);
    parser_->skip(head_only_);
  }

  // Bytes consumed by the parser, which throws for trailers that are too long.
  size_t parse(boost::system::error_code& bad) {
    try {
      return parser_->put(boost::asio::buffer(input_), bad);
    } catch (const std::length_error&) {
      bad = boost::beast::http::error::header_limit;
      return 0;
    }
  }

  bool deliver() {
    if (!parser_->is_header_done()) return true;
    if (on_head_ && !std::exchange(told_head_, true) && !on_head_(parser_->get().base())) return false;
    std::string& body = parser_->get().body();
    if (!body.empty()) on_body_(status(), body);
    body.clear();
    return true;
  }

  OnBody on_body_;
  OnHead on_head_;
  const bool head_only_;
  std::string input_;
  std::optional<boost::beast::http::response_parser<UnreservedBody>> parser_;
  int n_news_ = 0;
  bool told_head_ = false;
};

}  // namespace mr
