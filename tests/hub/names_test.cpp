// Names of models, of their files and of folders that hold them; which files of a repository are fetched.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "hub/folder.h"
#include "hub/reference.h"
#include "hub/select.h"
#include "io/file_names.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

TEST(Reference, HasAnOwnerANameAndMaybeMore) {
  auto r = parse_reference("HuggingFaceTB/SmolLM2-135M-Instruct");
  ASSERT_TRUE(r);
  EXPECT_EQ(r->repo, "HuggingFaceTB/SmolLM2-135M-Instruct");
  EXPECT_EQ(r->revision_or_main(), "main");
  for (const char* both : {"a/b:Q4_K_M@v1.0", "a/b@v1.0:Q4_K_M", "hf.co/a/b:Q4_K_M@v1.0", "https://huggingface.co/a/b:Q4_K_M@v1.0"}) {
    r = parse_reference(both);
    ASSERT_TRUE(r) << both;
    EXPECT_EQ(r->text(), "a/b:Q4_K_M@v1.0");
  }
  EXPECT_EQ(parse_reference("a/b@refs/pr/3")->revision, "refs/pr/3");
  EXPECT_EQ(parse_reference("a/b:sub/x.gguf")->select, "sub/x.gguf");
  EXPECT_EQ(parse_reference("a/b:sub/blob/main/x.gguf")->select, "sub/blob/main/x.gguf");
}

TEST(Reference, IsReadFromABrowsersAddress) {
  auto r = parse_reference("https://huggingface.co/a/b/blob/main/sub/x-Q8_0.gguf?download=true");
  ASSERT_TRUE(r);
  EXPECT_EQ(r->text(), "a/b:sub/x-Q8_0.gguf");
  EXPECT_EQ(parse_reference("https://huggingface.co/a/b/resolve/v2/x.gguf")->revision, "v2");
  EXPECT_EQ(parse_reference("https://huggingface.co/a/b/")->text(), "a/b");
  EXPECT_EQ(parse_reference("https://huggingface.co/a/b/tree/main")->text(), "a/b");
  EXPECT_EQ(parse_reference("https://huggingface.co/a/b/tree/v2/")->text(), "a/b@v2");
}

TEST(Reference, NeverLeadsOutOfTheCache) {
  for (const char* bad : {"",       "a",           "/a/b",   "a/",       "../b",   "a/..",     "a/b/c",           "./a/b",         "~/x",
                          "a--b/c", "a/b@../../x", "a/b@-x", "a/b@x..y", "a/b@/x", "a/b:../x", "a/b:/etc/passwd", "a/b:x/../../y", "a/b:",
                          "a/b@",   "a/b:x:y",     "a /b",   "a/b\n",    "a/.b",   "-a/b",     "a/b@x\\y",        "a/b@.git"})
    EXPECT_FALSE(parse_reference(bad)) << bad;
}

TEST(FileName, StaysInItsRepository) {
  for (const char* good : {"config.json", "a/b/c.json", "..a", "x..y", "ä.json", "a b"}) EXPECT_TRUE(is_file_in_repository(good)) << good;
  for (std::string bad : {"", "/", "/a", "a/", "..", "a/..", "a/../b", "./a", "a//b", "a\\b", "a\nb", "a\x7f"})
    EXPECT_FALSE(is_file_in_repository(bad)) << bad;
  EXPECT_FALSE(is_file_in_repository(std::string("a\0b", 3)));
  // What would turn or act on a terminal, and what is no UTF-8: a right-to-left override, C1's CSI, a line separator, half a letter.
  for (const char* bad : {"a\u202Efdp.json", "a\u009B2J", "a\u2028b", "a\xC3", "\xFF", "\xED\xA0\x80"})
    EXPECT_FALSE(is_file_in_repository(bad)) << bad;
  EXPECT_FALSE(is_file_in_repository(std::string(300, 'a')));
}

TEST(Quantization, IsTheEndOfAName) {
  EXPECT_EQ(quantization_of("Qwen3-0.6B-Q4_K_M.gguf"), "Q4_K_M");
  EXPECT_EQ(quantization_of("SmolLM2-135M-Instruct.Q4_1.gguf"), "Q4_1");
  EXPECT_EQ(quantization_of("qwen2.5-0.5b-instruct-q8_0.gguf"), "Q8_0");
  EXPECT_EQ(quantization_of("sub/Qwen3-UD-Q4_K_XL-00001-of-00002.gguf"), "UD-Q4_K_XL");
  EXPECT_EQ(quantization_of("gpt-oss-20b-mxfp4.gguf"), "MXFP4");
  EXPECT_EQ(quantization_of("x-IQ2_XXS.gguf"), "IQ2_XXS");
  EXPECT_EQ(quantization_of("x-bf16.gguf"), "BF16");
  for (const char* none : {"model.gguf", "Qwen-7B.gguf", "Quick.gguf", "x-v1.0.gguf"}) EXPECT_EQ(quantization_of(none), "") << none;
}

Repository repository(std::initializer_list<const char*> names) {
  Repository r{.name = "a/b"};
  for (const char* name : names) r.files.push_back({.name = name, .size = int64_t(1000 + r.files.size())});
  return r;
}

