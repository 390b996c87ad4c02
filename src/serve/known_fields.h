// The known names of request fields. An unknown one is an error that suggests the nearest: ignoring a misspelt field would answer
// another question.
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

// Throws a 400 that names the field, or, if `on_unknown` is given, calls that and continues. Fields that only other servers support
// are an error unless they have their neutral value.
void check_fields(const OrderedJson& body, FieldNames known, const std::function<void(const std::string&)>& on_unknown = {});

}  // namespace mr
