// URLs with http or https.
#pragma once

#include <string>
#include <string_view>

namespace mr {

struct Url {
  bool is_tls = false;
  std::string host;  // IPv6 without its brackets
  int port = 80;
  std::string target = "/";       // path and query
  std::string user;               // name:password, for proxies; empty: none
  std::string origin() const;     // https://host, with the port unless it is the default
  std::string authority() const;  // host:port
  std::string text() const { return origin() + target; }
  bool same_origin(const Url& other) const { return is_tls == other.is_tls && host == other.host && port == other.port; }
};

Url parse_web_address(std::string_view text);                // throws Error if it is none
Url redirected(const Url& from, std::string_view location);  // `location` is a URL, or a path on the same host

std::string quoted_path(std::string_view path, bool keep_slashes = true);  // every byte but letters, digits and -._~ as %XX

// Whether a host is in a NO_PROXY list: "*", names (with their subdomains), with or without a leading dot, with or without a port.
bool is_listed(std::string_view no_proxy, const std::string& host, int port);

}  // namespace mr
