#include "io/file_names.h"

#include <cctype>

#include "core/words.h"

namespace mr {

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

PartName part_name(std::string_view stem) {
  constexpr std::string_view pattern = "-00000-of-00000";
  if (stem.size() <= pattern.size()) return {std::string(stem)};
  const std::string_view tail = stem.substr(stem.size() - pattern.size());
  for (size_t i = 0; i < pattern.size(); i++)
    if (pattern[i] == '0' ? !is_digit(tail[i]) : tail[i] != pattern[i]) return {std::string(stem)};
  return {std::string(stem.substr(0, stem.size() - pattern.size())), std::stoi(std::string(tail.substr(1, 5))),
          std::stoi(std::string(tail.substr(10, 5)))};
}

static std::string_view file_stem(std::string_view file) {
  if (const size_t slash = file.rfind('/'); slash != file.npos) file.remove_prefix(slash + 1);
  for (std::string_view ending : {".gguf", ".GGUF"})
    if (file.ends_with(ending)) file.remove_suffix(ending.size());
  return file;
}

static bool is_quantization(std::string_view word) {  // in capitals
  for (std::string_view name : {"BF16", "F16", "FP16", "F32", "FP32", "F64", "I2_S"})
    if (word == name) return true;
  for (std::string_view front : {"IQ", "TQ", "MXFP", "NVFP", "Q"})
    if (word.starts_with(front) && word.size() > front.size() && is_digit(word[front.size()])) return true;
  return false;
}

std::string quantization_of(std::string_view file) {
  const PartName name = part_name(file_stem(file));
  std::string_view rest = name.whole;
  size_t cut = rest.find_last_of("-.");
  auto capitals = [](std::string_view word) {
    std::string out(word);
    for (char& c : out) c = char(std::toupper(static_cast<unsigned char>(c)));
    return out;
  };
  const std::string last = capitals(cut == rest.npos ? rest : rest.substr(cut + 1));
  if (!is_quantization(last)) return "";
  if (cut == rest.npos) return last;
  rest = rest.substr(0, cut);
  cut = rest.find_last_of("-.");
  const bool dynamic = capitals(cut == rest.npos ? rest : rest.substr(cut + 1)) == "UD";
  return dynamic ? "UD-" + last : last;
}

bool is_language_gguf(std::string_view file) {
  const std::string stem = ascii_lower(file_stem(file));
  const std::string whole = ascii_lower(file);
  return whole.ends_with(".gguf") && stem.find("mmproj") == stem.npos && stem.find("imatrix") == stem.npos;
}

}  // namespace mr
