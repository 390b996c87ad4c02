// Fetches blobs into the hub's cache: several connections at once, files and parts of files side by side. A blob grows in order
// from its beginning as blobs/HASH.incomplete, hashed on its way to the disk, so that whatever ends the program, the next one
// resumes there; only a blob with the right hash gets its name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "pull/endpoint.h"

namespace mr {

struct DownloadState {
  int64_t done = 0, total = 0;  // bytes; what earlier attempts left counts as done
  int64_t fetched = 0;          // of them by this one
  int files_done = 0, files = 0;
  std::string waits;  // why it waits at the moment; empty: it does not
};

struct DownloadOptions {
  int connections = 8;
  int64_t part_bytes = int64_t(8) << 20;               // of a file, by one request
  std::function<void(const DownloadState&)> on_state;  // on the caller's thread, a few times a second and at the end
};

// Afterwards every file is among the blobs. Throws what ended it; what came until then stays for the next attempt.
void download(Endpoint&, const HubCache&, const Repository&, const std::vector<HubFile>&, const DownloadOptions&);

}  // namespace mr
