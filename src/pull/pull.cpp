#include "pull/pull.h"

#include <algorithm>

#include "core/amounts.h"
#include "core/config.h"
#include "core/words.h"
#include "hub/models.h"
#include "io/file_names.h"

namespace mr {

namespace {

// Reports pauses once for all connections that pause for the same reason.
Endpoint::OnWait pauses(const PullOptions& o) {
  auto last = std::make_shared<std::pair<std::mutex, std::string>>();
  return [&o, last](const std::string& why, double seconds) {
    std::lock_guard lock(last->first);
    const std::string note = seconds < 1 ? sentence("{}: asking again", why) : sentence("{}: asking again in {:.0f} s", why, seconds);
    if (o.on_note && note != std::exchange(last->second, note)) o.on_note(note);
  };
}

void link_all(const HubCache& cache, const Repository& r, const std::vector<HubFile>& files, const std::string& revision) {
  for (const HubFile& f : files) cache.link(r.name, r.commit, f.name, f.hash);
  cache.set_ref(r.name, revision, r.commit);  // last: a reader that follows it finds everything
}

}  // namespace

Pulled pull_model(const Reference& reference, const PullOptions& options) {
  const HubSettings settings = hub_settings();
  check(!settings.offline, "{} cannot be pulled: HF_HUB_OFFLINE is set", reference.text());
  Endpoint endpoint(settings, make_net(net_settings()), pauses(options));
  const HubCache cache(settings.cache);
  const Repository repository = endpoint.list(reference);
  std::vector<HubFile> files = choose_files(repository, reference.select);
  endpoint.complete(repository, files);
  Pulled pulled{.commit = repository.commit};
  for (const HubFile& f : files) pulled.bytes += f.size;
  if (options.on_note)
    options.on_note(sentence("{} at {}: {}, {}", reference.text(), repository.commit.substr(0, 7), counted(int64_t(files.size()), "file"),
                             bytes_text(pulled.bytes)));
  const FileLock guard = cache.lock_repository(repository.name, FileLock::Kind::shared);
  check(bool(guard), "{} is being removed by another process", repository.name);
  DownloadOptions download_options{.connections = options.connections, .on_state = [&](const DownloadState& s) {
                                     pulled.fetched = s.fetched;
                                     if (options.on_state) options.on_state(s);
                                   }};
  download(endpoint, cache, repository, files, download_options);
  link_all(cache, repository, files, reference.revision_or_main());
  const bool is_gguf = is_language_gguf(files.front().name);
  std::vector<std::string> names;
  for (const HubFile& f : files) names.push_back(f.name);
  const std::filesystem::path folder = cache.folder_of(repository.name) / "snapshots" / repository.commit;
  pulled.path = is_gguf ? folder / *std::ranges::min_element(names) : folder;
  pulled.name = model_name_at(pulled.path);
  return pulled;
}

std::vector<std::string> search_hub(const std::string& words) {
  try {
    const HubSettings settings = hub_settings();
    if (settings.offline) return {};
    return Endpoint(settings, make_net(net_settings()), {}).search(words);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace mr
