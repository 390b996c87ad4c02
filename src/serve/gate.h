// Access control by the headers alone, before a body is read. Most of it is against hostile web pages: a browser lets any page send
// simple requests anywhere (CSRF; so cross-origin requests need JSON's content type, which takes a preflight), and a name that resolves
// to the loopback makes a page same-origin (DNS rebinding; so the Host has to be one of the server's names).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http.h"

namespace mr {

struct GateOptions {
  std::string listens_on;                  // the address; on a loopback address only loopback names are allowed by default
  std::string api_key;                     // empty: none is needed
  std::vector<std::string> open_paths;     // need no key
  std::vector<std::string> allow_origins;  // pages that may send requests and read the answers; "*": all
  std::vector<std::string> allowed_hosts;  // besides loopback names; ".example.com": with all subdomains; "*": any
};

class Gate {
 public:
  explicit Gate(GateOptions);

  // A refusal, or the answer to a preflight; none: the request may pass.
  std::optional<HttpResponse> check(const HttpRequest& head) const;
  Headers cors_headers(const HttpRequest& head) const;  // for every response; empty: the page may not read it

 private:
  bool is_allowed_host(std::string_view host) const;
  bool is_allowed_origin(std::string_view origin) const;
  void check_host(const HttpRequest&) const;
  void check_origin(const HttpRequest&) const;
  void check_key(const HttpRequest&) const;
  HttpResponse preflight(const HttpRequest&) const;

  GateOptions options_;
  bool any_host_;
};

bool is_loopback_name(std::string_view host);  // localhost with its subdomains, 127.0.0.0/8, ::1
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace mr
