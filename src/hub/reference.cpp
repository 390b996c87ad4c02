#include "hub/reference.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "core/printable.h"

namespace mr {

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 128; }

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

// A hub's rule: letters, digits, '-', '_', '.'; no "--", which means '/' in the cache, and no "..".
static bool is_repository_word(std::string_view word) {
  if (word.empty() || word.size() > 96 || word.front() == '-' || word.front() == '.' || word.back() == '-' || word.back() == '.')
    return false;
  if (word.find("--") != word.npos || word.find("..") != word.npos) return false;
  return std::ranges::all_of(word, [](char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.'; });
}

// OWNER/NAME/blob/REVISION/FILE and OWNER/NAME/tree/REVISION, as in a browser's address bar.
static std::optional<Reference> parse_page(std::string_view text) {
  std::array<std::string_view, 4> words;
  for (std::string_view& word : words) {
    if (text.empty()) return std::nullopt;
    const size_t slash = std::min(text.find('/'), text.size());
    word = text.substr(0, slash);
    text.remove_prefix(std::min(slash + 1, text.size()));
  }
  if (words[2] != "blob" && words[2] != "resolve" && words[2] != "tree") return std::nullopt;
  if (words[1].find_first_of(":@") != text.npos) return std::nullopt;  // OWNER/NAME:FILE with folders of these names in FILE
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

}  // namespace mr
