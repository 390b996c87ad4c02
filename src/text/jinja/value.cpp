#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

constexpr int max_value_depth = 200;

int nest(int child) {
  check(child < max_value_depth, "values nest deeper than {}", max_value_depth);
  return child + 1;
}

Dict::Key number_key(const Value& key) {
  if (key.is_integral()) return {'i', key.integer(), {}};
  double v = key.number();
  if (v == std::floor(v) && std::abs(v) < 1e15) return {'i', static_cast<int64_t>(v), {}};
  return {'f', std::bit_cast<int64_t>(v), {}};
}

// For all keys but tuples.
Dict::Key plain_key(const Value& key) {
  if (key.is_string()) return {'s', 0, key.string()};
  if (key.is_number()) return number_key(key);
  if (key.is_none()) return {'n', 0, {}};
  fail("a {} cannot be the key of a dict", key.type_name());
}

bool is_tuple_key(const Value& key) { return key.is_list() && key.is_tuple(); }

Value tuple_text(Meter& meter, const Value& key) {
  Text text(meter);
  print_repr(text, key);
  return text;
}

}  // namespace

Value::Value(Text&& text) {
  Counted<Text> pays = text.get_allocator();
  data_ = std::shared_ptr<const Text>(std::allocate_shared<Text>(pays, std::move(text)));
}

Value::Value(Items&& items, bool tuple) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  Counted<List> pays = items.get_allocator();
  data_ = std::shared_ptr<const List>(std::allocate_shared<List>(pays, List{std::move(items), tuple, nest(deepest)}));
}

Value::Value(Dict&& dict) {
  Counted<Dict> pays = dict.entries.get_allocator();
  data_ = std::shared_ptr<const Dict>(std::allocate_shared<Dict>(pays, std::move(dict)));
}

Value::Value(Callable&& callable, Meter& meter) {
  callable.depth = nest(callable.self.depth());
  data_ = std::shared_ptr<const Callable>(std::allocate_shared<Callable>(Counted<Callable>(meter), std::move(callable)));
}

Value Value::undefined(Meter& meter, std::string_view name) {
  constexpr size_t most = 100;  // enough for a message
  name = name.substr(0, most);
  Value made;
  made.data_ = std::shared_ptr<const Undefined>(
      std::allocate_shared<Undefined>(Counted<Undefined>(meter), Undefined{Text(name, Counted<char>(meter))}));
  return made;
}

std::string_view Value::undefined_name() const { return std::get<std::shared_ptr<const Undefined>>(data_)->name; }
std::span<const Value> Value::items() const { return std::get<std::shared_ptr<const List>>(data_)->items; }
bool Value::is_tuple() const { return std::get<std::shared_ptr<const List>>(data_)->tuple; }

int Value::depth() const {
  if (is_list()) return std::get<std::shared_ptr<const List>>(data_)->depth;
  if (is_dict()) return dict().depth;
  if (is_loop()) return loop().depth;
  return is_callable() ? callable().depth : 0;
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
  static constexpr const char* names[] = {"Undefined", "NoneType", "bool",      "int",         "float",   "str",
                                          "list",      "dict",     "Namespace", "LoopContext", "function"};
  return names[data_.index()];
}

void Dict::set(const Value& key, Value value) {
  Meter& meter = *entries.get_allocator().meter;
  depth = std::max(depth, nest(std::max(key.depth(), value.depth())));
  Value tuple = is_tuple_key(key) ? tuple_text(meter, key) : Value();
  Key place = tuple.is_string() ? Key{'t', 0, tuple.string()} : plain_key(key);
  if (size_t old = locate(meter, place); old < entries.size()) {
    entries[old].second = std::move(value);
    return;
  }
  if (tuple.is_string()) tuples.push_back(tuple);
  index.emplace(place, entries.size());
  entries.emplace_back(key, std::move(value));
}

size_t Dict::locate(Meter& meter, const Key& key) const {
  meter.work(visit_cost + static_cast<size_t>(std::bit_width(entries.size())) * (8 + key.text.size() / 8));
  auto found = index.find(key);
  return found == index.end() ? entries.size() : found->second;
}

const Value* Dict::find(Meter& meter, const Value& key) const {
  Value tuple = is_tuple_key(key) ? tuple_text(meter, key) : Value();
  size_t at = locate(meter, tuple.is_string() ? Key{'t', 0, tuple.string()} : plain_key(key));
  return at < entries.size() ? &entries[at].second : nullptr;
}

const Value* Dict::find(Meter& meter, std::string_view key) const {
  size_t at = locate(meter, {'s', 0, key});
  return at < entries.size() ? &entries[at].second : nullptr;
}

const Value* Arguments::get(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

static bool equal_dicts(Meter& meter, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(meter, entry.first);
    return other != nullptr && equal(meter, entry.second, *other);
  });
}

