// A hub's API: what is in a repository, and the bytes of its files. The token goes to the hub's own host alone, wherever that sends
// us for the bytes.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "hub/reference.h"
#include "hub/select.h"
#include "net/http_client.h"

namespace mr {

// The hub answered, and not with what was asked. `wait_s`: worth asking again after so long; below 0: not.
struct HubRefusal : Error {
  HubRefusal(const std::string& text, double wait_s) : Error(text), wait_s(wait_s) {}
  double wait_s;
};

class Endpoint {
 public:
  using OnWait = std::function<void(const std::string& why, double seconds)>;  // told before it waits to ask again
  Endpoint(const HubSettings&, std::shared_ptr<const Net>, OnWait);

  Repository list(const Reference&);                          // at the commit that the revision means now
  void complete(const Repository&, std::vector<HubFile>&);    // sizes and hashes that the listing did not have
  std::vector<std::string> search(const std::string& words);  // repositories of that name, those most in use first

  // Bytes from `begin` to `end` of a file, in pieces and in order, by a client of the caller's. Throws NetError and HubRefusal;
  // what was told until then is good.
  using OnBytes = std::function<void(std::string_view)>;
  void read(HttpClient&, const Repository&, const HubFile&, int64_t begin, int64_t end, const OnBytes&);

  // Repeats what fails in passing, a few times, with growing pauses.
  struct Patience {
    std::function<int64_t()> progress;  // counts: when it has moved, the patience is new
    std::function<bool()> is_over;      // nobody waits for it any more
  };
  void with_patience(const std::function<void()>& what, const Patience&) const;

  bool knows_ranges() const { return knows_ranges_; }  // false: it answered a range with the whole
  std::shared_ptr<const Net> net() const { return net_; }

 private:
  struct Answer {
    HttpHead head;
    std::string body;
  };
  Answer get(const std::string& path, const std::string& about);
  HttpHead follow(HttpClient&, HttpClient::Ask, const HttpClient::OnHead&, const HttpClient::OnBody&, Url& last,
                  HttpHead* first_redirect = nullptr) const;
  HubFile facts(const Repository&, const std::string& file);  // by HEAD
  Url place(const Repository&, const HubFile&);
  void note_place(const HubFile&, const std::optional<Url>&);

  HubSettings settings_;
  Url base_;
  std::shared_ptr<const Net> net_;
  OnWait on_wait_;
  HttpClient client_;
  std::atomic<bool> knows_ranges_{true};
  std::mutex mutex_;
  std::map<std::string, Url> places_;  // where a file's bytes were last found; such addresses expire
};

}  // namespace mr
