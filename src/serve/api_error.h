// What a client is told when it asks for something that it cannot have.
#pragma once

#include <string>
#include <utility>

#include "core/error.h"
#include "serve/http.h"

namespace mr {

// Becomes an answer of OpenAI's shape: {"error": {"message", "type", "param", "code"}}.
struct ApiError : Error {
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : Error(message), status(status), param(std::move(param)), code(std::move(code)) {}
  int status;
  std::string param, code;  // empty: null
};

std::string error_body(const ApiError&);
HttpResponse error_response(const ApiError&);  // with the headers that its status asks for
ApiError api_error_of(const std::exception&);  // itself; 503 where memory ran out; else 500

// 400, what the client can mend.
template <class... Args>
[[noreturn]] void refuse(std::string param, fmt::format_string<Args...> text, Args&&... args) {
  throw ApiError(400, fmt::format(text, std::forward<Args>(args)...), std::move(param));
}

}  // namespace mr
