#include "serve/page.h"

#include <algorithm>

namespace mr {

// The page may only contact its own origin and only run its own script, whatever an answer of the model contains.
static const Headers page_headers = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cache-Control", "no-cache"},  // revalidated by ETag on every visit: a new build shows its page at once
};

std::optional<HttpResponse> page_response(const HttpRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") return std::nullopt;
  const auto files = page_files();
  const auto file = std::ranges::find(files, request.path, &PageFile::path);
  if (file == files.end()) return std::nullopt;
  HttpResponse response{.type = std::string(file->type), .headers = page_headers};
  response.headers.emplace_back("ETag", file->tag);
  const bool unchanged = request.header("if-none-match").find(file->tag) != std::string_view::npos;
  if (unchanged)
    response.status = 304;
  else
    response.body = file->bytes;
  return response;
}

}  // namespace mr
