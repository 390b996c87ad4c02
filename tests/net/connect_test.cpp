// A host with several addresses, the first of which leads nowhere.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "net/http_client.h"

namespace mr {
namespace {

// A listening socket, and the connections that fill its queue: others wait for ever.
struct Swallower {
  int listener = -1;
  std::vector<int> crowd;
  explicit Swallower(int family, int& port) {
    listener = socket(family, SOCK_STREAM, 0);
    sockaddr_storage where{};
    where.ss_family = sa_family_t(family);
    if (family == AF_INET6) {
      auto& v6 = reinterpret_cast<sockaddr_in6&>(where);
      v6.sin6_addr = in6addr_loopback;
      v6.sin6_port = htons(uint16_t(port));
    } else {
      auto& v4 = reinterpret_cast<sockaddr_in&>(where);
      v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      v4.sin_port = htons(uint16_t(port));
    }
    socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&where), size) != 0 || listen(listener, 0) != 0) {
      port = 0;
      return;
    }
    getsockname(listener, reinterpret_cast<sockaddr*>(&where), &size);
    port = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(where).sin6_port : reinterpret_cast<sockaddr_in&>(where).sin_port);
    for (int i = 0; i < 4; i++) {
      crowd.push_back(socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0));
      connect(crowd.back(), reinterpret_cast<sockaddr*>(&where), size);
    }
  }
  ~Swallower() {
    for (int fd : crowd) close(fd);
    if (listener >= 0) close(listener);
  }
};

// Answers one request on the other loopback address.
void answer_once(int listener) {
  const int fd = accept(listener, nullptr, nullptr);
  char bytes[4096];
  (void)!read(fd, bytes, sizeof bytes);
  const std::string_view text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
  (void)!write(fd, text.data(), text.size());
  close(fd);
}

TEST(Connect, TriesEveryAddress) {
  addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = nullptr;
  if (getaddrinfo("localhost", nullptr, &hints, &found) != 0) GTEST_SKIP() << "there is no localhost";
  const int first = found->ai_family, second = found->ai_next ? found->ai_next->ai_family : first;
  freeaddrinfo(found);
  if (first == second) GTEST_SKIP() << "localhost has one address";

  int port = 0;
  Swallower swallower(first, port);
  ASSERT_GT(port, 0);
  int same = port;
  Swallower other(second, same);
  ASSERT_EQ(same, port);
  for (int fd : std::exchange(other.crowd, {})) close(fd);
  for (;;) {  // what stood in its queue is taken and dropped
    timeval soon{.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(other.listener, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    const int fd = accept(other.listener, nullptr, nullptr);
    if (fd < 0) break;
    close(fd);
  }
  timeval long_enough{.tv_sec = 60, .tv_usec = 0};
  setsockopt(other.listener, SOL_SOCKET, SO_RCVTIMEO, &long_enough, sizeof long_enough);
  std::jthread server([&] { answer_once(other.listener); });
  HttpClient client(make_net({}));
  std::string body;
  const HttpHead head = client.ask({.url = parse_web_address("http://localhost:" + std::to_string(port) + "/"), .timeout_s = 1.5},
                                   [](const HttpHead&) { return true; }, [&](std::string_view bytes) { body += bytes; });
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(body, "ok");
}

}  // namespace
}  // namespace mr
