#include "net/http_client.h"

#include "net/connection.h"

namespace mr {

namespace asio = boost::asio;

std::string HttpHead::field(const std::string& name) const {
  auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

struct HttpClient::Impl {
  std::shared_ptr<const Net> net;
  asio::io_context io{1};
  std::map<std::string, std::shared_ptr<Connection>> open;  // by origin

  // The error, if any.
  std::optional<NetError> ask(Connection& connection, const Ask& a, const OnHead& on_head, const OnBody& on_body, HttpHead& head) {
    std::optional<NetError> problem;
    auto note_head = [&](const HttpHead& h) {
      head = h;
      return on_head(h);
    };
    connection.ask(a, {note_head, on_body, [&](std::optional<NetError> p) { problem = std::move(p); }});
    io.restart();
    io.run();
    return problem;
  }
};

HttpClient::HttpClient(std::shared_ptr<const Net> net) : impl_(std::make_unique<Impl>(std::move(net))) {}
HttpClient::~HttpClient() = default;

HttpHead HttpClient::ask(const Ask& a, const OnHead& on_head, const OnBody& on_body) {
  std::shared_ptr<Connection>& connection = impl_->open[a.url.origin()];
  for (;;) {
    if (!connection) connection = std::make_shared<Connection>(impl_->io, impl_->net, a.url);
    const bool was_open = connection->is_open();
    HttpHead head;
    std::optional<NetError> problem;
    try {
      problem = impl_->ask(*connection, a, on_head, on_body, head);
    } catch (...) {
      connection->close();
      connection = nullptr;
      throw;
    }
    if (!problem) return head;
    const bool was_stale = was_open && !connection->got_some() && problem->kind == NetError::Kind::cut;  // closed by the server while idle
    connection = nullptr;
    if (!was_stale) throw *problem;
  }
}

}  // namespace mr
