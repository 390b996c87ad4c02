// The other side of an OpenAI server: streams completions from it and notes when each token came. One thread drives any
// number of open streams. Boost is known to client.cpp alone.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/streamed_answer.h"

namespace mr {

// Where a server listens: http://host[:port][/prefix]. A prefix of /v1 is the same as none, since every path begins with it.
struct Target {
  std::string host;
  int port = 80;
  std::string prefix;   // before every path; empty or /something
  std::string api_key;  // empty: none is sent
};
Target parse_url(std::string_view url);  // throws Error for what is no such address

struct Load {
  std::string path;                 // /v1/completions
  std::vector<std::string> bodies;  // one request each, in order
  int streams = 1;                  // closed loop: so many are open, and an answer's end sends the next
  std::vector<double> arrivals;     // open loop, if not empty: when each body is sent, whatever was answered by then
  double timeout = 600;             // seconds for one request
};

// Outcomes in the order of the bodies. `progress` is called after each answer with the number of answers so far.
std::vector<Outcome> drive(const Target&, const Load&, const std::function<void(int)>& progress = {});

struct Reply {
  int status = 0;
  std::string body;
};
Reply http_get(const Target&, const std::string& path, double timeout = 30);  // throws Error if no answer comes

}  // namespace mr
