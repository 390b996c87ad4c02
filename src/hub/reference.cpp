#include "hub/reference.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "core/printable.h"

namespace mr {

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 128; }

std::string ascii_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c + 32);
  return out;
}

std::string Reference::text() const { return repo + (select.empty() ? "" : ":" + select) + (revision.empty() ? "" : "@" + revision); }

static bool is_hexadecimal(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

bool is_commit(std::string_view text) { return text.size() == 40 && is_hexadecimal(text); }

bool is_blob_hash(std::string_view text) { return (text.size() == 40 || text.size() == 64) && is_hexadecimal(text); }

// Git's own rules for names of refs, a little stricter.
bool is_revision(std::string_view text) {
  if (text.empty() || text.size() > 200 || text.front() == '-' || text.front() == '/' || text.back() == '/' || text.back() == '.')
    return false;
  if (text.find("..") != text.npos || text.find("//") != text.npos || text.find("/.") != text.npos || text.front() == '.') return false;
  return std::ranges::all_of(text, [](char c) { return is_alnum(c) || std::string_view("._-/+#=").find(c) != std::string_view::npos; });
}

bool is_file_in_repository(std::string_view name) {
  if (name.empty() || name.size() > 1000 || name.find('\\') != name.npos || printable(name, name.size()) != name) return false;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    begin = end + 1;
  }
  return true;
}

// A hub's rule: letters, digits, '-', '_', '.'; no "--", which stands for '/' in the cache, and no "..".
static bool is_repository_word(std::string_view word) {
  if (word.empty() || word.size() > 96 || word.front() == '-' || word.front() == '.' || word.back() == '-' || word.back() == '.')
    return false;
  if (word.find("--") != word.npos || word.find("..") != word.npos) return false;
  return std::ranges::all_of(word, [](char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.'; });
}

// OWNER/NAME/blob/REVISION/FILE, as a browser's address line shows a file.
static std::optional<Reference> parse_page(std::string_view text) {
  std::array<std::string_view, 4> words;
  for (std::string_view& word : words) {
    const size_t slash = text.find('/');
    if (slash == text.npos) return std::nullopt;
    word = text.substr(0, slash);
    text.remove_prefix(slash + 1);
  }
  if (words[2] != "blob" && words[2] != "resolve" && words[2] != "tree") return std::nullopt;
  if (words[1].find_first_of(":@") != text.npos) return std::nullopt;  // OWNER/NAME:FILE, in folders of such names
  text = text.substr(0, text.find('?'));
  return Reference{std::string(words[0]) + "/" + std::string(words[1]), std::string(text), words[3] == "main" ? "" : std::string(words[3])};
}

static Reference parse_short(std::string_view text) {
  Reference r;
  auto take = [&text](size_t from) {  // up to the next separator
    const size_t end = std::min(text.find_first_of(":@", from), text.size());
    std::string word(text.substr(from, end - from));
    text.remove_prefix(end);
    return word;
  };
  r.repo = take(0);
  while (!text.empty()) {
    std::string& part = text.front() == ':' ? r.select : r.revision;
    if (!part.empty()) return {};
    part = take(1);
    if (part.empty()) return {};
  }
  return r;
}

std::optional<Reference> parse_reference(std::string_view text) {
  bool is_address = false;
  for (std::string_view front : {"https://", "http://", "hf://", "huggingface.co/", "hf.co/"})
    if (text.starts_with(front)) {
      text.remove_prefix(front.size());
      is_address = true;
    }
  while (is_address && text.ends_with('/')) text.remove_suffix(1);
  std::optional<Reference> page = parse_page(text);
  const Reference r = page ? *page : parse_short(text);
  const size_t slash = r.repo.find('/');
  if (slash == r.repo.npos) return std::nullopt;
  const std::string_view repo = r.repo;
  const bool good = is_repository_word(repo.substr(0, slash)) && is_repository_word(repo.substr(slash + 1)) &&
                    (r.select.empty() || is_file_in_repository(r.select)) && (r.revision.empty() || is_revision(r.revision));
  return good ? std::optional(r) : std::nullopt;
}

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
