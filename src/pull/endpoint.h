// A hub's API: the listing of a repository, and the bytes of its files. The token is sent to the hub's own host only, never to
// where it redirects.
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

// The hub refused a request. `wait_s`: retry after that time; negative: do not retry.
struct HubRefusal : Error {
  HubRefusal(const std::string& text, double wait_s) : Error(text), wait_s(wait_s) {}
  double wait_s;
};

class Endpoint {
 public:
  using OnWait = std::function<void(const std::string& why, double seconds)>;  // called before waiting for a retry
  Endpoint(const HubSettings&, std::shared_ptr<const Net>, OnWait);

  Repository list(const Reference&);                          // at the current commit of the revision
  void complete(const Repository&, std::vector<HubFile>&);    // fills in sizes and hashes missing in the listing
  std::vector<std::string> search(const std::string& words);  // repositories of that name, most popular first

  // Bytes from `begin` to `end` of a file, in pieces and in order, over the caller's client. Throws NetError and HubRefusal; bytes
  // delivered before are valid.
  using OnBytes = std::function<void(std::string_view)>;
  void read(HttpClient&, const Repository&, const HubFile&, int64_t begin, int64_t end, const OnBytes&);

  // Retries transient failures, with backoff.
  struct Patience {
    std::function<int64_t()> progress;  // when it has advanced, the retries start over
    std::function<bool()> is_over;      // no longer needed
  };
  void with_patience(const std::function<void()>& what, const Patience&) const;

  bool knows_ranges() const { return knows_ranges_; }  // false: it answered a range with the whole file
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
  std::map<std::string, Url> places_;  // where a file's bytes were last found; these addresses expire
};

}  // namespace mr
