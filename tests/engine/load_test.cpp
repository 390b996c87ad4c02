// What lies in a model's directory and is no file.
#include "engine/load.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/error.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

// Opening a pipe would wait for someone who writes into it.
TEST(Load, RefusesPipes) {
  std::string name = (fs::temp_directory_path() / "millrace-load-XXXXXX").string();
  const fs::path folder = mkdtemp(name.data()), model = fs::path(MR_FIXTURES) / "models" / "llama_gqa";
  for (const char* pipe : {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"}) {
    fs::remove_all(folder);
    fs::create_directory(folder);
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy_file(model / file, folder / file);
    fs::copy_file(fs::path(MR_FIXTURES) / "text" / "smollm2.tokenizer.json", folder / "tokenizer.json");
    EXPECT_NO_THROW(open_model(folder, Checkpoint::Want::tensors));
    fs::remove(folder / pipe);
    ASSERT_EQ(mkfifo((folder / pipe).c_str(), 0600), 0);
    try {
      open_model(folder, Checkpoint::Want::tensors);
      ADD_FAILURE() << pipe;
    } catch (const Error& e) {
      EXPECT_NE(std::string_view(e.what()).find("not a regular file"), std::string_view::npos) << e.what();
    }
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace mr
