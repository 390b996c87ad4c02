#include "hub/listing.h"

#include <map>

#include "core/bounded_json.h"

namespace mr {

namespace {

constexpr JsonLimits limits{.depth = 32, .keys = 1 << 16, .values = 1 << 21, .bytes = size_t(512) << 20};
constexpr size_t max_error = 65536;  // bytes read of a refusal's body

std::string text_in(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
}

int64_t size_in(const Json& j) {
  if (!j.is_object() || !j.contains("size") || !j["size"].is_number_unsigned()) return -1;
  const uint64_t size = j["size"].get<uint64_t>();
  return size <= uint64_t(max_repository) ? int64_t(size) : -1;
}

HubFile file_in(const Json& sibling, const std::string& repo) {
  HubFile f{.name = text_in(sibling, "rfilename")};
  check(is_file_in_repository(f.name), "the hub says that {} has a file '{}', which does not lie in it: nothing was fetched", repo, f.name);
  const bool is_large = sibling.contains("lfs") && sibling["lfs"].is_object();
  f.size = is_large && size_in(sibling["lfs"]) >= 0 ? size_in(sibling["lfs"]) : size_in(sibling);
  f.hash = is_large ? text_in(sibling["lfs"], "sha256") : text_in(sibling, "blobId");
  if (is_large && f.hash.empty()) f.hash = text_in(sibling["lfs"], "oid");
  if (!is_blob_hash(f.hash)) f.hash.clear();
  return f;
}

}  // namespace

void check_sizes(std::span<const HubFile> files, const std::string& repo) {
  int64_t total = 0;
  std::map<std::string, int64_t> by_hash;
  for (const HubFile& f : files) {
    const bool is_known = !f.hash.empty() && f.size >= 0;
    check(!is_known || by_hash.emplace(f.hash, f.size).first->second == f.size,
          "the hub gives files of {} one hash and different sizes: nothing was fetched", repo);
    check(f.size <= max_repository - total, "the hub says that {} has more than {} bytes: nothing was fetched", repo, max_repository);
    total += std::max<int64_t>(f.size, 0);
  }
}

Repository read_listing(std::string_view text, const Reference& reference) {
  const std::string about = reference.repo + "@" + reference.revision_or_main();
  const Json listing = parse_json<Json>(text, sentence("the hub's listing of {}", about), limits);
  Repository r{.name = reference.repo, .commit = text_in(listing, "sha")};
  check(is_commit(r.commit), "the hub's listing of {} names no commit", about);
  check(listing.contains("siblings") && listing["siblings"].is_array(), "the hub's listing of {} has no files", about);
  for (const Json& sibling : listing["siblings"]) r.files.push_back(file_in(sibling, r.name));
  check_sizes(r.files, r.name);
  return r;
}

std::vector<std::string> read_search(std::string_view text) {
  const Json found = parse_json<Json>(text, "the hub's answer to a search", limits);
  std::vector<std::string> names;
  for (const Json& j : found)
    if (const std::string name = text_in(j, "id"); parse_reference(name)) names.push_back(name);
  return names;
}

std::string read_error(std::string_view text) {
  if (text.size() > max_error) return "";
  try {
    return text_in(parse_json<Json>(text, "the hub's refusal", limits), "error");
  } catch (const Error&) {
    return "";  // HTML
  }
}

}  // namespace mr
