// Downloads blobs into the hub's cache: several connections, files and parts of files in parallel. A blob is written in order as
// blobs/HASH.incomplete and hashed on the way, so that a later run can resume it however this one ended; only a blob with the right
// hash is renamed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "pull/endpoint.h"

namespace mr {

struct DownloadState {
  int64_t done = 0, total = 0;  // bytes; those of earlier attempts count as done
  int64_t fetched = 0;          // by this attempt
  int files_done = 0, files = 0;
  std::string waits;  // why it is waiting; empty: it is not
};

struct DownloadOptions {
  int connections = 8;
  int64_t part_bytes = int64_t(8) << 20;               // of one request
  std::function<void(const DownloadState&)> on_state;  // on the caller's thread, a few times a second and at the end
};

// On return every file is a blob. Throws the first error; bytes received until then stay for the next attempt.
void download(Endpoint&, const HubCache&, const Repository&, const std::vector<HubFile>&, const DownloadOptions&);

}  // namespace mr
