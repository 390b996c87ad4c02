#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

constexpr int max_depth = 200;  // of nested values: bounds every recursion over them

constexpr size_t max_weight = 10'000'000;

size_t add_weight(size_t sum, const Value& part) {
  sum += part.weight();
  check(sum <= max_weight, "a list or dict holds more than {} values", max_weight);
  return sum;
}

int nest(int child) {
  check(child < max_depth, "lists and dicts nest deeper than {}", max_depth);
  return child + 1;
}

std::string key_text(const Value& key) {
  if (key.is_string()) return fmt::format("s{}", key.string());
  if (key.is_integral()) return fmt::format("i{}", key.integer());
  if (key.is_float()) {
    double v = key.number();
    return v == std::floor(v) && std::abs(v) < 1e15 ? fmt::format("i{}", static_cast<int64_t>(v)) : fmt::format("f{}", v);
  }
  if (key.is_none()) return "n";
  if (key.is_list() && key.is_tuple()) return fmt::format("t{}", to_repr(key));
  fail("a {} cannot be the key of a dict", key.type_name());
}

void append_quoted(std::string& out, const std::string& text) {
  char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  out += quote;
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += quote;
}

void append_repr(std::string& out, const Value& value, int depth) {
  check(depth <= 2 * max_depth, "a value nests too deeply to be printed");
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.integer() ? "True" : "False";
  } else if (value.is_int()) {
    out += std::to_string(value.integer());
  } else if (value.is_float()) {
    out += float_text(value.number());
  } else if (value.is_string()) {
    append_quoted(out, value.string());
  } else if (value.is_list()) {
    out += value.is_tuple() ? '(' : '[';
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(out, value.items()[i], depth + 1);
    }
    if (value.is_tuple() && value.items().size() == 1) out += ',';
    out += value.is_tuple() ? ')' : ']';
  } else if (value.is_dict()) {
    out += '{';
    for (size_t i = 0; i < value.dict().entries.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(out, value.dict().entries[i].first, depth + 1);
      out += ": ";
      append_repr(out, value.dict().entries[i].second, depth + 1);
    }
    out += '}';
  } else if (value.is_namespace()) {
    out += "<Namespace>";
  } else {
    out += fmt::format("<{}>", value.callable().name);
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int level) {
    check(out.size() <= (size_t{64} << 20), "the JSON of a value is longer than 64 MiB");
    if (value.is_none()) {
      out += "null";
    } else if (value.is_bool()) {
      out += value.integer() ? "true" : "false";
    } else if (value.is_int()) {
      out += std::to_string(value.integer());
    } else if (value.is_float()) {
      write_float(value.number());
    } else if (value.is_string()) {
      write_string(value.string());
    } else if (value.is_list()) {
      write_all(value.items(), level, '[', ']', [&](const Value& item) { write(item, level + 1); });
    } else if (value.is_dict()) {
      write_dict(value.dict(), level);
    } else {
      fail("a {} cannot be written as JSON", value.type_name());
    }
  }

  std::string out;

 private:
  template <class Items, class Write>
  void write_all(const Items& items, int level, char open, char close, Write one) {
    out += open;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out += style_.indent < 0 ? style_.item_separator : trimmed_separator();
      first = false;
      new_line(level + 1);
      one(item);
    }
    if (!first) new_line(level);
    out += close;
  }

  // With an indent Python's default separator is "," before the new line.
  std::string trimmed_separator() const { return style_.item_separator == ", " ? "," : style_.item_separator; }

  void new_line(int level) {
    if (style_.indent >= 0) out.append("\n").append(static_cast<size_t>(level) * static_cast<size_t>(style_.indent), ' ');
  }

  void write_dict(const Dict& dict, int level) {
    auto entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    }
    write_all(entries, level, '{', '}', [&](const auto& entry) {
      const Value& key = entry.first;
      if (key.is_string()) {
        write_string(key.string());
      } else {
        JsonWriter inner(style_);
        inner.write(key, 0);
        write_string(inner.out);
      }
      out += style_.key_separator;
      write(entry.second, level + 1);
    });
  }

  void write_float(double value) {
    if (std::isnan(value)) {
      out += "NaN";
    } else if (std::isinf(value)) {
      out += value > 0 ? "Infinity" : "-Infinity";
    } else {
      out += float_text(value);
    }
  }

  void write_string(const std::string& text) {
    out += '"';
    for (size_t pos = 0; pos < text.size();) {
      size_t begin = pos;
      char32_t c = next_code_point(text, pos);
      switch (c) {
        case '"':
          out += "\\\"";
          break;
        case '\\':
          out += "\\\\";
          break;
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        case '\b':
          out += "\\b";
          break;
        case '\f':
          out += "\\f";
          break;
        default:
          if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
            out += c == 0x7F ? std::string("\x7f") : fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
          } else if (style_.ensure_ascii && c >= 0x10000) {
            uint32_t v = static_cast<uint32_t>(c) - 0x10000;
            out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
          } else {
            out.append(text, begin, pos - begin);
          }
      }
    }
    out += '"';
  }

  const JsonStyle& style_;
};

}  // namespace

