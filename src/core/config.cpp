#include "core/config.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <set>

namespace mr {

namespace fs = std::filesystem;

static std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The first variable that is set.
static std::string environment(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::string value = environment(name); !value.empty()) return value;
  return "";
}

static fs::path home() {
  const std::string home = environment("HOME");
  return home.empty() ? "/tmp" : home;
}

static fs::path user_cache() {
  const std::string cache = environment("XDG_CACHE_HOME");
  return cache.empty() ? home() / ".cache" : fs::path(cache);
}

fs::path cache_dir() { return user_cache() / "millrace"; }
fs::path models_dir() { return cache_dir() / "models"; }
fs::path default_model() { return models_dir() / "SmolLM2-135M-Instruct.Q4_1.gguf"; }

fs::path state_dir() {
  if (const std::string state = environment("XDG_STATE_HOME"); !state.empty()) return fs::path(state) / "millrace";
  const std::string home = environment("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".local" / "state" / "millrace";
}

fs::path runtime_dir() {
  const std::string folder = environment("XDG_RUNTIME_DIR");
  return folder.empty() ? state_dir() : fs::path(folder) / "millrace";
}

// The folder named by a variable, with "~" expanded; else `otherwise`.
static fs::path folder_from(const std::string& value, fs::path otherwise) {
  if (value.empty()) return otherwise;
  return value == "~" ? home() : value.starts_with("~/") ? home() / value.substr(2) : fs::path(value);
}

static bool is_true(std::string value) {
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

static std::string first_word(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

HubSettings hub_settings() {
  const fs::path folder = folder_from(environment("HF_HOME"), user_cache() / "huggingface");
  HubSettings s;
  s.cache = folder_from(environment({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}), folder / "hub");
  s.endpoint = environment("HF_ENDPOINT");
  if (s.endpoint.empty()) s.endpoint = "https://huggingface.co";
  while (s.endpoint.ends_with('/')) s.endpoint.pop_back();
  s.token = environment({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (s.token.empty()) s.token = first_word(folder_from(environment("HF_TOKEN_PATH"), folder / "token"));
  while (!s.token.empty() && std::isspace(static_cast<unsigned char>(s.token.back()))) s.token.pop_back();
  s.offline = is_true(environment({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  if (const double seconds = std::atof(environment("HF_HUB_DOWNLOAD_TIMEOUT").c_str()); seconds > 0) s.timeout_s = seconds;
  return s;
}

NetSettings net_settings() {
  const std::string any = environment({"all_proxy", "ALL_PROXY"});
  NetSettings s{.http_proxy = environment({"http_proxy", "HTTP_PROXY"}), .https_proxy = environment({"https_proxy", "HTTPS_PROXY"})};
  if (s.http_proxy.empty()) s.http_proxy = any;
  if (s.https_proxy.empty()) s.https_proxy = any;
  s.no_proxy = environment({"no_proxy", "NO_PROXY"});
  s.ca_file = environment({"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"});
  return s;
}

bool colors_wanted() { return environment("NO_COLOR").empty(); }

bool terminal_is_dumb() {
  const std::string kind = environment("TERM");
  return kind.empty() || kind == "dumb";
}

std::string api_key_from_environment() { return environment("MILLRACE_API_KEY"); }

int default_threads() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::max(1, int(sysconf(_SC_NPROCESSORS_ONLN)));
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::string siblings;
    std::ifstream in(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    if (!std::getline(in, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  return std::max(1, int(cores.size()));
}

int64_t physical_memory() {
  int64_t bytes = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  if (int64_t n; limit >> n) bytes = std::min(bytes, n);
  return bytes;
}

}  // namespace mr
