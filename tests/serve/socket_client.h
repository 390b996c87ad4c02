// A raw TCP client for tests.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace mr {

class SocketClient {
 public:
  explicit SocketClient(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in where{.sin_family = AF_INET, .sin_port = htons(uint16_t(port))};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval patience{.tv_sec = 20};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&where), sizeof where), 0);
  }
  ~SocketClient() { leave(); }
  void leave() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void say(const std::string& words) { EXPECT_TRUE(try_say(words)); }
  bool try_say(const std::string& words) {  // false: the server has closed
    for (size_t n = 0; n < words.size();) {
      ssize_t sent = send(fd_, words.data() + n, words.size() - n, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      n += size_t(sent);
    }
    return true;
  }
  // Reads until `end`, `most` bytes, or the server closes.
  std::string hear(const std::string& end, size_t most = ~size_t(0)) {
    std::string all;
    char part[65536];
    while (all.size() < most && all.find(end, all.size() < 2 * sizeof part ? 0 : all.size() - 2 * sizeof part) == std::string::npos) {
      ssize_t n = recv(fd_, part, sizeof part, 0);
      if (n <= 0) break;
      all.append(part, size_t(n));
    }
    return all;
  }

 private:
  int fd_;
};

}  // namespace mr
