// millrace tokenize, detokenize: ids and pieces.
#include "cli/cli.h"
#include "cli/options.h"
#include "core/error.h"
#include "engine/load.h"
#include "hub/models.h"

namespace mr {

namespace {

struct TokenizeFlags {
  std::string model, text;
  bool special = false, json = false;
};

struct DetokenizeFlags {
  std::string model;
  std::vector<int32_t> ids;
  bool json = false;
};

Json valid_text(const std::string& bytes) {  // a piece may be half a character
  return Json::parse(Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace));
}

int tokenize(TokenizeFlags& f) {
  ModelFiles files = open_model(find_model(f.model));
  check(files.tokenizer.has_value(), "this model comes without a tokenizer");
  std::vector<int32_t> ids = files.tokenizer->encode(f.text == "-" ? read_file("-") : f.text, f.special);
  Json pieces = Json::array();
  for (int32_t id : ids) pieces.push_back(valid_text(files.tokenizer->piece(id)));
  if (f.json) {
    fmt::print("{}\n", Json{{"tokens", ids}, {"pieces", pieces}}.dump());
    return 0;
  }
  for (size_t i = 0; i < ids.size(); i++) fmt::print("{:>7} {}\n", ids[i], printable(pieces[i].dump()));
  return 0;
}

int detokenize(DetokenizeFlags& f) {
  ModelFiles files = open_model(find_model(f.model));
  check(files.tokenizer.has_value(), "this model comes without a tokenizer");
  for (int32_t id : f.ids)
    check(id >= 0 && id < files.tokenizer->vocab_size(), "token {} is not in the vocabulary of {}", id, files.tokenizer->vocab_size());
  std::string text = files.tokenizer->decode(f.ids, false);
  if (f.json) {
    fmt::print("{}\n", Json{{"tokens", f.ids}, {"text", text}}.dump());
  } else {
    fmt::print("{}\n", text);
  }
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& program, Action& chosen) {
  add_command<TokenizeFlags>(
      program, chosen, "tokenize", "text to token ids",
      [](CLI::App& app, TokenizeFlags& f) {
        app.add_option("MODEL", f.model, "the model whose tokenizer to use")->required();
        app.add_option("TEXT", f.text, "the text; -: standard input")->required();
        app.add_flag("--add-special", f.special, "add the tokens that the model expects around a text");
        app.add_flag("--json", f.json, "one JSON object");
      },
      tokenize);
}

void add_detokenize(CLI::App& program, Action& chosen) {
  add_command<DetokenizeFlags>(
      program, chosen, "detokenize", "token ids to text",
      [](CLI::App& app, DetokenizeFlags& f) {
        app.add_option("MODEL", f.model, "the model whose tokenizer to use")->required();
        app.add_option("IDS", f.ids, "token ids: 1,2,3")->delimiter(',')->required();
        app.add_flag("--json", f.json, "one JSON object");
      },
      detokenize);
}

}  // namespace mr
