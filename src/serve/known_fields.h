// The names that a request's fields may have. A name that nobody knows is an error, with the nearest one that is known: a misspelt
// field would be an answer to another question.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/json.h"

namespace mr {

using FieldNames = std::span<const std::string_view>;

FieldNames chat_fields();
FieldNames completion_fields();
FieldNames tokenize_fields();
FieldNames detokenize_fields();

// Throws a 400 that names the field, or tells `on_unknown`, where it is given, and goes on. Fields of other servers that are not
// supported here are an error only where they ask for something.
void check_fields(const OrderedJson& body, FieldNames known, const std::function<void(const std::string&)>& on_unknown = {});

}  // namespace mr
