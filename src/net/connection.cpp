#include "net/connection.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <chrono>
#include <filesystem>

namespace mr {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
using tcp = asio::ip::tcp;
using Kind = NetError::Kind;

constexpr size_t kReadBytes = 1 << 17;

static bool is_address(const std::string& host) {
  boost::system::error_code bad;
  asio::ip::make_address(host, bad);
  return !bad;
}

static std::string base64(std::string_view text) {
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < text.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; j++) bits = bits << 8 | (i + j < text.size() ? uint8_t(text[i + j]) : 0);
    for (size_t j = 0; j < 4; j++) out += i + j > text.size() ? '=' : alphabet[bits >> (18 - 6 * j) & 63];
  }
  return out;
}

// The distribution's bundle: a program linked on another distribution has another default path.
static void trust_system(ssl::context& context) {
  boost::system::error_code ignored;
  context.set_default_verify_paths(ignored);  // SSL_CERT_FILE and SSL_CERT_DIR among them
  for (const char* bundle :
       {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    std::error_code missing;
    if (!std::filesystem::exists(X509_get_default_cert_file(), missing) && std::filesystem::exists(bundle, missing)) {
      context.load_verify_file(bundle, ignored);
      break;
    }
  }
}

Net::Net(const NetSettings& settings) : settings_(settings), trust_(ssl::context::tls_client) {
  trust_.set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  trust_system(trust_);
  if (!settings.ca_file.empty()) {
    boost::system::error_code failed;
    if (std::filesystem::is_directory(settings.ca_file))
      trust_.add_verify_path(settings.ca_file, failed);
    else
      trust_.load_verify_file(settings.ca_file, failed);
    check(!failed, "the certificates of '{}' cannot be read: {}", settings.ca_file, failed.message());
  }
}

std::shared_ptr<const Net> make_net(const NetSettings& settings) { return std::make_shared<Net>(settings); }

std::optional<Url> Net::proxy_for(const Url& url) const {
  const std::string& proxy = url.is_tls ? settings_.https_proxy : settings_.http_proxy;
  const bool is_loopback = url.host == "localhost" || url.host == "::1" || url.host.starts_with("127.");
  if (proxy.empty() || is_loopback || is_listed(settings_.no_proxy, url.host, url.port)) return std::nullopt;
  const Url address = parse_web_address(proxy.find("://") == proxy.npos ? "http://" + proxy : proxy);
  check(!address.is_tls, "the proxy '{}' speaks https, and only proxies that speak http are known", proxy);
  return address;
}

Connection::Connection(asio::io_context& io, std::shared_ptr<const Net> net, const Url& origin)
    : net_(std::move(net)),
      origin_(origin),
      proxy_(net_->proxy_for(origin)),
      resolver_(io),
      socket_(io),
      timer_(io),
      chunk_(kReadBytes, '\0') {}

auto Connection::mine(auto handler) {
  return [ self = shared_from_this(), turn = turn_, handler ](const error_code& ec, auto&&... rest)
    requires std::invocable<decltype(handler)&, const error_code&, decltype(rest)...>
  {
    if (self->is_busy_ && self->turn_ == turn) handler(ec, rest...);
  };
}

template <class Handler>
void Connection::async_read(Handler handler) {
  if (tls_)
    tls_->async_read_some(asio::buffer(chunk_), mine(handler));
  else
    socket_.async_read_some(asio::buffer(chunk_), mine(handler));
}

template <class Handler>
void Connection::async_write(const std::string& text, Handler handler) {
  if (tls_)
    asio::async_write(*tls_, asio::buffer(text), mine(handler));
  else
    asio::async_write(socket_, asio::buffer(text), mine(handler));
}

static std::string request_text(const HttpClient::Ask& a, const std::optional<Url>& proxy) {
  const bool whole = proxy && !a.url.is_tls;  // a proxy for plain http gets the absolute URL
  std::string where = a.url.origin().substr(a.url.is_tls ? 8 : 7);
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: millrace\r\nAccept: */*\r\nAccept-Encoding: identity\r\n",
                                 a.head_only ? "HEAD" : "GET", whole ? a.url.text() : a.url.target, where);
  if (whole && !proxy->user.empty()) text += fmt::format("Proxy-Authorization: Basic {}\r\n", base64(proxy->user));
  for (const auto& [name, value] : a.fields) text += fmt::format("{}: {}\r\n", name, value);
  return text + "\r\n";
}

static HttpHead head_of(const ResponseReader::Header& from) {
  HttpHead head{int(from.result_int()), {}};
  for (const auto& field : from) {
    std::string name(field.name_string());
    for (char& c : name) c = char(std::tolower(static_cast<unsigned char>(c)));
    head.fields[name] = std::string(field.value());
  }
  return head;
}

void Connection::ask(const HttpClient::Ask& a, Listener listener) {
  ask_ = a;
  listener_ = std::move(listener);
  request_ = request_text(a, proxy_);
  answer_.emplace([this](int, std::string_view bytes) { listener_.on_body(bytes); },
                  [this](const ResponseReader::Header& header) { return listener_.on_head(head_of(header)); }, a.head_only);
  got_some_ = false;
  is_busy_ = true;
  turn_++;
  addresses_.clear();
  restart_timer(ask_.timeout_s);
  is_ready_ ? send() : open();
}

// The TLS stream stays until the next open(): cancelled operations still refer to it.
void Connection::close() {
  error_code ignored;
  timer_.cancel();
  resolver_.cancel();
  socket_.close(ignored);
  is_ready_ = is_busy_ = false;
}

void Connection::end(std::optional<NetError> problem) {
  timer_.cancel();
  is_busy_ = false;
  if (problem) close();
  auto on_end = std::move(listener_.on_end);
  on_end(std::move(problem));
}

void Connection::fail_with(const std::string& why, NetError::Kind kind) { end(NetError(sentence("{} {}", origin_.origin(), why), kind)); }

void Connection::restart_timer(double seconds) {
  timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds)));
  timer_.async_wait([self = shared_from_this(), turn = turn_](error_code ec) {
    if (!ec && self->is_busy_ && self->turn_ == turn) self->on_silence();
  });
}

void Connection::on_silence() {
  error_code ignored;
  if (!addresses_.empty()) return void(socket_.close(ignored));  // which ends the attempt, and the next address is tried
  fail_with(fmt::format("is silent: no byte in {:g} s", ask_.timeout_s), Kind::cut);
}

void Connection::open() {
  tls_.reset();
  const Url& first = proxy_ ? *proxy_ : origin_;
  auto on_found = [this](error_code ec, const tcp::resolver::results_type& found) {
    for (const auto& entry : found) addresses_.push_back(entry.endpoint());
    if (!addresses_.empty()) return connect();
    const std::string whose = proxy_ ? "cannot be asked: its proxy " + proxy_->host : "is not found: its name " + origin_.host;
    fail_with(whose + " has no address (" + ec.message() + ")", Kind::unreachable);
  };
  resolver_.async_resolve(first.host, std::to_string(first.port), mine(on_found));
}

// One address after the other: a network may swallow what is sent to the first, as it does where IPv6 leads nowhere.
void Connection::connect() {
  constexpr double patience_s = 5;
  const tcp::endpoint address = addresses_.front();
  addresses_.pop_front();
  restart_timer(addresses_.empty() ? ask_.timeout_s : std::min(ask_.timeout_s, patience_s));
  auto on_connected = [this](error_code ec) {
    if (ec && !addresses_.empty()) return connect();
    addresses_.clear();
    const std::string who = proxy_ ? "cannot be asked: its proxy " + proxy_->authority() + " " : "";
    if (ec) return fail_with(who + "does not answer (" + ec.message() + ")", Kind::unreachable);
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    restart_timer(ask_.timeout_s);
    if (!origin_.is_tls) return send();
    proxy_ ? open_tunnel() : shake_hands();
  };
  error_code ignored;
  socket_.close(ignored);
  socket_.async_connect(address, mine(on_connected));
}

// CONNECT: the proxy forwards the bytes of a https connection.
void Connection::open_tunnel() {
  auto request = std::make_shared<std::string>(fmt::format("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n", origin_.authority()));
  if (!proxy_->user.empty()) *request += fmt::format("Proxy-Authorization: Basic {}\r\n", base64(proxy_->user));
  *request += "\r\n";
  auto answer = std::make_shared<std::string>();
  auto on_answer = [this, answer](error_code ec, size_t) {
    const std::string status = answer->substr(0, answer->find("\r\n"));  // HTTP/1.1 200 OK
    if (ec || status.size() < 12) return fail_with("cannot be asked: its proxy closed the connection", Kind::cut);
    if (status[9] != '2') return fail_with("cannot be asked: its proxy says " + printable(status.substr(9), 100), Kind::refused);
    shake_hands();
  };
  async_write(*request, [this, request, answer, on_answer](error_code ec, size_t) {
    if (ec) return fail_with("cannot be asked: its proxy closed the connection", Kind::cut);
    asio::async_read_until(socket_, asio::dynamic_buffer(*answer, 65536), "\r\n\r\n", mine(on_answer));
  });
}

// Why OpenSSL rejected the certificate; empty: it did not.
std::string Connection::certificate_problem() {
  const long result = SSL_get_verify_result(tls_->native_handle());
  return result == X509_V_OK ? "" : X509_verify_cert_error_string(result);
}

void Connection::shake_hands() {
  tls_.emplace(socket_, net_->trust());
  tls_->set_verify_mode(ssl::verify_peer);
  SSL* handle = tls_->native_handle();
  if (is_address(origin_.host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(handle), origin_.host.c_str());
  } else {
    SSL_set_tlsext_host_name(handle, origin_.host.c_str());
    SSL_set1_host(handle, origin_.host.c_str());
  }
  auto on_shaken = [this](error_code ec) {
    if (!ec) return send();
    const std::string problem = certificate_problem();
    if (problem.empty()) return fail_with("does not agree on an encrypted connection (" + ec.message() + ")", Kind::cut);
    const char* advice = " (the system's certificates decide, or those that SSL_CERT_FILE names)";
    fail_with("has a certificate that is not trusted here: " + problem + advice, Kind::refused);
  };
  tls_->async_handshake(ssl::stream_base::client, mine(on_shaken));
}

void Connection::send() {
  is_ready_ = true;
  restart_timer(ask_.timeout_s);
  // Reads while it writes: a server may answer before it has read the whole request.
  async_write(request_, [](error_code, size_t) {});
  read();
}

void Connection::read() {
  async_read([this](error_code ec, size_t n) { on_read(ec, n); });
}

void Connection::on_read(error_code ec, size_t n) {
  if (ec == asio::error::eof || ec == ssl::error::stream_truncated) {
    is_ready_ = false;
    if (answer_->finish()) return end(std::nullopt);
    return fail_with(got_some_ ? "cut the connection in the middle of an answer" : "closed the connection without an answer", Kind::cut);
  }
  if (ec) return fail_with("lost the connection (" + ec.message() + ")", Kind::cut);
  got_some_ = true;
  restart_timer(ask_.timeout_s);
  switch (answer_->feed({chunk_.data(), n})) {
    case ResponseReader::State::more:
      return read();
    case ResponseReader::State::invalid:
      return fail_with("answers with what is no valid HTTP", Kind::cut);
    case ResponseReader::State::unwanted:
      close();
      return end(std::nullopt);
    case ResponseReader::State::done:
      if (!answer_->keeps_alive()) close();
      return end(std::nullopt);
  }
}

}  // namespace mr
