// Who listens and who works, against a socket and a child process of our own.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "core/other_programs.h"

namespace mr {
namespace {

TEST(OtherPrograms, WhoListens) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
  const int port = ntohs(at.sin_port);
  EXPECT_EQ(std::ranges::count(listeners(port), getpid()), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_EQ(std::ranges::count(listeners(port), getpid()), 1);
  close(fd);
  EXPECT_EQ(std::ranges::count(listeners(port), getpid()), 0);
}

void work(double seconds) {
  rusage used{};
  do getrusage(RUSAGE_SELF, &used);
  while (double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1e-6 * double(used.ru_utime.tv_usec + used.ru_stime.tv_usec) < seconds);
}

// A child's child burns half a second: whoever counts the child among its own sees that much less of others.
TEST(OtherPrograms, AServerAndItsChildrenAreNotOthers) {
  int ready[2], go[2];
  ASSERT_EQ(pipe(ready) | pipe(go), 0);
  char byte = 0;
  const pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) {
      work(0.5);
      (void)!write(ready[1], &byte, 1);
      (void)!read(go[0], &byte, 1);
      _exit(0);
    }
    wait(nullptr);
    _exit(0);
  }
  OtherPrograms all, others({child});
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const double with = all.share(), without = others.share();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  (void)!write(go[1], &byte, 1);
  waitpid(child, nullptr, 0);
  EXPECT_NEAR((with - without) * seconds * double(sysconf(_SC_NPROCESSORS_ONLN)), 0.5, 0.15);
  for (int fd : {ready[0], ready[1], go[0], go[1]}) close(fd);
}

}  // namespace
}  // namespace mr
