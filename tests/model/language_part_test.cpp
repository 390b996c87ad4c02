// Models that see or hear too: their language model is described by a part of the configuration, and its tensors lie below a name.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/error.h"
#include "model/fixtures.h"
#include "model/model.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

const fs::path kPart = fs::path(MR_FIXTURES) / "models" / "gemma3n";

// That fixture inside a larger model: "model." in front of its tensors' names becomes `prefix`.
fs::path larger(const std::string& prefix) {
  const fs::path folder = fs::path(testing::TempDir()) / "larger";
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << Json{{"model_type", "gemma3n"}, {"text_config", read_json(kPart / "config.json")}};
  std::ifstream file(kPart / "model.safetensors", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  const Json tensors = Json::parse(bytes.substr(8, size));
  Json renamed;
  for (auto& [name, tensor] : tensors.items()) renamed[name.starts_with("model.") ? prefix + name.substr(6) : name] = tensor;
  const std::string header = renamed.dump();
  const uint64_t new_size = header.size();
  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&new_size), 8);
  out << header << bytes.substr(8 + size);
  return folder;
}

TEST(LanguagePart, IsTheModelThatItIsAlone) {
  auto backend = make_ref_backend();
  const ModelSpec alone = describe(*Checkpoint::open(kPart)).spec;
  const int64_t bytes = Model::load(*Checkpoint::open(kPart), *backend, {})->weight_bytes();
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model."}) {
    const auto files = Checkpoint::open(larger(prefix));
    EXPECT_EQ(describe(*files).spec, alone) << prefix;
    EXPECT_EQ(Model::load(*files, *backend, {})->weight_bytes(), bytes) << prefix;
  }
  EXPECT_THROW(Model::load(*Checkpoint::open(larger("model.vision_tower.")), *backend, {}), Error);
}

TEST(LanguagePart, MustBeKnown) {
  for (const Json& part : {Json{{"model_type", "gemma3n_vision"}}, Json::object()})
    EXPECT_THROW(spec_from({{"model_type", "gemma3n"}, {"text_config", part}}, "config.json"), Error);
}

}  // namespace
}  // namespace mr
