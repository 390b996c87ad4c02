// Names of models and their files on a hub. They are untrusted: everything that becomes a path is validated here.
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

// A hub's address as prefix is dropped: https://huggingface.co/OWNER/NAME, hf.co/OWNER/NAME, .../blob/REVISION/FILE.
// None: the text has another form, or could lead out of the cache.
std::optional<Reference> parse_reference(std::string_view text);

bool is_commit(std::string_view);              // 40 hexadecimal digits
bool is_blob_hash(std::string_view);           // 40 or 64 of them: git's SHA-1, or SHA-256
bool is_revision(std::string_view);            // safe as a path below refs/
bool is_file_in_repository(std::string_view);  // a relative path that stays inside, of printable characters

}  // namespace mr
