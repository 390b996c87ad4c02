// What strangers' JSON may cost, and that what is allowed is read as the library reads it.
#include "core/bounded_json.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace mr {
namespace {

template <class J>
class BoundedJson : public testing::Test {};
using Kinds = testing::Types<Json, OrderedJson>;
TYPED_TEST_SUITE(BoundedJson, Kinds);

template <class J>
std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json<J>(text, "it", limits);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::string repeated(const std::string& part, int n) {
  std::string out;
  for (int i = 0; i < n; i++) out += part;
  return out;
}

std::string object_of(int n_keys) {
  std::string out = "{";
  for (int i = 0; i < n_keys; i++) out += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
  return out + "}";
}

TYPED_TEST(BoundedJson, ReadsWhatTheLibraryReads) {
  for (const char* text : {"null", "true", "-0", "17", "-17", "18446744073709551615", "1.5e3", R"("a\u00e9\n")", "[]", "{}",
                           " [ 1 , [ ] , { } ] ", R"({"b":1,"a":{"b":[1,2,{"c":null}],"":"x"},"c":[[],[[]]]})"})
    EXPECT_EQ(parse_json<TypeParam>(text, "it").dump(), TypeParam::parse(text).dump()) << text;
}

TYPED_TEST(BoundedJson, WhatIsNoJsonIsSaidWithItsPlace) {
  for (const char* text : {"", "{", "[1", "nope", "{\"a\":}", "{}{}", "[1,]", "\"\xff\"", "\"\\ud800\"", "{\"a\" 1}", "\x01", "1 2", "NaN"})
    EXPECT_TRUE(refusal<TypeParam>(text).starts_with("it is not valid JSON: something is wrong at byte ")) << text;
  EXPECT_EQ(refusal<TypeParam>("[1e999]"), "it is not valid JSON: a number is out of every range");
  EXPECT_EQ(refusal<TypeParam>("[1,x]"), "it is not valid JSON: something is wrong at byte 4");
}

TYPED_TEST(BoundedJson, DepthIsBoundedWhileReading) {
  auto nested = [](int n) { return repeated("[", n) + repeated("]", n); };
  EXPECT_EQ(refusal<TypeParam>(nested(64)), "");
  EXPECT_EQ(refusal<TypeParam>(nested(65)), "it nests more than 64 levels deep");
  EXPECT_EQ(refusal<TypeParam>(repeated("{\"a\":", 1000000)), "it nests more than 64 levels deep");  // its end is never looked for
  EXPECT_EQ(refusal<TypeParam>(repeated("[{\"a\":", 4), {.depth = 7}), "it nests more than 7 levels deep");
  EXPECT_EQ(refusal<TypeParam>("[" + repeated("[],", 1000) + "[]]", {.depth = 2}), "");  // side by side is not deep
  EXPECT_EQ(refusal<TypeParam>("\"" + repeated("[", 1000) + "\""), "");
}

TYPED_TEST(BoundedJson, KeysOfAnObjectAreBounded) {
  EXPECT_EQ(refusal<TypeParam>(object_of(4096)), "");
  EXPECT_EQ(refusal<TypeParam>(object_of(4097)), "it has an object with more than 4096 keys");
  EXPECT_EQ(refusal<TypeParam>("[" + object_of(3) + "," + object_of(3) + "]", {.keys = 3}), "");
  EXPECT_EQ(refusal<TypeParam>("{\"x\":" + object_of(4) + "}", {.keys = 3}), "it has an object with more than 3 keys");
}

TYPED_TEST(BoundedJson, AKeyTwiceIsAnError) {
  EXPECT_EQ(refusal<TypeParam>(R"({"a":1,"b":2,"a":3})"), "it has an object with the key 'a' twice");
  EXPECT_EQ(refusal<TypeParam>(R"({"a":{"b":1,"\u0062":1}})"), "it has an object with the key 'b' twice");
  EXPECT_EQ(refusal<TypeParam>(R"([{"a":1},{"a":{"a":1}}])"), "");
  EXPECT_LT(refusal<TypeParam>("{\"" + repeated("x", 9999) + "\":1,\"" + repeated("x", 9999) + "\":1}").size(), 200u);
}

TYPED_TEST(BoundedJson, ValuesAndMemoryAreBounded) {
  EXPECT_EQ(refusal<TypeParam>("[" + repeated("1,", 8) + "1]", {.values = 10}), "");
  EXPECT_EQ(refusal<TypeParam>("[" + repeated("1,", 9) + "1]", {.values = 10}), "it holds more than 10 values");
  EXPECT_EQ(refusal<TypeParam>("[" + repeated("\"\",", 999) + "1]", {.bytes = 20000}), "it takes more than 20000 bytes of memory");
  EXPECT_EQ(refusal<TypeParam>("\"" + repeated("x", 20000) + "\"", {.bytes = 20000}), "it takes more than 20000 bytes of memory");
  EXPECT_EQ(refusal<TypeParam>("[" + repeated("{},", 999) + "1]", {.bytes = 20000}), "it takes more than 20000 bytes of memory");
  EXPECT_EQ(refusal<TypeParam>("\"" + repeated("x", 19000) + "\"", {.bytes = 20000}), "");
}

TEST(BoundedJsonOrder, IsKeptWithoutASearch) {
  EXPECT_EQ(parse_json<OrderedJson>(R"({"z":1,"a":2,"m":3})", "it").dump(), R"({"z":1,"a":2,"m":3})");
  // 100,000 keys: a linear search for each would take ten seconds.
  EXPECT_EQ(parse_json<OrderedJson>(object_of(100000), "it", {.keys = 1 << 20}).size(), 100000u);
}

}  // namespace
}  // namespace mr
