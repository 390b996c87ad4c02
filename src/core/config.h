// What the surroundings say: folders, threads, hubs. The only place that reads the environment.
#pragma once

#include <filesystem>
#include <string>

namespace mr {

std::filesystem::path cache_dir();      // ${XDG_CACHE_HOME:-~/.cache}/millrace
std::filesystem::path models_dir();     // models/ in it
std::filesystem::path state_dir();      // ${XDG_STATE_HOME:-~/.local/state}/millrace; empty: no home
std::filesystem::path runtime_dir();    // $XDG_RUNTIME_DIR/millrace, or state_dir()
std::filesystem::path default_model();  // where quickstart puts SmolLM2-135M-Instruct; it may not be there yet
int default_threads();                  // physical cores that this process may use
int64_t physical_memory();              // bytes, as limited by the control group

bool colors_wanted();     // NO_COLOR is not set
bool terminal_is_dumb();  // it has no cursor that moves

std::string api_key_from_environment();  // MILLRACE_API_KEY; empty: none

// The model hub, by the variables that Hugging Face's own tools read: one cache and one login for all of them.
struct HubSettings {
  std::filesystem::path cache;  // HF_HUB_CACHE, or hub/ in HF_HOME, which is ${XDG_CACHE_HOME:-~/.cache}/huggingface
  std::string endpoint;         // HF_ENDPOINT, or https://huggingface.co; no slash at its end
  std::string token;            // HF_TOKEN, or the content of HF_TOKEN_PATH or of HF_HOME/token; empty: none
  bool offline = false;         // HF_HUB_OFFLINE
  double timeout_s = 30;        // without a byte; HF_HUB_DOWNLOAD_TIMEOUT
};
HubSettings hub_settings();

struct NetSettings {
  std::string http_proxy, https_proxy;  // for addresses of that scheme; empty: none
  std::string no_proxy;                 // hosts that are asked directly: a list with commas
  std::string ca_file;                  // of certificates besides the system's own; empty: none
};
NetSettings net_settings();  // HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY (or in lower case), REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE

}  // namespace mr
