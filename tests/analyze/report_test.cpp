// The reports: digits as the example prints them, JSON with its promised fields, pages that are well-formed.
#include "analyze/report.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace mr {
namespace {

Analysis classic() {
  Question q;
  q.subject = subject_of(*find_preset("llama-2-13b"));
  q.on.chip = chip_named("h100");
  q.contexts = {1024, 4096};
  return analyze(q);
}

TEST(Text, PrintsTheExamplesDigits) {
  std::string text = text_report(classic());
  for (const char* digits : {"13,015,449,600", "13,015,864,320", "26.87 GB", "8.02 ms", "124.7", "39.45 GB", "11.78 ms", "1,359",
                             "79.72 GB", "23.80 ms", "2,689", "240.8 GB", "71.87 ms", "3,562", "ratio 295"})
    EXPECT_NE(text.find(digits), std::string::npos) << digits;
}

// 1979 TFLOP/s of int8 and 989 of bf16, over 3.35 TB/s.
TEST(Text, RatiosAreThoseOfTheProducts) {
  Question q;
  q.subject = subject_of(*find_preset("llama-2-13b"));
  q.on.chip = chip_named("h100");
  store_weights_as(q.subject.storage, "int8");
  const std::string ratio = "591 in products with weights, 295 in all else";
  EXPECT_NE(text_report(analyze(q)).find("ratio " + ratio + ":"), std::string::npos);
  EXPECT_NE(html_report(analyze(q)).find("below " + ratio + " flops a byte"), std::string::npos);
  store_weights_as(q.subject.storage, "int4");  // widened to bf16
  EXPECT_NE(text_report(analyze(q)).find("ratio 295:"), std::string::npos);
}

// Where the exact intensity is far below a law, a sentence says why.
TEST(Text, SaysHowFarItsLawsReach) {
  const std::string products = "The law of products counts the bytes of weights alone", pairs = "The laws of attention count every pair";
  auto lines = [](int64_t context, bool prefill) {
    Question q;
    q.subject = subject_of(*find_preset("llama-2-13b"));
    q.on.chip = chip_named("h100");
    q.contexts = {context};
    q.batches = {1};
    return fmt::format("{}", fmt::join(law_lines(analyze(q), prefill, 1), " "));
  };
  // [B·T, D] . [D, D] in 2 bytes: D·B·T / (D + 2·B·T) flops a byte, 5120 wide: 0.997 of the law for 8 tokens, half of it for 2,560.
  EXPECT_EQ(lines(8, true), pairs + " of tokens; a causal prompt has half of them.");
  EXPECT_TRUE(lines(2560, true).starts_with(products));
  EXPECT_NE(lines(2560, true).find(pairs), std::string::npos);
  EXPECT_EQ(lines(2560, false), "");
  EXPECT_NE(text_report(classic()).find(products), std::string::npos);
  Question q;
  q.subject = subject_of(*find_preset("jamba"));
  q.on.chip = chip_named("h100");
  EXPECT_NE(text_report(analyze(q)).find("The law of scans counts the state alone"), std::string::npos);
  EXPECT_NE(html_report(classic()).find(products), std::string::npos);
}

TEST(Text, SaysWhyAttentionsTilesAreNotCounted) {
  Question q;
  q.subject = subject_of(*find_preset("llama-2-13b"));
  q.on.chip = chip_named("h100");
  EXPECT_EQ(text_report(analyze(q)).find("not counted"), std::string::npos);
  EXPECT_EQ(text_report(analyze(q)).find("4·S·H words are moved once"), std::string::npos);  // tiles of 228 tokens
  q.contexts = {128};
  EXPECT_NE(text_report(analyze(q)).find("4·S·H words are moved once"), std::string::npos);
  q.on.chip.unit_memory = 0;
  EXPECT_NE(text_report(analyze(q)).find("FlashAttention: not counted"), std::string::npos);
  EXPECT_NE(html_report(analyze(q)).find("not counted"), std::string::npos);
  q.subject = subject_of(*find_preset("mamba-2.8b"));
  EXPECT_EQ(text_report(analyze(q)).find("FlashAttention"), std::string::npos);
}

TEST(Text, SaysWhyNobodyIsServed) {
  auto text = [](const char* preset, auto change) {
    Question q;
    q.subject = subject_of(*find_preset(preset));
    q.on.chip = chip_named("h100");
    q.demand_words = 1e9;
    change(q);
    return text_report(analyze(q));
  };
  EXPECT_EQ(text("llama-2-13b", [](auto&) {}).find("Nobody"), std::string::npos);
  EXPECT_NE(text("llama-2-70b", [](auto&) {})
                .find("the weights alone take 138.0 GB of a chip's 80.00 GB: it takes at least 2 chips "
                      "(--tp), or weights of less than 9.3 bits"),
            std::string::npos);
  EXPECT_NE(text("llama-2-13b", [](auto& q) { q.deadline_s = 0.01; }).find("one prompt alone takes 29.65 ms"), std::string::npos);
  EXPECT_NE(text("llama-2-13b", [](auto& q) { q.user_tokens_per_s = 1000; }).find("less than 1000 tokens/s"), std::string::npos);
  EXPECT_NE(text("llama-2-13b", [](auto& q) { q.contexts = {1 << 20}; }).find("one sequence needs 885.0 GB"), std::string::npos);
  // 810 GB on chips of 80: 11 of them, but 128 heads are shared by 16.
  EXPECT_NE(text("llama-3.1-405b", [](auto&) {}).find("it takes at least 16 chips"), std::string::npos);
  const std::string draft = text("llama-3.1-8b", [](auto& q) { q.draft = {subject_of(*find_preset("llama-3.1-70b")), 0.7, 4}; });
  EXPECT_NE(draft.find("no room for the draft model llama-3.1-70b, with 141.1 GB of weights"), std::string::npos) << draft;
}

TEST(Text, Numbers) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(with_unit(0, "B"), "0.00 B");
  EXPECT_EQ(with_unit(3.35e12, "B/s"), "3.35 TB/s");
  EXPECT_EQ(with_unit(0.00802, "s"), "8.02 ms");
  EXPECT_EQ(with_unit(240.8e9, "B"), "240.8 GB");
  EXPECT_EQ(with_unit(5e-8, "s"), "0.05 µs");
  EXPECT_EQ(figure(0), "0");
  EXPECT_EQ(figure(1130.4, 3), "1,130");
  EXPECT_EQ(figure(12345.6), "12,346");
  EXPECT_EQ(figure(3.9843), "3.984");
  EXPECT_EQ(figure(0.5), "0.5");
  EXPECT_EQ(figure(0.0000123456), "0.00001235");
  EXPECT_EQ(figure(999.96), "1,000");
}

