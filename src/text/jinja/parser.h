// Tokens to statements, by recursive descent in the order of Jinja's own precedence.
#pragma once

#include <string>

#include "text/jinja/ast.h"

namespace mr::jinja {

Body parse(const std::string& source);

}  // namespace mr::jinja
