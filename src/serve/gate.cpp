#include "serve/gate.h"

#include <algorithm>
#include <array>

#include "serve/api_error.h"

namespace mr {

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  volatile unsigned char differ = given.size() != secret.size();
  for (size_t i = 0; i < given.size(); i++) differ = differ | (given[i] ^ secret[secret.empty() ? 0 : i % secret.size()]);
  return differ == 0;
}

static std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

static bool is_number(std::string_view text, int most) {
  return !text.empty() && text.size() <= 5 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }) &&
         std::stoi(std::string(text)) <= most;
}

// host[:port] or [v6][:port], in lower case, without the port and a final dot. Empty: invalid.
static std::string host_of(std::string_view authority) {
  std::string host = lower_case(authority);
  const size_t end = host.starts_with('[') ? host.find(']') + 1 : std::min(host.find(':'), host.size());
  if (end == 0 || (end < host.size() && (host[end] != ':' || (end + 1 < host.size() && !is_number(host.substr(end + 1), 65535)))))
    return {};
  host.resize(end);
  if (host.ends_with('.')) host.pop_back();
  return host;
}

static bool is_dotted_loopback(std::string_view host) {  // 127.x.y.z
  if (!host.starts_with("127.")) return false;
  int n_parts = 0;
  for (size_t at = 0; at <= host.size(); n_parts++) {
    const size_t end = std::min(host.find('.', at), host.size());
    if (!is_number(host.substr(at, end - at), 255)) return false;
    at = end + 1;
  }
  return n_parts == 4;
}

bool is_loopback_name(std::string_view host) {
  return host == "localhost" || host.ends_with(".localhost") || host == "[::1]" || host == "::1" || is_dotted_loopback(host);
}

// host:port of https://host:port; empty for "null" and anything else.
static std::string authority_of(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == std::string_view::npos ? std::string() : lower_case(origin.substr(at + 3));
}

Gate::Gate(GateOptions options) : options_(std::move(options)) {
  std::vector<std::string>& hosts = options_.allowed_hosts;
  any_host_ = std::ranges::find(hosts, "*") != hosts.end() || (hosts.empty() && !is_loopback_name(lower_case(options_.listens_on)));
  for (std::string& host : hosts) host = host.starts_with('.') ? lower_case(host) : host_of(host);
}

bool Gate::is_allowed_host(std::string_view host) const {
  if (any_host_ || is_loopback_name(host)) return true;
  return std::ranges::any_of(options_.allowed_hosts, [&](std::string_view allowed) {
    return allowed.starts_with('.') ? host.ends_with(allowed) || host == allowed.substr(1) : !host.empty() && host == allowed;
  });
}

bool Gate::is_allowed_origin(std::string_view origin) const {
  return !origin.empty() && std::ranges::any_of(options_.allow_origins, [&](std::string_view allowed) {
    return allowed == "*" || lower_case(allowed) == lower_case(origin);
  });
}

// Programs may omit the Host; browsers never do.
void Gate::check_host(const HttpRequest& head) const {
  const std::string_view host = head.header("host");
  if (host.empty() || is_allowed_host(host_of(host))) return;
  throw ApiError(403, sentence("the Host '{}' is not a name of this server: --allowed-hosts names them", host.substr(0, 100)), "",
                 "host_not_allowed");
}

static bool is_json(std::string_view content_type) {
  const std::string type = lower_case(trimmed(content_type.substr(0, content_type.find(';'))));
  return type == "application/json" || (type.starts_with("application/") && type.ends_with("+json"));
}

// A page of another origin needs a preflight for JSON, which succeeds only if its origin is allowed.
void Gate::check_origin(const HttpRequest& head) const {
  const std::string_view origin = head.header("origin"), site = head.header("sec-fetch-site");
  const bool from_elsewhere = (!origin.empty() && authority_of(origin) != lower_case(head.header("host"))) || site == "cross-site";
  const bool reads_only = head.method == "GET" || head.method == "HEAD" || head.method == "OPTIONS";
  if (!from_elsewhere || reads_only || is_json(head.header("content-type"))) return;
  throw ApiError(403,
                 sentence("a page of another origin ('{}') has to send Content-Type: application/json, and --allow-origin has to name it",
                          origin.substr(0, 100)),
                 "", "origin_not_allowed");
}

void Gate::check_key(const HttpRequest& head) const {
  if (options_.api_key.empty() || std::ranges::find(options_.open_paths, head.path) != options_.open_paths.end()) return;
  constexpr std::string_view scheme = "bearer ";
  const std::string_view given = trimmed(head.header("authorization"));
  if (lower_case(given.substr(0, scheme.size())) == scheme &&
      equal_in_constant_time(trimmed(given.substr(scheme.size())), options_.api_key))
    return;
  throw ApiError(401, given.empty() ? "an API key is needed: Authorization: Bearer KEY" : "the API key is wrong", "", "invalid_api_key");
}

Headers Gate::cors_headers(const HttpRequest& head) const {
  const std::string_view origin = head.header("origin");
  if (options_.allow_origins.empty()) return {};
  if (!is_allowed_origin(origin)) return {{"Vary", "Origin"}};
  return {{"Access-Control-Allow-Origin", std::string(origin)},
          {"Access-Control-Expose-Headers", "Retry-After, X-Request-Id"},
          {"Vary", "Origin"}};
}

// Sent by OpenAI's clients in browsers.
static bool is_known_header(std::string_view name) {
  constexpr std::array known{"accept",          "authorization",       "cache-control", "content-type",
                             "idempotency-key", "last-event-id",       "openai-beta",   "openai-organization",
                             "openai-project",  "x-client-request-id", "x-request-id",  "x-requested-with"};
  return name.starts_with("x-stainless-") || std::ranges::find(known, name) != known.end();
}

HttpResponse Gate::preflight(const HttpRequest& head) const {
  std::string allowed;
  const std::string asked = lower_case(head.header("access-control-request-headers"));
  for (size_t at = 0; at < asked.size();) {
    const size_t end = std::min(asked.find(',', at), asked.size());
    const std::string_view name = trimmed(std::string_view(asked).substr(at, end - at));
    const bool is_token = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") == std::string_view::npos;
    if (is_token && is_known_header(name)) allowed += (allowed.empty() ? "" : ", ") + std::string(name);
    at = end + 1;
  }
  HttpResponse r{.status = 204, .headers = cors_headers(head)};
  r.headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST");
  r.headers.emplace_back("Access-Control-Allow-Headers", allowed.empty() ? "authorization, content-type" : allowed);
  r.headers.emplace_back("Access-Control-Max-Age", "600");
  if (head.header("access-control-request-private-network") == "true")
    r.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  return r;
}

std::optional<HttpResponse> Gate::check(const HttpRequest& head) const {
  try {
    check_host(head);
    check_origin(head);
    if (head.method == "OPTIONS" && is_allowed_origin(head.header("origin"))) return preflight(head);  // carries no key
    check_key(head);
    return {};
  } catch (const ApiError& e) {
    HttpResponse r = error_response(e);
    for (auto& header : cors_headers(head)) r.headers.push_back(std::move(header));
    return r;
  }
}

}  // namespace mr
