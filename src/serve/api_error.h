// What a client is told when it asks for something that it cannot have.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "serve/http.h"

namespace mr {

// Becomes an answer of OpenAI's shape: {"error": {"message", "type", "param", "code"}}. Whatever of a client's text is in it is
// made printable here: it goes to logs and to other people's terminals.
struct ApiError : Error {
  static constexpr size_t max_message = 4 * max_printable, max_param = 100;  // bytes
  ApiError(int status, std::string_view message, std::string_view param = {}, std::string code = {})
      : Error(printable(message, max_message)), status(status), param(printable(param, max_param)), code(std::move(code)) {}
  int status;
  std::string param, code;  // empty: null
  std::string for_log;      // empty: the message; else the message may quote what is private
};

std::string error_body(const ApiError&);
HttpResponse error_response(const ApiError&);  // with the headers that its status asks for
ApiError api_error_of(const std::exception&);  // itself; 503 where memory ran out; else 500

// 400, what the client can mend.
template <class... Args>
[[noreturn]] void refuse(std::string_view param, fmt::format_string<Args...> text, Args&&... args) {
  throw ApiError(400, sentence(text, std::forward<Args>(args)...), param);
}

}  // namespace mr
