// Asks web servers: http and https, through proxies where the surroundings name one, on connections that are kept open. One client
// belongs to one thread; what clients share is a Net. Boost and OpenSSL are known to the .cpp files alone.
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

// No answer came, or not the whole of it.
struct NetError : Error {
  enum class Kind : uint8_t {
    cut,          // in the middle, or by silence: asking again helps
    unreachable,  // no such host, nobody listens: asking again may help where it worked before
    refused,      // a certificate that is not trusted, a proxy's no: asking again does not help
  };
  NetError(const std::string& text, Kind kind) : Error(text), kind(kind) {}
  Kind kind;
};

struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> fields;               // names in lower case; of several the last
  std::string field(const std::string& lower_name) const;  // empty: there is none
};

class Net;  // proxies, and whose certificates are trusted
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
  // Once the whole answer was read; throws NetError, and what the callbacks throw. Redirects are answers like others.
  HttpHead ask(const Ask&, const OnHead&, const OnBody&);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mr
