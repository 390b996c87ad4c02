// Values as Python prints them, and as its json.dumps() writes them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "text/jinja/value.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

constexpr size_t print_cost = 32;  // of one value
constexpr size_t byte_cost = 4;    // of one byte that may need an escape
constexpr size_t float_cost = 160;

Meter& meter_of(const Text& out) { return *out.get_allocator().meter; }

void append_hex(Text& out, std::string_view prefix, uint32_t value, int digits) {
  out += prefix;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15];
}

void append_quoted(Text& out, std::string_view text) {
  meter_of(out).work(text.size() * byte_cost);
  char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
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
      append_hex(out, "\\x", byte, 2);
    } else {
      out += c;
    }
  }
  out += quote;
}

void append_list(Text& out, const Value& list) {
  out += list.is_tuple() ? '(' : '[';
  bool first = true;
  for (const Value& item : list.items()) {
    if (!first) out += ", ";
    first = false;
    print_repr(out, item);
  }
  if (list.is_tuple() && list.items().size() == 1) out += ',';
  out += list.is_tuple() ? ')' : ']';
}

void append_dict(Text& out, const Dict& dict) {
  out += '{';
  bool first = true;
  for (const auto& [key, value] : dict.entries) {
    if (!first) out += ", ";
    first = false;
    print_repr(out, key);
    out += ": ";
    print_repr(out, value);
  }
  out += '}';
}

class JsonWriter {
 public:
  JsonWriter(Meter& meter, const JsonStyle& style) : out(meter), meter_(meter), style_(style) {}

  void write(const Value& value, int level) {
    meter_.work(print_cost);
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

  Text out;

 private:
  using Entry = const std::pair<Value, Value>*;

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
  std::string_view trimmed_separator() const { return style_.item_separator == ", " ? "," : style_.item_separator; }

  void new_line(int level) {
    if (style_.indent >= 0) out.append("\n").append(static_cast<size_t>(level) * static_cast<size_t>(style_.indent), ' ');
  }

  void write_dict(const Dict& dict, int level) {
    std::vector<Entry, Counted<Entry>> entries(meter_);
    entries.reserve(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [&](Entry a, Entry b) { return compare(meter_, a->first, b->first) < 0; });
    write_all(entries, level, '{', '}', [&](Entry entry) {
      write_key(entry->first);
      out += style_.key_separator;
      write(entry->second, level + 1);
    });
  }

  void write_key(const Value& key) {
    if (key.is_string()) return write_string(key.string());
    check(!key.is_list(), "a tuple cannot be a key in JSON");
    JsonWriter inner(meter_, style_);
    inner.write(key, 0);
    write_string(inner.out);
  }

  void write_float(double value) {
    meter_.work(float_cost);
    if (std::isnan(value)) {
      out += "NaN";
    } else if (std::isinf(value)) {
      out += value > 0 ? "Infinity" : "-Infinity";
    } else {
      out += float_text(value);
    }
  }

  void write_string(std::string_view text) {
    meter_.work(text.size() * byte_cost);
    out += '"';
    for (size_t pos = 0; pos < text.size();) {
      size_t begin = pos;
      char32_t c = next_code_point(text, pos);
      static constexpr std::string_view escaped = "\"\\\n\r\t\b\f", letters = "\"\\nrtbf";
      size_t known = c < 0x80 ? escaped.find(static_cast<char>(c)) : std::string_view::npos;
      if (known != std::string_view::npos) {
        out += '\\';
        out += letters[known];
      } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7F)) {
        write_escape(static_cast<uint32_t>(c));
      } else {
        out.append(text.substr(begin, pos - begin));
      }
    }
    out += '"';
  }

  void write_escape(uint32_t c) {
    if (c < 0x10000) {
      append_hex(out, "\\u", c, 4);
    } else {
      append_hex(out, "\\u", 0xD800 + ((c - 0x10000) >> 10), 4);
      append_hex(out, "\\u", 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
    }
  }

  Meter& meter_;
  const JsonStyle& style_;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

void print_repr(Text& out, const Value& value) {
  meter_of(out).work(print_cost);
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.integer() ? "True" : "False";
  } else if (value.is_int()) {
    out += std::to_string(value.integer());
  } else if (value.is_float()) {
    meter_of(out).work(float_cost);
    out += float_text(value.number());
  } else if (value.is_string()) {
    append_quoted(out, value.string());
  } else if (value.is_list()) {
    append_list(out, value);
  } else if (value.is_dict()) {
    append_dict(out, value.dict());
  } else {
    out += '<';
    out += value.is_callable() ? value.callable().name : std::string_view(value.type_name());
    out += '>';
  }
}

void print(Text& out, const Value& value) {
  if (value.is_string()) {
    meter_of(out).work(value.string().size() / 8);
    out += value.string();
  } else if (!value.is_undefined()) {
    print_repr(out, value);
  }
}

Text to_json(Meter& meter, const Value& value, const JsonStyle& style) {
  JsonWriter writer(meter, style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace mr::jinja
