// Shared by the structure-aware mutators: a small generator, absurd numbers, and mutations of JSON that keep it valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace mr::fuzz {

// The parts of `text` between separators; a line may end after one.
std::vector<std::string_view> words(std::string_view text, std::string_view separators = " \n");

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  size_t pick(size_t n) { return n == 0 ? 0 : size_t(next() % n); }
  bool chance(size_t one_in) { return pick(one_in) == 0; }
  template <class T, size_t N>
  const T& of(const T (&list)[N]) {
    return list[pick(N)];
  }

 private:
  uint64_t state_;
};

uint64_t absurd_number(Random&, uint64_t near);  // ends of ranges, powers of two, neighbours of `near`

// The fuzzer's own mutations on the bytes of `text`.
std::string mutate_bytes(std::string text, size_t max_size);

// One to three changes of a JSON text: values replaced, copied, dropped, wrapped; keys renamed to one of `words`. Invalid
// JSON is mutated as bytes.
std::string mutate_json(std::string text, std::span<const std::string_view> words, Random&, size_t max_size);

// Mutates the header as JSON; its length and the data after it usually stay consistent.
std::string mutate_safetensors(std::string file, std::span<const std::string_view> words, Random&, size_t max_size);

// Mutates a part or a record; the counts usually stay consistent.
std::string mutate_gguf(std::string file, Random&, size_t max_size);

// Inserts a word somewhere, or applies the fuzzer's own mutations. For LLVMFuzzerCustomMutator, like write_back().
size_t insert_word(uint8_t* data, size_t size, size_t max_size, std::span<const std::string_view> words, Random&);

size_t write_back(const std::string& text, uint8_t* data, size_t max_size);

}  // namespace mr::fuzz
