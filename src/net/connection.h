// One keep-alive connection to a web server, one request at a time. Asynchronous; includes Boost.
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/http_client.h"
#include "net/response_reader.h"

namespace mr {

class Net {
 public:
  explicit Net(const NetSettings&);
  std::optional<Url> proxy_for(const Url&) const;
  boost::asio::ssl::context& trust() const { return trust_; }

 private:
  NetSettings settings_;
  mutable boost::asio::ssl::context trust_;  // streams may be created from it on any thread
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using error_code = boost::system::error_code;
  struct Listener {
    HttpClient::OnHead on_head;
    HttpClient::OnBody on_body;
    std::function<void(std::optional<NetError>)> on_end;  // once; none: the response is complete, or its body was not wanted
  };
  Connection(boost::asio::io_context&, std::shared_ptr<const Net>, const Url& origin);

  void ask(const HttpClient::Ask&, Listener);  // opens the connection if necessary; call again only after on_end
  void close();
  bool is_open() const { return is_ready_; }
  bool got_some() const { return got_some_; }  // bytes of the last response

 private:
  void open();
  void connect();
  void open_tunnel();
  void shake_hands();
  void send();
  void read();
  void on_read(error_code, size_t n);
  void end(std::optional<NetError>);
  void fail_with(const std::string& why, NetError::Kind);
  void restart_timer(double seconds);
  void on_silence();
  std::string certificate_problem();
  template <class Handler>
  void async_read(Handler);
  template <class Handler>
  void async_write(const std::string&, Handler);
  auto mine(auto handler);  // a handler that does nothing after its request has ended

  std::shared_ptr<const Net> net_;
  const Url origin_;
  const std::optional<Url> proxy_;
  boost::asio::ip::tcp::resolver resolver_;
  std::deque<boost::asio::ip::tcp::endpoint> addresses_;  // not tried yet
  boost::asio::ip::tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
  boost::asio::steady_timer timer_;
  std::optional<ResponseReader> answer_;
  Listener listener_;
  HttpClient::Ask ask_;
  std::string request_, chunk_;
  int turn_ = 0;  // counts requests: a late handler recognizes that it is stale
  bool is_ready_ = false, is_busy_ = false, got_some_ = false;
};

}  // namespace mr
