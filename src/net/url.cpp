#include "net/url.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace mr {

static bool is_clean(std::string_view text) {  // nothing that could end a header line
  return std::ranges::all_of(text, [](unsigned char c) { return c > 32 && c != 127; });
}

// A name, or an IPv6 address with its zone. International names have to be given in punycode (xn--).
static bool is_host(std::string_view host) {
  const bool is_v6 = host.find(':') != host.npos;
  return host.size() <= 255 && std::ranges::all_of(host, [&](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || (is_v6 && (c == ':' || c == '%'));
         });
}

static int port_number(std::string_view text, std::string_view url) {
  const bool good = !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == text.npos;
  const int port = good ? std::stoi(std::string(text)) : 0;
  check(port >= 1 && port <= 65535, "'{}' has the port '{}', but ports are 1 to 65535", url, text);
  return port;
}

// %40 is @: a password may hold anything.
static std::string unquoted(std::string_view text) {
  auto digit = [](char c) {
    const size_t at = std::string_view("0123456789abcdefABCDEF").find(c);
    return at == std::string_view::npos ? -1 : int(at < 16 ? at : at - 6);
  };
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    const bool quoted = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += quoted ? char(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    i += quoted ? 2 : 0;
  }
  return out;
}

Url parse_web_address(std::string_view text) {
  check(text.size() <= 16384 && is_clean(text), "'{}' is not a web address", text);
  Url url;
  std::string_view rest = text;
  url.is_tls = rest.starts_with("https://");
  check(url.is_tls || rest.starts_with("http://"), "'{}' is not an address of the form https://HOST or http://HOST", text);
  rest.remove_prefix(url.is_tls ? 8 : 7);
  url.port = url.is_tls ? 443 : 80;
  const size_t end = std::min(rest.find_first_of("/?#"), rest.size());
  std::string_view host = rest.substr(0, end);
  rest.remove_prefix(end);
  rest = rest.substr(0, rest.find('#'));
  url.target = rest.starts_with('/') ? std::string(rest) : "/" + std::string(rest);
  if (const size_t at = host.rfind('@'); at != host.npos) {
    url.user = unquoted(host.substr(0, at));
    host.remove_prefix(at + 1);
  }
  if (const size_t colon = host.rfind(':'); colon != host.npos && host.find(']', colon) == host.npos) {
    url.port = port_number(host.substr(colon + 1), text);
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  check(!host.empty(), "'{}' names no host", text);
  url.host = host;
  std::ranges::transform(url.host, url.host.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  check(is_host(url.host), "'{}' has the host '{}', which is neither a name nor an address", text, host);
  return url;
}

std::string Url::authority() const { return fmt::format("{}:{}", host.find(':') == host.npos ? host : "[" + host + "]", port); }

std::string Url::origin() const {
  std::string where = authority();
  if (port == (is_tls ? 443 : 80)) where.resize(where.rfind(':'));
  return (is_tls ? "https://" : "http://") + where;
}

Url redirected(const Url& from, std::string_view location) {
  if (!location.starts_with('/') || location.starts_with("//"))
    return parse_web_address(location.starts_with("//") ? (from.is_tls ? "https:" : "http:") + std::string(location)
                                                        : std::string(location));
  check(is_clean(location), "'{}' is not a web address", location);
  Url to = from;
  to.target = location.substr(0, location.find('#'));
  return to;
}

std::string quoted_path(std::string_view path, bool keep_slashes) {
  std::string out;
  for (unsigned char c : path)
    if ((c < 128 && std::isalnum(c)) || std::string_view("-._~").find(char(c)) != std::string_view::npos || (c == '/' && keep_slashes))
      out += char(c);
    else
      out += fmt::format("%{:02X}", c);
  return out;
}

static bool is_host_below(const std::string& host, std::string_view name) {
  return host == name || (host.size() > name.size() && host.ends_with(name) && host[host.size() - name.size() - 1] == '.');
}

bool is_listed(std::string_view list, const std::string& host, int port) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find_first_of(", ", begin), list.size());
    std::string_view entry = list.substr(begin, end - begin);
    begin = end + 1;
    if (entry == "*") return true;
    if (const size_t colon = entry.rfind(':'); colon != entry.npos && entry.find(':') == colon) {
      if (entry.substr(colon + 1) != std::to_string(port)) continue;
      entry = entry.substr(0, colon);
    }
    while (entry.starts_with('.') || entry.starts_with('*')) entry.remove_prefix(1);
    if (!entry.empty() && is_host_below(host, entry)) return true;
  }
  return false;
}

}  // namespace mr
