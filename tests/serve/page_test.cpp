#include <gtest/gtest.h>

#include "serve/page.h"

namespace mr {
namespace {

HttpRequest get(std::string path, Headers headers = {}) {
  return {.method = "GET", .path = std::move(path), .headers = std::move(headers)};
}

std::string header_of(const HttpResponse& r, std::string_view name) {
  for (const auto& [key, value] : r.headers)
    if (key == name) return value;
  return {};
}

// Every address that the document names is one of the page's own files.
TEST(Page, NeedsNothingElse) {
  const std::string html = page_response(get("/")).value().body;
  int n = 0;
  for (const char* attribute : {" src=\"", " href=\""}) {
    for (size_t at = html.find(attribute); at != std::string::npos; at = html.find(attribute, at + 1)) {
      const size_t begin = at + std::string_view(attribute).size();
      const std::string address = html.substr(begin, html.find('"', begin) - begin);
      EXPECT_TRUE(page_response(get("/" + address))) << address;
      n++;
    }
  }
  EXPECT_GE(n, 3);
  EXPECT_EQ(html.find("<script>"), std::string::npos);
  EXPECT_EQ(html.find("<style>"), std::string::npos);
}

TEST(Page, TypesAndPolicy) {
  EXPECT_EQ(page_response(get("/")).value().type, "text/html; charset=utf-8");
  EXPECT_EQ(page_response(get("/app.js")).value().type, "text/javascript; charset=utf-8");
  EXPECT_EQ(page_response(get("/style.css")).value().type, "text/css; charset=utf-8");
  EXPECT_EQ(page_response(get("/icon.svg")).value().type, "image/svg+xml");
  for (const PageFile& file : page_files()) {
    const HttpResponse r = page_response(get(std::string(file.path))).value();
    EXPECT_EQ(r.status, 200);
    EXPECT_FALSE(r.body.empty());
    EXPECT_EQ(header_of(r, "X-Content-Type-Options"), "nosniff");
    const std::string policy = header_of(r, "Content-Security-Policy");
    EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
    EXPECT_NE(policy.find("script-src 'self';"), std::string::npos);
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
    EXPECT_EQ(policy.find("http"), std::string::npos);
  }
}

TEST(Page, IsNotSentTwice) {
  const HttpResponse first = page_response(get("/app.js")).value();
  const std::string tag = header_of(first, "ETag");
  ASSERT_GT(tag.size(), 2u);
  const HttpResponse again = page_response(get("/app.js", {{"if-none-match", tag}})).value();
  EXPECT_EQ(again.status, 304);
  EXPECT_TRUE(again.body.empty());
  EXPECT_EQ(header_of(again, "ETag"), tag);
  EXPECT_EQ(page_response(get("/app.js", {{"if-none-match", "\"other\""}})).value().status, 200);
}

TEST(Page, OtherPathsAndMethods) {
  for (const char* path : {"", "/index.html/", "//", "/app.js/", "/../app.js", "/v1/models", "/node_modules"})
    EXPECT_FALSE(page_response(get(path))) << path;
  HttpRequest post = get("/");
  post.method = "POST";
  EXPECT_FALSE(page_response(post));
}

}  // namespace
}  // namespace mr
