// What a hub says of its repositories: JSON from strangers, read with bounds.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/reference.h"
#include "hub/select.h"

namespace mr {

inline constexpr int64_t max_repository = int64_t(1) << 50;  // bytes, of one file and of all together

// Throws for a listing without a commit or files, for names that lead out of the repository, and for sizes that nothing has. A size of
// -1 and an empty hash: the hub does not say.
Repository read_listing(std::string_view text, const Reference&);
std::vector<std::string> read_search(std::string_view text);  // names of repositories
std::string read_error(std::string_view text);                // what the body of a refusal says; empty: nothing
void check_sizes(std::span<const HubFile>, const std::string& repo);

}  // namespace mr