bool equal(Meter& meter, const Value& a, const Value& b) {
  meter.work(visit_cost);
  if (a.is_number() && b.is_number()) return a.is_float() || b.is_float() ? a.number() == b.number() : a.integer() == b.integer();
  if (a.is_string() && b.is_string()) {
    if (a.string().size() != b.string().size()) return false;
    meter.work(a.string().size() / 8);
    return a.string() == b.string();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_list() && b.is_list()) {
    auto same = [&](const Value& x, const Value& y) { return equal(meter, x, y); };
    return a.is_tuple() == b.is_tuple() && std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), same);
  }
  if (a.is_dict() && b.is_dict()) return equal_dicts(meter, a.dict(), b.dict());
  if (a.is_namespace() && b.is_namespace()) return &a.space() == &b.space();
  if (a.is_loop() && b.is_loop()) return &a.loop() == &b.loop();
  if (a.is_callable() && b.is_callable()) return &a.callable() == &b.callable();
  return false;
}

int compare(Meter& meter, const Value& a, const Value& b) {
  meter.work(visit_cost);
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (a.is_string() && b.is_string()) {
    meter.work(std::min(a.string().size(), b.string().size()) / 8);
    return a.string().compare(b.string());
  }
  if (a.is_list() && b.is_list()) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      if (!equal(meter, a.items()[i], b.items()[i])) return compare(meter, a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size();
  }
  fail("a {} and a {} have no order", a.type_name(), b.type_name());
}

bool contains(Meter& meter, const Value& container, const Value& item) {
  if (container.is_string()) {
    check(item.is_string(), "a {} cannot be looked for in a string", item.type_name());
    return Search(meter, item.string()).first(container.string()) != std::string_view::npos;
  }
  if (container.is_list()) {
    return std::any_of(container.items().begin(), container.items().end(), [&](const Value& v) { return equal(meter, v, item); });
  }
  if (container.is_dict()) return container.dict().find(meter, item) != nullptr;
  if (container.is_undefined()) return false;
  fail("nothing can be looked for in a {}", container.type_name());
}

template <class J>
Value from_json(Meter& meter, const J& json, int depth) {
  check(depth < max_value_depth, "the chat template's input nests deeper than {}", max_value_depth);
  meter.work(visit_cost);
  auto text = [&](const std::string& raw) {
    meter.work(raw.size());
    return valid_utf8_prefix(raw) == raw.size() ? Value::text(meter, raw) : Value::text(meter, to_valid_utf8(raw));
  };
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
      return text(json.template get_ref<const std::string&>());
    case J::value_t::array: {
      Items items(meter);
      items.reserve(json.size());
      for (const J& item : json) items.push_back(from_json(meter, item, depth + 1));
      return items;
    }
    case J::value_t::object: {
      Dict dict(meter);
      for (const auto& [key, item] : json.items()) dict.set(text(key), from_json(meter, item, depth + 1));
      return dict;
    }
    default:
      return Value();
  }
}

template Value from_json(Meter&, const Json&, int);
template Value from_json(Meter&, const OrderedJson&, int);

Search::Search(Meter& meter, std::string_view wanted) : meter_(meter), wanted_(wanted), border_(meter) {
  if (wanted.size() < 2) return;
  meter.work(wanted.size() * 4);
  border_.resize(wanted.size() + 1);
  for (size_t n = 1, matched = 0; n < wanted.size(); ++n) {
    while (matched > 0 && wanted[n] != wanted[matched]) matched = border_[matched];
    if (wanted[n] == wanted[matched]) ++matched;
    border_[n + 1] = static_cast<uint32_t>(matched);
  }
}

size_t Search::run(std::string_view text, size_t pos, bool last) {
  constexpr size_t block = 4096;  // between charges
  size_t found = std::string_view::npos;
  if (pos > text.size()) return found;
  if (wanted_.empty()) return last ? text.size() : pos;
  for (size_t matched = 0; pos < text.size();) {
    if (matched == 0) {
      const void* hit = std::memchr(text.data() + pos, wanted_[0], std::min(block, text.size() - pos));
      size_t next = hit == nullptr ? std::min(pos + block, text.size()) : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
      meter_.work(8 + (next - pos) / 16);
      pos = next;
      if (hit == nullptr) continue;
    }
    meter_.work(4);
    if (text[pos] != wanted_[matched]) {
      matched = border_[matched];
      continue;
    }
    ++pos;
    if (++matched < wanted_.size()) continue;
    found = pos - matched;
    if (!last) return found;
    matched = matched > 1 ? border_[matched] : 0;
  }
  return found;
}

size_t length_of(Meter& meter, std::string_view text) {
  meter.work(8 + text.size());
  return count_code_points(text);
}

std::string_view substring(Meter& meter, std::string_view text, int64_t begin, int64_t end) {
  meter.work(8 + std::min(text.size(), static_cast<size_t>(std::max(begin, end))) * 4);
  auto byte_at = [&](size_t pos, int64_t characters) {
    for (; characters > 0 && pos < text.size(); --characters) pos += code_point_length(static_cast<unsigned char>(text[pos]));
    return std::min(pos, text.size());
  };
  size_t first = byte_at(0, begin);
  return text.substr(first, byte_at(first, end - begin) - first);
}

}  // namespace mr::jinja
