// A hub's listings of repositories: untrusted JSON, parsed with bounds.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/reference.h"
#include "hub/select.h"

namespace mr {

inline constexpr int64_t max_repository = int64_t(1) << 50;  // bytes, of one file and of all together

// Throws for a listing without a commit or files, for paths outside of the repository, and for absurd sizes. A size of -1 and an empty
// hash: not in the listing.
Repository read_listing(std::string_view text, const Reference&);
std::vector<std::string> read_search(std::string_view text);  // names of repositories
std::string read_error(std::string_view text);                // the message in the body of a refusal; empty: none
void check_sizes(std::span<const HubFile>, const std::string& repo);

}  // namespace mr
