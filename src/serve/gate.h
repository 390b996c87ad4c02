// Who may ask, decided on the headers alone, before a body is read. Web pages of strangers are the reason for most of it: a browser
// lets any page send simple requests anywhere (so JSON's content type is asked for across origins: it takes a preflight), and a name
// that resolves to the loopback makes a page the server's own (so the Host has to be a name that the server goes by).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http.h"

namespace mr {

struct GateOptions {
  std::string listens_on;                  // the address; on a loopback one only loopback names are allowed unless others are named
  std::string api_key;                     // empty: everyone may ask
  std::vector<std::string> open_paths;     // that need no key
  std::vector<std::string> allow_origins;  // pages that may ask and read the answers; "*": all
  std::vector<std::string> allowed_hosts;  // besides loopback names; ".example.com": and all below; "*": any
};

class Gate {
 public:
  explicit Gate(GateOptions);

  // A refusal, or the answer to a preflight; nothing: it may pass.
  std::optional<HttpResponse> check(const HttpRequest& head) const;
  Headers cors_headers(const HttpRequest& head) const;  // for every answer; empty: its page may not read it

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

bool is_loopback_name(std::string_view host);  // localhost and all below, 127.0.0.0/8, ::1
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace mr
