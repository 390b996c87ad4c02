// An answer from anyone's server, however its bytes come.
#include "net/response_reader.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

using State = ResponseReader::State;

struct Read {
  State state;
  std::string body;
  int n_heads = 0;
  bool whole = false;
};

Read read(std::string_view answer, size_t piece, bool head_only = false) {
  Read r{State::more};
  ResponseReader reader([&](int, std::string_view bytes) { r.body += bytes; },
                        [&](const ResponseReader::Header&) {
                          r.n_heads++;
                          return true;
                        },
                        head_only);
  for (size_t at = 0; at < answer.size() && r.state == State::more; at += piece) r.state = reader.feed(answer.substr(at, piece));
  r.whole = r.state == State::done || (r.state == State::more && reader.finish());
  return r;
}

TEST(ResponseReader, ReadsPiecesOfAnySize) {
  for (size_t piece : {1, 2, 7, 1000}) {
    Read r =
        read("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", piece);
    EXPECT_EQ(r.state, State::done) << piece;
    EXPECT_EQ(r.body, "abcde");
    EXPECT_EQ(r.n_heads, 1);
    r = read("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", piece);
    EXPECT_EQ(r.body, "abc");
    EXPECT_FALSE(r.whole) << "of four bytes";
    EXPECT_TRUE(read("HTTP/1.1 200 OK\r\n\r\nabc", piece).whole) << "the end of the connection ends it";
    EXPECT_EQ(read("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", piece, true).state, State::done) << "of a HEAD";
    EXPECT_EQ(read("HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + std::string(20'000, 'x') + "\r\n\r\n", piece).state,
              State::done);
    EXPECT_EQ(read("SSH-2.0-x\r\n\r\n", piece).state, State::invalid);
  }
}

TEST(ResponseReader, DoesNotWaitForEver) {
  std::string news;
  for (int i = 0; i < 2 * ResponseReader::max_news; i++) news += "HTTP/1.1 103 Early Hints\r\n\r\n";
  EXPECT_EQ(read(news, 1000).state, State::invalid);
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\nX: " + std::string(2 * ResponseReader::max_unparsed, 'x'), 65536).state, State::invalid);
  const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(read(chunked + "1;" + std::string(2 * ResponseReader::max_unparsed, 'x'), 65536).state, State::invalid);
  EXPECT_EQ(read(chunked + "0\r\nX: " + std::string(2 * ResponseReader::max_unparsed, 'x'), 65536).state, State::invalid);
}

TEST(ResponseReader, CanLeaveABody) {
  ResponseReader reader([](int, std::string_view) { FAIL() << "a body that nobody wanted"; },
                        [](const ResponseReader::Header&) { return false; });
  EXPECT_EQ(reader.feed("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), State::unwanted);
}

TEST(ResponseReader, KnowsWhetherAnotherMayFollow) {
  auto keeps_alive = [](std::string_view answer) {
    ResponseReader reader([](int, std::string_view) {});
    EXPECT_EQ(reader.feed(answer), State::done);
    return reader.keeps_alive();
  };
  EXPECT_TRUE(keeps_alive("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"));
  EXPECT_FALSE(keeps_alive("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\na"));
  EXPECT_FALSE(keeps_alive("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab")) << "what nobody asked for";
}

}  // namespace
}  // namespace mr
