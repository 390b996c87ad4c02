// Web addresses: what is read, what is refused, where a redirect leads, who is asked without a proxy.
#include "net/url.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace mr {
namespace {

TEST(Url, IsReadInItsParts) {
  const Url u = parse_web_address("https://Hub.Example:8443/a/b?c=d#e");
  EXPECT_TRUE(u.is_tls);
  EXPECT_EQ(u.host, "hub.example");
  EXPECT_EQ(u.port, 8443);
  EXPECT_EQ(u.target, "/a/b?c=d");
  EXPECT_EQ(u.text(), "https://hub.example:8443/a/b?c=d");
  EXPECT_EQ(parse_web_address("http://[::1]:80").text(), "http://[::1]/");
  EXPECT_EQ(parse_web_address("http://host?x").target, "/?x");
  EXPECT_EQ(parse_web_address("http://me:secret@proxy:3128").user, "me:secret");
}

TEST(Url, TakesAProxysPasswordOutOfItsEscapes) {
  EXPECT_EQ(parse_web_address("http://me:p%40ss%2Fw%3ard@proxy:3128").user, "me:p@ss/w:rd");
  EXPECT_EQ(parse_web_address("http://me:100%@proxy").user, "me:100%");
  EXPECT_EQ(parse_web_address("http://me:%4@proxy").user, "me:%4");
  EXPECT_EQ(parse_web_address("http://me:%zz%00x@proxy").user, std::string("me:%zz\0x", 8));
}

TEST(Url, IsRefusedWhereItIsNone) {
  for (const char* bad : {"", "host", "ftp://host", "http://", "http://:80", "http://h:0", "http://h:65536", "http://h:8x", "http://h/a b",
                          "http://h/\r\nX: y", "https:///x", "http://a\"b", "http://a\\b/", "http://a%0d", "http://[::1]x/",
                          "http://\xE2\x80\xAEh/", "http://[a/", "http://a]b/", "http://h<b>"})
    EXPECT_THROW(parse_web_address(bad), Error) << bad;
}

TEST(Url, IsRedirected) {
  const Url from = parse_web_address("https://hub:444/a?b");
  EXPECT_EQ(redirected(from, "/c?d").text(), "https://hub:444/c?d");
  EXPECT_EQ(redirected(from, "/c?d#e").text(), "https://hub:444/c?d") << "a fragment stays with whoever reads it";
  EXPECT_EQ(redirected(from, "//cdn/c").text(), "https://cdn/c");
  EXPECT_EQ(redirected(from, "https://cdn/c").text(), "https://cdn/c");
  EXPECT_TRUE(from.same_origin(redirected(from, "/c")));
  for (const char* other : {"http://hub:444/a", "https://hub/a", "https://hub.evil:444/a"})
    EXPECT_FALSE(from.same_origin(redirected(from, other))) << other;
  EXPECT_THROW(redirected(from, "/a\r\nX: y"), Error);
  EXPECT_THROW(redirected(from, "file:///etc/passwd"), Error);
}

TEST(Url, QuotesPaths) {
  EXPECT_EQ(quoted_path("a/b c?ä"), "a/b%20c%3F%C3%A4");
  EXPECT_EQ(quoted_path("refs/pr/1", false), "refs%2Fpr%2F1");
}

TEST(NoProxy, IsAListOfHosts) {
  EXPECT_TRUE(is_listed("a.com, b.com", "b.com", 80));
  EXPECT_TRUE(is_listed("b.com", "x.b.com", 80));
  EXPECT_TRUE(is_listed(".b.com", "x.b.com", 80));
  EXPECT_TRUE(is_listed("*", "anything", 1));
  EXPECT_TRUE(is_listed("b.com:443", "b.com", 443));
  EXPECT_FALSE(is_listed("b.com:443", "b.com", 80));
  EXPECT_FALSE(is_listed("b.com", "ab.com", 80));
  EXPECT_FALSE(is_listed("", "b.com", 80));
}

}  // namespace
}  // namespace mr
