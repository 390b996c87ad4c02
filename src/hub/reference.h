// Names of models and of their files, as a hub writes them. All of them come from strangers: what becomes a path is checked here.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mr {

// OWNER/NAME[:FILE or quantization][@REVISION]
struct Reference {
  std::string repo;      // OWNER/NAME
  std::string select;    // empty: the repository's one model
  std::string revision;  // a branch, a tag or a commit; empty: main
  std::string text() const;
  std::string revision_or_main() const { return revision.empty() ? "main" : revision; }
};

// A hub's address in front is dropped: https://huggingface.co/OWNER/NAME, hf.co/OWNER/NAME, .../blob/REVISION/FILE.
// Nothing: the text has another form, or could lead out of the cache.
std::optional<Reference> parse_reference(std::string_view text);

bool is_commit(std::string_view);              // 40 hexadecimal digits
bool is_blob_hash(std::string_view);           // 40 or 64 of them: git's SHA-1, or SHA-256
bool is_revision(std::string_view);            // fit to be a path below refs/
bool is_file_in_repository(std::string_view);  // a relative path that stays inside, of printable characters

// "model-00002-of-00003" is part 2 of 3 of "model".
struct PartName {
  std::string whole;
  int part = 1, parts = 1;
};
PartName part_name(std::string_view stem);

// The quantization that a GGUF file's name ends in, in capitals: Q4_K_M, UD-Q4_K_XL, BF16; empty: none.
std::string quantization_of(std::string_view file);
// Whether a GGUF file holds a language model: an image encoder (mmproj) or an importance matrix does not.
bool is_language_gguf(std::string_view file);

std::string ascii_lower(std::string_view);

}  // namespace mr
