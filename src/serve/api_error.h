// Errors that are reported to a client.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "serve/http.h"

namespace mr {

// Becomes a response in OpenAI's form: {"error": {"message", "type", "param", "code"}}. Text of the client in it is made printable
// here: it ends up in logs and in other people's terminals.
struct ApiError : Error {
  static constexpr size_t max_message = 4 * max_printable, max_param = 100;  // bytes
  ApiError(int status, std::string_view message, std::string_view param = {}, std::string code = {})
      : Error(printable(message, max_message)), status(status), param(printable(param, max_param)), code(std::move(code)) {}
  int status;
  std::string param, code;  // empty: null
  std::string for_log;      // empty: the message. Set where the message may quote private text
};

std::string error_body(const ApiError&);
HttpResponse error_response(const ApiError&);  // with the headers that its status requires
ApiError api_error_of(const std::exception&);  // itself; 503 where memory ran out; else 500

// 400: an error that the client can correct.
template <class... Args>
[[noreturn]] void refuse(std::string_view param, fmt::format_string<Args...> text, Args&&... args) {
  throw ApiError(400, sentence(text, std::forward<Args>(args)...), param);
}

}  // namespace mr
