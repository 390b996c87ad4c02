#include "pull/endpoint.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "hub/listing.h"

namespace mr {

namespace {

constexpr int kPatience = 5;          // attempts without progress
constexpr double kLongestWait = 120;  // seconds; the longest Retry-After that is honoured
constexpr int kRedirects = 8;
constexpr size_t kMaxListing = size_t(64) << 20;
constexpr size_t kMaxRefusal = size_t(1) << 20;  // bytes that come with a redirect or a refusal

bool is_redirect(int status) { return status == 301 || status == 302 || status == 303 || status == 307 || status == 308; }

// Seconds to wait after a 429 or 5xx; negative: do not retry.
double wait_after(const HttpHead& head) {
  if (head.status != 429 && head.status != 408 && head.status / 100 != 5) return -1;
  const std::string after = head.field("retry-after");
  const bool is_number = !after.empty() && after.size() < 8 && after.find_first_not_of("0123456789") == after.npos;
  return is_number ? std::stod(after) : 0;
}

std::string what_it_says(const HttpHead& head, const std::string& body) {
  std::string says = head.field("x-error-message");
  if (says.empty()) says = read_error(body);
  return says.empty() ? "" : ": " + says;
}

// `about`: OWNER/NAME, with the revision or the file.
std::string refusal_text(const HttpHead& head, const std::string& says, const std::string& endpoint, const std::string& about,
                         bool has_token) {
  const std::string code = head.field("x-error-code"), repo = about.substr(0, about.find_first_of(" @"));
  if (code == "GatedRepo" || head.status == 403)
    return sentence("{} is gated: accept its conditions at {}/{} and {}, then pull again ({}{})", repo, endpoint, repo,
                    has_token ? "see that HF_TOKEN belongs to that account and may read it" : "set HF_TOKEN to a token of that account",
                    head.status, says);
  if (code == "RevisionNotFound") return sentence("there is no {} at {}: the repository has no such revision", about, endpoint);
  if (head.status == 401)
    return sentence("{} wants a token before it says whether there is {}: {} ({}{})", endpoint, repo,
                    has_token ? "the one that is set (HF_TOKEN, or the login's file) is not accepted"
                              : "set HF_TOKEN if it is private or gated, else look at the spelling",
                    head.status, says);
  if (head.status == 404) return sentence("there is no {} at {}{}", about, endpoint, says);
  if (head.status == 429)
    return sentence("{} had too many requests from here{}{}", endpoint, has_token ? "" : "; with a token (HF_TOKEN) it allows more", says);
  return sentence("{} answers {} for {}{}", endpoint, head.status, about, says);
}

[[noreturn]] void refuse(const HttpHead& head, const std::string& body, const std::string& endpoint, const std::string& about,
                         bool has_token) {
  throw HubRefusal(refusal_text(head, what_it_says(head, body), endpoint, about, has_token), wait_after(head));
}

// Strips W/ and quotes.
std::string bare_tag(std::string tag) {
  if (tag.starts_with("W/")) tag.erase(0, 2);
  std::erase(tag, '"');
  return tag;
}

}  // namespace

Endpoint::Endpoint(const HubSettings& settings, std::shared_ptr<const Net> net, OnWait on_wait)
    : settings_(settings), base_(parse_web_address(settings.endpoint)), net_(net), on_wait_(std::move(on_wait)), client_(net) {
  check(std::ranges::all_of(settings_.token, [](unsigned char c) { return c > 32 && c < 127; }),
        "the hub's token (HF_TOKEN, or the login's file) has characters that no token has");
  while (base_.target.ends_with('/')) base_.target.pop_back();
}

// Sleeps in short intervals, so that it ends soon after is_over().
static void nap(double seconds, const std::function<bool()>& is_over) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (Clock::now() < end && !(is_over && is_over()))
    std::this_thread::sleep_for(std::min<Clock::duration>(end - Clock::now(), std::chrono::milliseconds(100)));
}

void Endpoint::with_patience(const std::function<void()>& what, const Patience& patience) const {
  int64_t reached = patience.progress ? patience.progress() : 0;
  for (int attempt = 1;; attempt++) {
    std::string why;
    double wait = 0;
    try {
      return what();
    } catch (const HubRefusal& e) {
      wait = e.wait_s;
      why = e.what();
      if (wait < 0 || attempt >= kPatience || (patience.is_over && patience.is_over())) throw;
      if (wait > kLongestWait) throw HubRefusal(sentence("{}; it asks to wait {:.0f} s", why, wait), wait);
    } catch (const NetError& e) {
      why = e.what();
      if (patience.progress && patience.progress() != reached) {
        reached = patience.progress();
        attempt = 1;
      }
      const bool helps = e.kind == NetError::Kind::cut || (e.kind == NetError::Kind::unreachable && patience.progress);
      if (!helps || attempt >= kPatience || (patience.is_over && patience.is_over())) throw;
    }
    wait = std::max(wait, 0.25 * double(1 << (attempt - 1)));
    if (on_wait_) on_wait_(why, wait);
    nap(wait, patience.is_over);
  }
}

