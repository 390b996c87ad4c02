// What is not read here is named, with what to do about it; what can be found is found.
#include "io/other_formats.h"

#include "io/files.h"

namespace mr::test {

namespace {

class Folder : public testing::Test {
 protected:
  std::string error() {
    return error_of([&] { Checkpoint::open(dir_.path()); });
  }
  TempDir dir_;
};

}  // namespace

TEST_F(Folder, WithOneGgufFileIsThatFile) {
  const std::string bytes = read_file(fixture("types.gguf"));
  write_file(dir_ / "some.Q4_0.gguf", bytes);
  write_file(dir_ / "mmproj-some.gguf", "not a model");
  auto c = Checkpoint::open(dir_.path());
  EXPECT_TRUE(c->is_gguf());
  EXPECT_EQ(c->path(), dir_ / "some.Q4_0.gguf");
  write_file(dir_ / "config.json", "{}");  // beside it, as some publish them
  EXPECT_TRUE(Checkpoint::open(dir_.path())->is_gguf());
  write_file(dir_ / "some.Q8_0.gguf", bytes);
  expect_says(error(), {"2 GGUF files", "some.Q4_0.gguf, some.Q8_0.gguf"});
}

TEST_F(Folder, LooseWeightsAndAdaptersAreNamed) {
  expect_says(error(), {"is empty"});
  write_file(dir_ / "config.json", "{}");
  write_file(dir_ / "pytorch_model.bin", "PK\x03\x04");
  expect_says(error(), {dir_.path().native(), "pickled", "safetensors"});
  expect_says(error_of([&] { Checkpoint::open(dir_ / "pytorch_model.bin"); }), {"pytorch_model.bin", "pickled"});
  write_file(dir_ / "adapter_config.json", R"({"base_model_name_or_path": "owner/base"})");
  expect_says(error(), {"LoRA", "'owner/base'", "merge"});
}

TEST_F(Folder, PointersAndPagesAreNoTensors) {
  write_file(dir_ / "config.json", "{}");
  write_file(dir_ / "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  expect_says(error(), {"model.safetensors", "Git LFS", "git lfs pull"});
  write_file(dir_ / "model.safetensors", "<!DOCTYPE html><html>404</html>");
  expect_says(error(), {"web page"});
  write_file(dir_ / "x.gguf", "version https://git-lfs.github.com/spec/v1\n");
  expect_says(error_of([&] { Checkpoint::open(dir_ / "x.gguf"); }), {"x.gguf", "Git LFS"});
}

TEST_F(Folder, AModelInsideIsPointedAt) {
  fs::create_directory(dir_ / "inner");
  write_file(dir_ / "inner" / "config.json", "{}");
  expect_says(error(), {"'inner'"});
}

TEST_F(Folder, QuantizationsAreFoundAndNamed) {
  auto text = [&](const char* config) { return quantization_text(quantization_in(Json::parse(config), dir_.path())); };
  EXPECT_EQ(text(R"({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})"), "AWQ, 4 bits, groups of 128");
  EXPECT_EQ(text(R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}})"),
            "compressed-tensors, pack-quantized");
  EXPECT_EQ(text(R"({"compression_config": {"format": "float-quantized"}})"), "compressed-tensors, float-quantized");
  EXPECT_EQ(text(R"({"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}})"),
            "MLX, 4 bits, groups of 64");
  EXPECT_EQ(text("{}"), "");
  write_file(dir_ / "hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  EXPECT_EQ(text("{}"), "modelopt");
  write_file(dir_ / "quant_config.json", R"({"w_bit": 4, "q_group_size": 64})");
  EXPECT_EQ(text("{}"), "AWQ, 4 bits, groups of 64");
  write_file(dir_ / "quantize_config.json", R"({"bits": 3, "group_size": -1})");
  EXPECT_EQ(text("{}"), "GPTQ, 3 bits");
}

}  // namespace mr::test
