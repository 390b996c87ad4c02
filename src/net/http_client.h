// An HTTP client: http and https, proxies from the environment, keep-alive connections. A client belongs to one thread; clients share
// a Net. Only the .cpp files include Boost and OpenSSL.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "net/url.h"

namespace mr {

// No response, or an incomplete one.
struct NetError : Error {
  enum class Kind : uint8_t {
    cut,          // in the middle, or by a timeout: a retry helps
    unreachable,  // no such host, connection refused: a retry may help if it worked before
    refused,      // an untrusted certificate, a proxy's refusal: a retry does not help
  };
  NetError(const std::string& text, Kind kind) : Error(text), kind(kind) {}
  Kind kind;
};

struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> fields;               // names in lower case; the last of several
  std::string field(const std::string& lower_name) const;  // empty: there is none
};

class Net;  // proxies and trusted certificates
std::shared_ptr<const Net> make_net(const NetSettings&);

class HttpClient {
 public:
  struct Ask {
    Url url;
    std::vector<std::pair<std::string, std::string>> fields;
    bool head_only = false;  // HEAD instead of GET
    double timeout_s = 30;   // without a byte
  };
  using OnHead = std::function<bool(const HttpHead&)>;  // false: the body is not wanted
  using OnBody = std::function<void(std::string_view)>;

  explicit HttpClient(std::shared_ptr<const Net>);
  ~HttpClient();
  // Returns when the whole response was read; throws NetError, and what the callbacks throw. Does not follow redirects.
  HttpHead ask(const Ask&, const OnHead&, const OnBody&);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mr
