// What a hub and its mirrors say, and what people type for a model's name: listings, searches, refusals, references, addresses and
// redirects. Whatever becomes a path stays inside the cache, whatever becomes a request stays one line, and sums of sizes do not overflow.
#include <filesystem>

#include "fuzz/input.h"
#include "fuzz/mutate.h"
#include "hub/listing.h"
#include "io/file_names.h"
#include "net/url.h"

using namespace mr;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

bool stays_inside(const std::string& name) {
  const std::filesystem::path path(name);
  for (const auto& part : path)
    if (part == ".." || part == ".") return false;
  return !name.empty() && !path.is_absolute() && path.lexically_normal() == path && name.find_first_of("\n\r\x1b\x7f") == name.npos;
}

void check_listing(std::string_view text, const std::string& select) {
  const Repository r = read_listing(text, {.repo = "a/b"});
  __int128 total = 0;
  for (const HubFile& f : r.files) {
    require(stays_inside(f.name) && f.size >= -1 && (f.hash.empty() || f.hash.size() == 40 || f.hash.size() == 64));
    total += f.size > 0 ? f.size : 0;
  }
  require(total <= max_repository && r.commit.size() == 40);
  try {
    require(!choose_files(r, select).empty());
  } catch (const SeveralModels& e) {
    for (const SeveralModels::Option& option : e.options) require(option.bytes >= 0 && option.bytes <= max_repository);
  }
}

void check_reference(const std::string& text) {
  (void)quantization_of(text);
  const PartName part = part_name(text);
  require(part.whole.size() <= text.size() && part.part >= 0 && part.parts >= 0);
  const auto r = parse_reference(text);
  if (!r) return;
  require(stays_inside(r->repo) && (r->select.empty() || stays_inside(r->select)) && stays_inside(r->revision_or_main()));
  if (r->select.find_first_of(":@") != r->select.npos) return;  // a file's name may have them; what is typed may not
  const auto again = parse_reference(r->text());
  require(again && again->text() == r->text());
}

void check_url(const Url& url) {
  const std::string text = url.text();
  require(!url.host.empty() && url.port >= 1 && url.port <= 65535 && url.target.starts_with('/'));
  for (unsigned char c : text) require(c > 32 && c != 127);
  const Url again = parse_web_address(text);
  require(again.text() == text && again.same_origin(url));
}

// An address, where it leads, and a list of hosts that are asked without a proxy, a line each.
void check_addresses(std::string_view text) {
  const std::vector<std::string_view> lines = fuzz::words(text, "\n");
  const Url first = parse_web_address(lines[0]);
  check_url(first);
  Url at = first;
  for (std::string_view line : std::span(lines).subspan(1)) {
    (void)is_listed(line, at.host, at.port);
    const Url next = redirected(at, line);
    check_url(next);
    if (line.starts_with('/') && !line.starts_with("//")) require(next.same_origin(at));
    at = next;
  }
}

}  // namespace

// The first byte says what the rest is.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text = fuzz::as_text(data + 1, size - 1);
  try {
    switch (data[0] % 8) {
      case 0:
        check_reference(std::string(text));
        break;
      case 1:
        check_addresses(text);
        break;
      case 2:
        (void)read_error(text);
        for (const std::string& name : read_search(text)) require(parse_reference(name).has_value());
        break;
      default:
        check_listing(text, data[0] % 2 ? "" : "Q4_K_M");
    }
  } catch (const Error& e) {
    fuzz::check_message(e);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> keys = fuzz::words(
      R"(sha siblings rfilename size lfs sha256 oid blobId id error config.json model.safetensors model-00001-of-00002.safetensors
x-Q4_K_M.gguf x-Q4_K_M-00001-of-00002.gguf x-UD-Q8_0.gguf mmproj.gguf adapter_config.json model_index.json x.bin ../x /x
0123456789abcdef0123456789abcdef01234567)");
  static const std::vector<std::string_view> words = fuzz::words(
      "a/b@:@main@refs/pr/1@Q4_K_M@../@/..@--@https://@http://@hf.co/@huggingface.co/@/blob/main/@/resolve/@?download=true@#@"
      "-00001-of-00002@.gguf@UD-@localhost@[::1]@:80@:443@:65536@user:pass@//@/@\n@ @%2e@\xC2\x9B@\xE2\x80\xAE",
      "@");
  fuzz::Random random(seed);
  if (size < 2) return LLVMFuzzerMutate(data, size, max_size);
  if (random.chance(32)) data[0] = uint8_t(random.next());
  if (data[0] % 8 < 2) return 1 + fuzz::insert_word(data + 1, size - 1, max_size - 1, words, random);
  const std::string body = fuzz::mutate_json({reinterpret_cast<char*>(data) + 1, size - 1}, keys, random, max_size - 1);
  return 1 + fuzz::write_back(body, data + 1, max_size - 1);
}