// Follows redirects; `last` is set to the final address.
HttpHead Endpoint::follow(HttpClient& client, HttpClient::Ask ask, const HttpClient::OnHead& on_head, const HttpClient::OnBody& on_body,
                          Url& last, HttpHead* first_redirect) const {
  const auto fields = ask.fields;
  ask.timeout_s = settings_.timeout_s;
  for (int i = 0; i <= kRedirects; i++) {
    last = ask.url;
    ask.fields = fields;
    if (!settings_.token.empty() && ask.url.same_origin(base_)) ask.fields.emplace_back("Authorization", "Bearer " + settings_.token);
    bool redirects = false;
    size_t unread = 0;
    HttpHead head = client.ask(
        ask,
        [&](const HttpHead& h) {
          redirects = is_redirect(h.status) && !h.field("location").empty();
          return redirects || on_head(h);
        },
        [&](std::string_view bytes) {
          if (!redirects) return on_body(bytes);
          unread += bytes.size();
          check(unread <= kMaxRefusal, "{} redirects with more than {} bytes beside the address", ask.url.origin(), kMaxRefusal);
        });
    if (!redirects) return head;
    if (first_redirect && i == 0) *first_redirect = head;
    const Url next = redirected(ask.url, head.field("location"));
    check(next.is_tls || !ask.url.is_tls, "{} leads from https to plain http, to {}: not followed", ask.url.origin(), next.origin());
    ask.url = next;
  }
  fail("{} redirects more than {} times", ask.url.origin(), kRedirects);
}

Endpoint::Answer Endpoint::get(const std::string& path, const std::string& about) {
  Answer a;
  with_patience(
      [&] {
        a = {};
        HttpClient::Ask ask{.url = base_};
        ask.url.target += path;
        Url last;
        a.head = follow(
            client_, ask, [](const HttpHead&) { return true; },
            [&](std::string_view bytes) {
              a.body += bytes;
              check(a.body.size() <= kMaxListing, "{} answers with more than {} bytes for {}", settings_.endpoint, kMaxListing, about);
            },
            last);
        if (a.head.status != 200) refuse(a.head, a.body, settings_.endpoint, about, !settings_.token.empty());
      },
      {});
  return a;
}

HubFile Endpoint::facts(const Repository& r, const std::string& file) {
  HubFile f{.name = file};
  const std::string about = r.name + " " + file;
  with_patience(
      [&] {
        HttpClient::Ask ask{.url = base_, .head_only = true};
        ask.url.target += "/" + quoted_path(r.name) + "/resolve/" + r.commit + "/" + quoted_path(file);
        Url last;
        HttpHead linked;  // the hub's own response has the hash, even if it redirects for the bytes
        const HttpHead head = follow(
            client_, ask, [](const HttpHead&) { return true; }, [](std::string_view) {}, last, &linked);
        if (head.status != 200) refuse(head, "", settings_.endpoint, about, !settings_.token.empty());
        auto first_of = [](std::initializer_list<std::string> texts) {
          for (const std::string& t : texts)
            if (!t.empty()) return t;
          return std::string();
        };
        f.hash = bare_tag(first_of({linked.field("x-linked-etag"), head.field("x-linked-etag"), linked.field("etag"), head.field("etag")}));
        const std::string size = first_of({linked.field("x-linked-size"), head.field("content-length")});
        const bool is_number = !size.empty() && size.size() < 16 && size.find_first_not_of("0123456789") == size.npos;
        f.size = is_number ? std::stoll(size) : -1;
      },
      {});
  check(is_blob_hash(f.hash) && f.size >= 0, "{} does not say the size and the hash of {}, so it could not be checked", settings_.endpoint,
        about);
  return f;
}

Repository Endpoint::list(const Reference& reference) {
  const std::string revision = reference.revision_or_main(), about = reference.repo + "@" + revision;
  const Answer a = get("/api/models/" + quoted_path(reference.repo) + "/revision/" + quoted_path(revision, false) + "?blobs=true",
                       reference.revision.empty() ? reference.repo : about);
  return read_listing(a.body, reference);
}