Value::Value(std::vector<Value> items, bool tuple) {
  auto list = std::make_shared<List>();
  int deepest = 0;
  for (const Value& item : items) {
    deepest = std::max(deepest, item.depth());
    list->weight = add_weight(list->weight, item);
  }
  list->depth = nest(deepest);
  list->items = std::move(items);
  list->tuple = tuple;
  data_ = std::shared_ptr<const List>(std::move(list));
}

const std::vector<Value>& Value::items() const { return std::get<std::shared_ptr<const List>>(data_)->items; }
bool Value::is_tuple() const { return std::get<std::shared_ptr<const List>>(data_)->tuple; }
int Value::depth() const { return is_list() ? std::get<std::shared_ptr<const List>>(data_)->depth : is_dict() ? dict().depth : 0; }

size_t Value::weight() const {
  if (is_list()) return std::get<std::shared_ptr<const List>>(data_)->weight;
  if (is_dict()) return dict().weight;
  return is_string() ? 1 + string().size() / 64 : 1;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !items().empty();
  if (is_dict()) return !dict().entries.empty();
  return true;
}

const char* Value::type_name() const {
  static constexpr const char* names[] = {"Undefined", "NoneType", "bool", "int", "float", "str", "list", "dict", "Namespace", "function"};
  return names[data_.index()];
}

void Dict::set(const Value& key, Value value) {
  depth = std::max(depth, nest(value.depth()));
  weight = add_weight(add_weight(weight, key), value);
  auto [found, fresh] = index.try_emplace(key_text(key), entries.size());
  if (fresh) {
    entries.emplace_back(key, std::move(value));
  } else {
    entries[found->second].second = std::move(value);
  }
}

const Value* Dict::find(const Value& key) const {
  auto found = index.find(key_text(key));
  return found == index.end() ? nullptr : &entries[found->second].second;
}

const Value* Arguments::get(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.is_float() || b.is_float() ? a.number() == b.number() : a.integer() == b.integer();
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_list() && b.is_list()) {
    return a.is_tuple() == b.is_tuple() && std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), equal);
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().entries.size() != b.dict().entries.size()) return false;
    for (const auto& [key, value] : a.dict().entries) {
      const Value* other = b.dict().find(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  if (a.is_namespace() && b.is_namespace()) return &a.space() == &b.space();
  if (a.is_callable() && b.is_callable()) return &a.callable() == &b.callable();
  return false;
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (a.is_string() && b.is_string()) return a.string().compare(b.string());
  if (a.is_list() && b.is_list()) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      if (!equal(a.items()[i], b.items()[i])) return compare(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size();
  }
  fail("a {} and a {} have no order", a.type_name(), b.type_name());
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    check(item.is_string(), "a {} cannot be looked for in a string", item.type_name());
    return container.string().find(item.string()) != std::string::npos;
  }
  if (container.is_list()) {
    return std::any_of(container.items().begin(), container.items().end(), [&](const Value& v) { return equal(v, item); });
  }
  if (container.is_dict()) return container.dict().find(item) != nullptr;
  if (container.is_undefined()) return false;
  fail("nothing can be looked for in a {}", container.type_name());
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string to_string(const Value& value) {
  if (value.is_string()) return value.string();
  if (value.is_undefined()) return {};
  return to_repr(value);
}

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(out, value, 0);
  return out;
}

template <class J>
Value from_json(const J& json, int depth) {
  check(depth < max_depth, "the chat template's input nests deeper than {}", max_depth);
  switch (json.type()) {
    case J::value_t::boolean:
      return json.template get<bool>();
    case J::value_t::number_integer:
      return json.template get<int64_t>();
    case J::value_t::number_unsigned:
      return json.template get<uint64_t>() <= INT64_MAX ? Value(json.template get<int64_t>()) : Value(json.template get<double>());
    case J::value_t::number_float:
      return json.template get<double>();
    case J::value_t::string:
      return to_valid_utf8(json.template get_ref<const std::string&>());
    case J::value_t::array: {
      std::vector<Value> items;
      for (const J& item : json) items.push_back(from_json(item, depth + 1));
      return items;
    }
    case J::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items()) dict->set(to_valid_utf8(key), from_json(item, depth + 1));
      return std::shared_ptr<const Dict>(std::move(dict));
    }
    default:
      return Value();
  }
}

template Value from_json(const Json&, int);
template Value from_json(const OrderedJson&, int);

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

size_t length_of(std::string_view text) { return count_code_points(text); }

std::string substring(const std::string& text, int64_t begin, int64_t end) {
  auto byte_at = [&](size_t from, int64_t characters) {
    size_t pos = from;
    for (; characters > 0 && pos < text.size(); --characters) pos += code_point_length(static_cast<unsigned char>(text[pos]));
    return std::min(pos, text.size());
  };
  size_t first = byte_at(0, begin);
  return text.substr(first, byte_at(first, end - begin) - first);
}

}  // namespace mr::jinja