TEST(JsonReport, HasThePromisedFields) {
  Json j = Json::parse(json_report(classic()).dump());
  EXPECT_EQ(j["model"], "llama-2-13b");
  EXPECT_EQ(j["hardware"], "h100");
  EXPECT_EQ(j["symbols"], (Json{{"L", 40}, {"D", 5120}, {"F", 13824}, {"H", 128}, {"N", 40}, {"K", 40}, {"G", 1}, {"V", 32000}}));
  ASSERT_EQ(j["rows"].size(), 8u);
  for (const Json& row : j["rows"])
    for (const char* field : {"batch", "context", "parameter_bytes", "state_bytes_per_sequence", "memory_bytes", "fits", "latency_s",
                              "tokens_per_s", "step_bytes", "step_latency_s", "bound"})
      EXPECT_TRUE(row.contains(field)) << field;
  EXPECT_NEAR(j["ratio"].get<double>(), 989e12 / 3.35e12, 1e-9);
  EXPECT_EQ(j["chip"]["ratios"]["bf16"], j["ratio"]);
  EXPECT_NEAR(j["chip"]["ratios"]["fp8"].get<double>(), 1979e12 / 3.35e12, 1e-9);
  EXPECT_FALSE(j["chip"]["ratios"].contains("quantized"));  // weights of blocks are widened to bf16 there
  EXPECT_EQ(j["rows"][0]["memory_bytes"], 26'869'760'000);
  EXPECT_EQ(j["rows"][3]["fits"], false);
  EXPECT_EQ(j["rows"][0]["bound"], "memory");
  ASSERT_FALSE(j["operations"].empty());
  for (const Json& o : j["operations"])
    for (const char* field : {"phase", "operation", "flops", "bytes_read", "bytes_written", "intensity", "seconds", "bound"})
      EXPECT_TRUE(o.contains(field)) << field;
}

// Every tag is closed in order, every attribute quoted, nothing but the known entities.
void expect_well_formed(const std::string& page) {
  std::vector<std::string> open;
  for (size_t i = 0; i < page.size(); i++) {
    if (page[i] == '&') {
      std::string rest = page.substr(i, 6);
      EXPECT_TRUE(rest.starts_with("&amp;") || rest.starts_with("&lt;") || rest.starts_with("&gt;") || rest.starts_with("&quot;")) << rest;
    }
    if (page[i] != '<') {
      EXPECT_NE(page[i], '>') << "a stray > at " << i;
      continue;
    }
    size_t end = page.find('>', i);
    ASSERT_NE(end, std::string::npos);
    std::string tag = page.substr(i + 1, end - i - 1);
    i = end;
    if (tag.starts_with("!")) continue;
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), name);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(Html, IsWellFormedAndNeedsNothingElse) {
  Analysis a = classic();
  a.question.subject.name = "a <model> & \"more\"";
  std::string page = html_report(a);
  expect_well_formed(page);
  EXPECT_EQ(page.find("<model>"), std::string::npos);
  for (size_t i = page.find("http"); i != std::string::npos; i = page.find("http", i + 1))
    EXPECT_EQ(page.substr(i, 26), "http://www.w3.org/2000/svg");
  EXPECT_EQ(page.find("<script"), std::string::npos);
  for (const std::string& svg : {roofline_svg(a), throughput_svg(a), memory_svg(a)}) {
    expect_well_formed(svg);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_NE(svg.find("<polyline"), std::string::npos);
  }
  EXPECT_NE(roofline_svg(a).find("<circle"), std::string::npos);
}

struct Label {
  double left, right, middle;  // pixels
  std::string text;
};

// Everything that is written inside a picture: labels, legends.
std::vector<Label> labels_of(const std::string& svg) {
  std::vector<Label> labels;
  for (size_t i = svg.find("class=\"l\""); i != std::string::npos; i = svg.find("class=\"l\"", i + 1)) {
    double x = 0, y = 0;
    EXPECT_EQ(std::sscanf(svg.c_str() + i, "class=\"l\" x=\"%lf\" y=\"%lf\"", &x, &y), 2);
    const size_t begin = svg.find('>', i) + 1, end = svg.find('<', begin);
    const std::string tag = svg.substr(i, begin - i), text = svg.substr(begin, end - begin);
    const double width = 6 * double(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
    const bool from_right = tag.find("end") != std::string::npos;
    EXPECT_EQ(tag.find("rotate"), std::string::npos) << text;  // nobody turns his head to read
    labels.push_back({from_right ? x - width : x, from_right ? x : x + width, y - 4, text});
  }
  return labels;
}

bool overlap(const Label& a, const Label& b) { return a.left < b.right && b.left < a.right && std::fabs(a.middle - b.middle) < 10; }

TEST(Html, LabelsDoNotCoverEachOther) {
  for (const char* preset : {"llama-2-13b", "smollm2-135m", "mixtral-8x7b", "deepseek-v2", "jamba"})
    for (const char* chip : {"h100", "tpu-v5e", "a100"})
      for (auto batches : {std::vector<int64_t>{1, 16, 64, 256}, {1, 2}, {1, 4}, {16, 32}}) {
        Question q;
        q.subject = subject_of(*find_preset(preset));
        q.on.chip = chip_named(chip);
        q.on.chip.memory = 1e15;  // the largest is shown too
        q.batches = batches;
        std::vector<Label> labels = labels_of(roofline_svg(analyze(q)));
        EXPECT_GE(labels.size(), 4u + 3u) << preset;  // a legend of four lines
        for (size_t i = 0; i < labels.size(); i++) {
          EXPECT_TRUE(labels[i].left > 0 && labels[i].right < 720) << labels[i].text;
          for (size_t k = 0; k < i; k++)
            EXPECT_FALSE(overlap(labels[i], labels[k])) << preset << " " << chip << ": " << labels[i].text << " / " << labels[k].text;
        }
      }
}

// Limits that were measured while others were running are too low, and so is every time and speed that follows from them.
TEST(Html, MarksWhatABusyMachineMade) {
  Question q;
  q.subject = subject_of(*find_preset("llama-2-13b"));
  q.on.chip = chip_named("h100");
  q.demand_words = 1e9;
  const std::string quiet = text_report(analyze(q)), quiet_page = html_report(analyze(q));
  q.on.chip.others = 0.5;
  const std::string busy = text_report(analyze(q)), page = html_report(analyze(q));
  EXPECT_EQ(quiet.find('~'), std::string::npos);
  EXPECT_EQ(quiet_page.find('~'), std::string::npos);
  // The chip's limits, a row's latency, speed and price, what is served in time, headings, operations.
  for (const char* figure : {"~989.0 TFLOP/s", "~3.35 TB/s", "ratio ~295", "~8.02 ms", "~124.7", "~2.2", "~29.65 ms", "~33 ", "~2,049"})
    EXPECT_NE(busy.find(figure), std::string::npos) << figure << "\n" << busy;
  EXPECT_NE(busy.find("B, ~29.65 ms\n"), std::string::npos);
  for (const char* figure : {"~8.02 ms", "~124.7", "~2.2", "~29.65 ms", "~33<", "~2,049"})
    EXPECT_NE(page.find(figure), std::string::npos) << figure;
}

TEST(Html, OfEveryPreset) {
  for (const Preset& p : presets()) {
    Question q;
    q.subject = subject_of(p);
    q.on.chip = chip_named("tpu-v5e");  // where most of them do not fit
    std::string page = html_report(analyze(q));
    expect_well_formed(page);
    EXPECT_EQ(page.find("nan"), std::string::npos) << p.name;
  }
}

}  // namespace
}  // namespace mr
