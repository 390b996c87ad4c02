// Access control: API keys, the Host header, pages of other origins.
#include <gtest/gtest.h>

#include "serve/gate.h"

namespace mr {
namespace {

HttpRequest head(Headers headers, std::string method = "POST", std::string path = "/v1/completions") {
  return {.method = std::move(method), .path = std::move(path), .headers = std::move(headers)};
}

int status(const Gate& gate, const HttpRequest& request) {
  auto refused = gate.check(request);
  return refused ? refused->status : 0;
}

std::string value_of(const HttpResponse& r, std::string_view name) {
  for (const auto& [key, value] : r.headers)
    if (key == name) return value;
  return "";
}

TEST(Key, ComparesWhole) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  for (const char* wrong : {"", "s", "secre", "secrets", "secretsecret", "Secret", "secreT"})
    EXPECT_FALSE(equal_in_constant_time(wrong, "secret")) << wrong;
}

TEST(Gate, TheKeysSchemeHasNoCase) {
  Gate gate({.api_key = "s e", .open_paths = {"/health", "/ready", "/openapi.json"}});
  for (const char* good : {"Bearer s e", "bearer s e", "BEARER s e", "bEaReR   s e "})
    EXPECT_EQ(status(gate, head({{"authorization", good}})), 0);
  for (const char* wrong :
       {"", "s e", "Bearer", "Bearer ", "Bearers e", "Basic s e", "Bearer S E", "Bearer s e x", "Bearer s", "bearer\ts e"})
    EXPECT_EQ(status(gate, head({{"authorization", wrong}})), 401) << wrong;
  for (const char* open : {"/health", "/ready", "/openapi.json"}) EXPECT_EQ(status(gate, head({}, "GET", open)), 0);
  for (const char* closed : {"/health/", "/metrics", "/v1/models", "/HEALTH", "//health"})
    EXPECT_EQ(status(gate, head({}, "GET", closed)), 401);
}

TEST(Gate, OnTheLoopbackOnlyLoopbackNamesAreAnswered) {
  Gate gate({.listens_on = "127.0.0.1"});
  for (const char* good :
       {"localhost", "LocalHost:8000", "127.0.0.1:8000", "127.8.9.10", "[::1]:80", "[::1]", "a.localhost", "localhost.:8000"})
    EXPECT_EQ(status(gate, head({{"host", good}})), 0) << good;
  for (const char* bad : {"evil.example",
                          "evil.example:8000",
                          "127.0.0.1.evil.example",
                          "localhost.evil.example",
                          "notlocalhost",
                          "127.0.0.256",
                          "127.0.0",
                          "1270.0.1.1",
                          "127.0.0.1.1",
                          "[::2]",
                          "0.0.0.0",
                          "192.168.1.1",
                          "localhost:x",
                          "localhost:99999",
                          "[::1",
                          "[::1]x",
                          ":8000",
                          "localhost:8000:1",
                          "a@localhost",
                          "localhost/../x"})
    EXPECT_EQ(status(gate, head({{"host", bad}})), 403) << bad;
  EXPECT_EQ(status(gate, head({})), 0);  // a program; browsers always send one
  EXPECT_EQ(status(gate, head({{"host", "evil.example"}}, "GET", "/health")), 403);
}

TEST(Gate, HostsMayBeNamed) {
  Gate anywhere({.listens_on = "0.0.0.0"});
  EXPECT_EQ(status(anywhere, head({{"host", "any.example"}})), 0);
  Gate named({.listens_on = "0.0.0.0", .allowed_hosts = {"Mill.example", ".river.example"}});
  for (const char* good : {"mill.example", "MILL.example:443", "river.example", "a.river.example", "localhost"})
    EXPECT_EQ(status(named, head({{"host", good}})), 0) << good;
  for (const char* bad : {"other.example", "a.mill.example", "notriver.example", "", "x"})
    if (*bad) EXPECT_EQ(status(named, head({{"host", bad}})), 403) << bad;
  Gate any({.listens_on = "127.0.0.1", .allowed_hosts = {"*"}});
  EXPECT_EQ(status(any, head({{"host", "evil.example"}})), 0);
}

TEST(Gate, PagesOfOtherOriginsNeedJson) {
  Gate gate({.listens_on = "127.0.0.1", .allow_origins = {"http://page.example"}});
  auto ask = [&](const char* origin, const char* type) {
    return status(gate, head({{"host", "localhost:8000"}, {"origin", origin}, {"content-type", type}}));
  };
  for (const char* origin : {"http://evil.example", "null", "http://page.example", "http://localhost:3000", "file://", "x"}) {
    for (const char* simple :
         {"text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", "text/plain; application/json"})
      EXPECT_EQ(ask(origin, simple), 403) << origin << " " << simple;
    for (const char* json : {"application/json", "Application/JSON; charset=utf-8", "application/x+json"})
      EXPECT_EQ(ask(origin, json), 0) << origin << json;
  }
  EXPECT_EQ(ask("http://localhost:8000", "text/plain"), 0);                                   // the server's own page
  EXPECT_EQ(status(gate, head({{"host", "localhost"}, {"content-type", "text/plain"}})), 0);  // curl
  EXPECT_EQ(status(gate, head({{"host", "localhost"}, {"sec-fetch-site", "cross-site"}})), 403);
  EXPECT_EQ(status(gate, head({{"host", "localhost"}, {"origin", "http://evil.example"}}, "GET", "/v1/models")), 0);
}

TEST(Gate, PreflightsKnowWhatOpenAisClientsSend) {
  Gate gate({.listens_on = "127.0.0.1", .api_key = "k", .allow_origins = {"http://page.example"}});
  const std::string asked =
      "authorization,content-type, x-stainless-arch,X-Stainless-Retry-Count,openai-organization,openai-project,openai-beta,x-evil,a b";
  HttpRequest request = head({{"origin", "http://page.example"},
                              {"access-control-request-method", "POST"},
                              {"access-control-request-headers", asked},
                              {"access-control-request-private-network", "true"}},
                             "OPTIONS");
  auto r = gate.check(request);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->status, 204);  // without a key: a browser sends none
  EXPECT_EQ(value_of(*r, "Access-Control-Allow-Origin"), "http://page.example");
  EXPECT_EQ(value_of(*r, "Access-Control-Allow-Headers"),
            "authorization, content-type, x-stainless-arch, x-stainless-retry-count, openai-organization, openai-project, openai-beta");
  EXPECT_NE(value_of(*r, "Access-Control-Allow-Methods").find("POST"), std::string::npos);
  EXPECT_EQ(value_of(*r, "Access-Control-Allow-Private-Network"), "true");
  request.headers[0].second = "http://evil.example";
  r = gate.check(request);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->status, 401);
  EXPECT_EQ(value_of(*r, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(gate.cors_headers(head({{"origin", "http://page.example"}}))[0].second, "http://page.example");
}

}  // namespace
}  // namespace mr
