#include "core/bounded_json.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"

namespace mr {

namespace {

constexpr size_t heap_bytes = 48;  // of a string, list or object on the heap, with malloc's overhead

// Builds the document from the parser's events. False from an event stops the parser; `error` says why.
template <class J>
class Builder {
 public:
  using number_integer_t = typename J::number_integer_t;
  using number_unsigned_t = typename J::number_unsigned_t;
  using number_float_t = typename J::number_float_t;
  using string_t = typename J::string_t;
  using binary_t = typename J::binary_t;

  Builder(const JsonLimits& limits, const OnGrowth& on_growth) : limits_(limits), on_growth_(on_growth) {}

  bool null() { return add(nullptr); }
  bool boolean(bool x) { return add(x); }
  bool number_integer(number_integer_t x) { return add(x); }
  bool number_unsigned(number_unsigned_t x) { return add(x); }
  bool number_float(number_float_t x, const string_t&) { return add(x); }
  bool string(string_t& x) { return charge(heap_bytes + x.size()) && add(std::move(x)); }
  bool binary(binary_t&) { return stop("holds binary data"); }  // does not occur in text
  bool start_object(size_t) { return open(J::object()); }
  bool start_array(size_t) { return open(J::array()); }

  bool key(string_t& name) {
    if (open_.back().json->size() >= limits_.keys) return stop("has an object with more than {} keys", limits_.keys);
    if (!charge(sizeof(string_t) + name.size())) return false;
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() {
    std::optional<std::string> twice = duplicate(open_.back().json->template get_ref<const typename J::object_t&>());
    if (twice) return stop("has an object with the key '{}' twice", twice->substr(0, 100));
    return end_array();
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) {
    if (e.id == 406) return stop("is not valid JSON: a number is out of every range");
    return stop("is not valid JSON: something is wrong at byte {}", byte);
  }

  J document;
  std::string error;

 private:
  struct Open {
    J* json;
    string_t key;  // of the next value
  };

  template <class... Args>
  bool stop(fmt::format_string<Args...> text, Args&&... args) {
    error = fmt::format(text, std::forward<Args>(args)...);
    return false;
  }

  bool charge(size_t bytes) {
    n_bytes_ += bytes;
    if (n_bytes_ > limits_.bytes) return stop("takes more than {} bytes of memory", limits_.bytes);
    if (on_growth_ && n_bytes_ > n_told_) on_growth_(n_told_ = n_bytes_ + n_bytes_ / 8 + 4096);
    return true;
  }

  bool add(J value) { return place(std::move(value)) != nullptr; }

  bool open(J value) {
    if (open_.size() >= size_t(limits_.depth)) return stop("nests more than {} levels deep", limits_.depth);
    if (!charge(heap_bytes)) return false;
    J* placed = place(std::move(value));
    if (placed) open_.push_back({placed, {}});
    return placed != nullptr;
  }

  // Null: a limit was reached. The pointer is stable while the value is open: its list or object does not grow meanwhile.
  J* place(J value) {
    if (++n_values_ > limits_.values) {
      stop("holds more than {} values", limits_.values);
      return nullptr;
    }
    if (!charge(sizeof(J))) return nullptr;
    if (open_.empty()) {
      document = std::move(value);
      return &document;
    }
    Open& parent = open_.back();
    if (parent.json->is_array()) {
      auto& list = parent.json->template get_ref<typename J::array_t&>();
      return &list.emplace_back(std::move(value));
    }
    return insert(parent.json->template get_ref<typename J::object_t&>(), parent.key, std::move(value));
  }

  static OrderedJson* insert(OrderedJson::object_t& object, std::string& key, OrderedJson value) {
    // The map's own emplace() would search for the key.
    return &object.OrderedJson::object_t::Container::emplace_back(std::move(key), std::move(value)).second;
  }
  Json* insert(Json::object_t& object, std::string& key, Json value) {
    auto [at, fresh] = object.try_emplace(std::move(key), std::move(value));
    if (!fresh) stop("has an object with the key '{}' twice", at->first.substr(0, 100));
    return fresh ? &at->second : nullptr;
  }

  static std::optional<std::string> duplicate(const OrderedJson::object_t& object) {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const auto& [key, value] : object) keys.push_back(key);
    std::ranges::sort(keys);
    auto twice = std::ranges::adjacent_find(keys);
    return twice == keys.end() ? std::nullopt : std::optional<std::string>(*twice);
  }
  static std::optional<std::string> duplicate(const Json::object_t&) { return {}; }  // insert() has checked it

  const JsonLimits& limits_;
  const OnGrowth& on_growth_;
  std::vector<Open> open_;
  size_t n_values_ = 0, n_bytes_ = 0, n_told_ = 0;
};

}  // namespace

template <class AnyJson>
AnyJson parse_json(std::string_view text, std::string_view what, const JsonLimits& limits, const OnGrowth& on_growth) {
  Builder<AnyJson> builder(limits, on_growth);
  bool whole = AnyJson::sax_parse(text, &builder);
  check(whole, "{} {}", what, builder.error);
  return std::move(builder.document);
}

template Json parse_json(std::string_view, std::string_view, const JsonLimits&, const OnGrowth&);
template OrderedJson parse_json(std::string_view, std::string_view, const JsonLimits&, const OnGrowth&);

}  // namespace mr
