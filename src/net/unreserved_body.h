// A body for Beast's parser in clients of untrusted servers.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <cstdint>
#include <string>

namespace mr {

// The body's bytes until they are delivered. Beast's string_body would reserve whatever length a server announces.
struct UnreservedBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, std::string& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, boost::system::error_code& ec) { ec = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& ec) {
      ec = {};
      const size_t before = body_.size();
      for (auto it = boost::asio::buffer_sequence_begin(buffers); it != boost::asio::buffer_sequence_end(buffers); ++it)
        body_.append(static_cast<const char*>(it->data()), it->size());
      return body_.size() - before;
    }
    void finish(boost::system::error_code& ec) { ec = {}; }

   private:
    std::string& body_;
  };
};

}  // namespace mr
