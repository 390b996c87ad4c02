// A load-generating client of an OpenAI server: streams completions and records when each token arrived. One thread drives any
// number of open streams. Only client.cpp includes Boost.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/streamed_answer.h"

namespace mr {

// Where a server listens: http://host[:port][/prefix]. A prefix of /v1 is the same as none, since every path begins with it.
struct Target {
  std::string host;
  int port = 80;
  std::string prefix;   // before every path; empty or /something
  std::string api_key;  // empty: none is sent
};
Target parse_url(std::string_view url);  // throws Error if it is no such address

struct Load {
  std::string path;                 // /v1/completions
  std::vector<std::string> bodies;  // one request each, in order
  int streams = 1;                  // closed loop: the number of open streams; each sends its next request when an answer ends
  std::vector<double> arrivals;     // open loop, if not empty: when each body is sent
  double timeout = 600;             // seconds for one request
};

// Outcomes in the order of the bodies. `progress` is called after each answer with the number of answers so far.
std::vector<Outcome> drive(const Target&, const Load&, const std::function<void(int)>& progress = {});

struct Reply {
  int status = 0;
  std::string body;
};
Reply http_get(const Target&, const std::string& path, double timeout = 30);  // throws Error without an answer

}  // namespace mr
