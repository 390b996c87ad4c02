#include "serve/api_error.h"

#include <new>

#include "core/json.h"

namespace mr {

static const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string error_body(const ApiError& e) {
  OrderedJson error{{"message", e.what()}, {"type", type_of(e.status)}, {"param", nullptr}, {"code", nullptr}};
  if (!e.param.empty()) error["param"] = e.param;
  if (!e.code.empty()) error["code"] = e.code;
  OrderedJson body;
  body["error"] = std::move(error);
  return body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

HttpResponse error_response(const ApiError& e) {
  HttpResponse r{.status = e.status, .body = error_body(e), .error = e.for_log.empty() ? e.what() : e.for_log};
  if (e.status == 429 || e.status == 503) r.headers.emplace_back("Retry-After", "1");
  if (e.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (e.status == 405) r.headers.emplace_back("Allow", e.param);
  return r;
}

ApiError api_error_of(const std::exception& e) {
  if (auto* api = dynamic_cast<const ApiError*>(&e)) return *api;
  if (dynamic_cast<const std::bad_alloc*>(&e)) return {503, "there is not enough memory for this request now", "", "no_memory"};
  return {500, e.what()};
}

}  // namespace mr