void Endpoint::complete(const Repository& r, std::vector<HubFile>& files) {
  for (HubFile& f : files)
    if (f.hash.empty() || f.size < 0) f = facts(r, f.name);
  check_sizes(files, r.name);
}

std::vector<std::string> Endpoint::search(const std::string& words) {
  const Answer a =
      get("/api/models?search=" + quoted_path(words, false) + "&sort=downloads&direction=-1&limit=8&filter=text-generation", words);
  return read_search(a.body);
}

Url Endpoint::place(const Repository& r, const HubFile& f) {
  std::lock_guard lock(mutex_);
  if (auto found = places_.find(f.name); found != places_.end()) return found->second;
  Url url = base_;
  url.target += "/" + quoted_path(r.name) + "/resolve/" + r.commit + "/" + quoted_path(f.name);
  return url;
}

void Endpoint::note_place(const HubFile& f, const std::optional<Url>& url) {
  std::lock_guard lock(mutex_);
  if (url)
    places_[f.name] = *url;
  else
    places_.erase(f.name);
}

// The total size in "bytes 0-9/100"; -1: unknown.
static int64_t whole_size(const std::string& range) {
  const size_t slash = range.find('/');
  const std::string n = slash == range.npos ? "" : range.substr(slash + 1);
  return !n.empty() && n.size() < 16 && n.find_first_not_of("0123456789") == n.npos ? std::stoll(n) : -1;
}

void Endpoint::read(HttpClient& client, const Repository& r, const HubFile& f, int64_t begin, int64_t end, const OnBytes& on_bytes) {
  const std::string about = r.name + " " + f.name;
  HttpClient::Ask ask{.url = place(r, f)};
  const bool was_known = !ask.url.same_origin(base_);
  if (begin > 0 || end < f.size) ask.fields.emplace_back("Range", fmt::format("bytes={}-{}", begin, end - 1));
  int64_t at = 0, skip = 0;
  std::string refusal;
  size_t n_refusal = 0;
  bool good = false;
  auto on_head = [&](const HttpHead& h) {
    good = h.status == 200 || h.status == 206;
    if (!good) return true;
    const std::string length = h.field("content-length");
    const int64_t size = h.status == 206  ? whole_size(h.field("content-range"))
                         : length.empty() ? -1
                                          : std::stoll("0" + length.substr(0, 15));
    if (size >= 0 && size != f.size)
      throw HubRefusal(sentence("{} has {} bytes, though the hub lists it with {}: nothing of it was kept", about, size, f.size), -1);
    if (h.status == 206 && !h.field("content-range").starts_with(fmt::format("bytes {}-", begin)))
      throw HubRefusal(sentence("{} sends other bytes of {} than were asked for", settings_.endpoint, about), -1);
    skip = h.status == 200 ? begin : 0;
    if (h.status == 200 && (begin > 0 || end < f.size)) knows_ranges_ = false;
    at = h.status == 200 ? 0 : begin;
    return true;
  };
  auto on_body = [&](std::string_view bytes) {
    if (!good) {
      refusal += bytes.substr(0, 65536 - std::min<size_t>(65536, refusal.size()));
      n_refusal += bytes.size();
      check(n_refusal <= kMaxRefusal, "{} refuses {} with more than {} bytes", settings_.endpoint, about, kMaxRefusal);
      return;
    }
    const auto unwanted = size_t(std::min<int64_t>(skip, int64_t(bytes.size())));
    skip -= int64_t(unwanted);
    at += int64_t(bytes.size());
    bytes.remove_prefix(unwanted);
    if (at > f.size) throw HubRefusal(sentence("{} sends more bytes of {} than the {} that it has", settings_.endpoint, about, f.size), -1);
    if (!bytes.empty()) on_bytes(bytes);
  };
  Url last;
  const HttpHead head = follow(client, ask, on_head, on_body, last);
  if (good) {
    note_place(f, last.same_origin(base_) ? std::nullopt : std::optional(last));
    if (at < end) throw NetError(sentence("{} ends {} early", last.origin(), about), NetError::Kind::cut);
    return;
  }
  note_place(f, std::nullopt);
  if (was_known && head.status / 100 == 4)
    throw NetError(sentence("the address of {} at {} has expired", about, last.origin()), NetError::Kind::cut);
  if (head.status == 416) throw HubRefusal(sentence("{} has fewer bytes than the {} that the hub lists", about, f.size), -1);
  refuse(head, refusal, settings_.endpoint, about, !settings_.token.empty());
}

}  // namespace mr