std::vector<std::string> chosen(const Repository& r, const std::string& select = "") {
  std::vector<std::string> names;
  for (const HubFile& f : choose_files(r, select)) names.push_back(f.name);
  std::ranges::sort(names);
  return names;
}

using Names = std::vector<std::string>;

TEST(Select, TakesWeightsAndWhatBelongsToThem) {
  const Repository r = repository({".gitattributes", "LICENSE", "README.md", "config.json", "tokenizer.json", "tokenizer.model",
                                   "merges.txt", "chat_template.jinja", "model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors", "model.safetensors.index.json", "consolidated.safetensors",
                                   "pytorch_model.bin", "original/params.json", "onnx/model.onnx", "flax_model.msgpack", "image.png"});
  EXPECT_EQ(chosen(r),
            (Names{"LICENSE", "README.md", "chat_template.jinja", "config.json", "merges.txt", "model-00001-of-00002.safetensors",
                   "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer.model"}));
}

TEST(Select, TakesOneGgufWithAllItsParts) {
  const Repository r = repository({"README.md", "config.json", "m-Q4_K_M.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf",
                                   "Q8_0/m-Q8_0-00002-of-00002.gguf", "mmproj-m-f16.gguf", "m.imatrix.gguf"});
  EXPECT_EQ(chosen(r, "q4_k_m"), Names{"m-Q4_K_M.gguf"});
  const Names both{"Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"};
  EXPECT_EQ(chosen(r, "Q8_0"), both);
  EXPECT_EQ(chosen(r, "Q8_0/m-Q8_0-00002-of-00002.gguf"), both);
  EXPECT_EQ(chosen(r, "m-Q4_K_M.gguf"), Names{"m-Q4_K_M.gguf"});
  EXPECT_EQ(chosen(repository({"only.gguf", "README.md"})), Names{"only.gguf"});
}

TEST(Select, ListsWhatCouldBeMeant) {
  const Repository r = repository({"m-Q8_0.gguf", "m-Q4_0.gguf", "instruct/m-Q4_0.gguf"});
  for (const char* select : {"", "Q5_0"}) try {
      choose_files(r, select);
      FAIL();
    } catch (const SeveralModels& e) {
      Names names;
      for (auto& o : e.options) names.push_back(o.select);
      EXPECT_EQ(names, (Names{"Q8_0", "m-Q4_0.gguf", "instruct/m-Q4_0.gguf"}));  // by size; a label that two have is no choice
      EXPECT_EQ(e.options[0].bytes, 1000);
    }
}

std::string refusal(const Repository& r, const std::string& select = "") {
  try {
    choose_files(r, select);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Select, SaysWhatARepositoryHasInstead) {
  EXPECT_NE(refusal(repository({"config.json", "pytorch_model.bin"})).find("pickle"), std::string::npos);
  EXPECT_NE(refusal(repository({"adapter_config.json", "adapter_model.safetensors"})).find("LoRA"), std::string::npos);
  EXPECT_NE(refusal(repository({"model_index.json", "unet/x.safetensors"})).find("diffusers"), std::string::npos);
  EXPECT_NE(refusal(repository({"README.md"})).find("neither"), std::string::npos);
  EXPECT_NE(refusal(repository({"model.safetensors"})).find("config.json"), std::string::npos);
  EXPECT_NE(refusal(repository({"config.json", "model.safetensors"}), "Q4_0").find("no GGUF"), std::string::npos);
  EXPECT_NE(refusal(repository({"m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"})).find("2 of the 3"), std::string::npos);
}

class Folder : public testing::Test {
 protected:
  Folder() {
    char name[] = "/tmp/millrace-folder-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() override { fs::remove_all(path); }
  void add(const std::string& name, const std::string& text = "x") {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
  fs::path path;
};

TEST_F(Folder, HasModelsOfOneOrSeveralFiles) {
  for (const char* file : {"README.md", "one-Q8_0.gguf", "mmproj-f16.gguf", "two-00003-of-00003.gguf", "two-00001-of-00003.gguf"})
    add(file);
  const std::vector<LocalModel> models = models_in(path);
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].format(), "GGUF Q8_0");
  EXPECT_EQ(models[0].problem, "");
  EXPECT_EQ(models[1].path, path / "two-00001-of-00003.gguf");
  EXPECT_EQ(models[1].bytes, 2);
  EXPECT_NE(models[1].problem.find("1 of its 3 parts is missing"), std::string::npos) << models[1].problem;
}

TEST_F(Folder, OfHuggingFaceIsOneModel) {
  add("config.json", R"({"torch_dtype": "bfloat16"})");
  add("model.safetensors", "1234");
  add("sub/m-Q8_0.gguf");
  ASSERT_EQ(models_in(path).size(), 1u);
  EXPECT_EQ(models_in(path)[0].format(), "safetensors BF16");
  EXPECT_EQ(models_in(path)[0].path, path);
  EXPECT_EQ(models_in(path, 1).size(), 2u);
  fs::create_symlink("nowhere", path / "tokenizer.json");
  EXPECT_NE(models_in(path)[0].problem.find("tokenizer.json is missing"), std::string::npos);
}

}  // namespace
}  // namespace mr
