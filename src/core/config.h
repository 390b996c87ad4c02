// Settings from the environment: folders, threads, hubs. The only file that reads environment variables.
#pragma once

#include <filesystem>
#include <string>

namespace mr {

std::filesystem::path cache_dir();      // ${XDG_CACHE_HOME:-~/.cache}/millrace
std::filesystem::path models_dir();     // models/ in it
std::filesystem::path state_dir();      // ${XDG_STATE_HOME:-~/.local/state}/millrace; empty: no home
std::filesystem::path runtime_dir();    // $XDG_RUNTIME_DIR/millrace, or state_dir()
std::filesystem::path default_model();  // where quickstart stores SmolLM2-135M-Instruct; it may not exist yet
int default_threads();                  // physical cores that this process may use
int64_t physical_memory();              // bytes, within the control group's limit

bool colors_wanted();     // NO_COLOR is not set
bool terminal_is_dumb();  // no cursor movement

std::string api_key_from_environment();  // MILLRACE_API_KEY; empty: none

// The model hub, from the variables of Hugging Face's tools: one cache and one login for all.
struct HubSettings {
  std::filesystem::path cache;  // HF_HUB_CACHE, or hub/ in HF_HOME, which is ${XDG_CACHE_HOME:-~/.cache}/huggingface
  std::string endpoint;         // HF_ENDPOINT, or https://huggingface.co; no trailing slash
  std::string token;            // HF_TOKEN, or the content of HF_TOKEN_PATH or of HF_HOME/token; empty: none
  bool offline = false;         // HF_HUB_OFFLINE
  double timeout_s = 30;        // without a byte; HF_HUB_DOWNLOAD_TIMEOUT
};
HubSettings hub_settings();

struct NetSettings {
  std::string http_proxy, https_proxy;  // for addresses of that scheme; empty: none
  std::string no_proxy;                 // comma-separated hosts that are reached directly
  std::string ca_file;                  // certificates besides the system's; empty: none
};
NetSettings net_settings();  // HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY (or in lower case), REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE

}  // namespace mr
