// Reads tokenizer.json (the `tokenizers` library's format): a model of type BPE with its normalizer, pre-tokenizer,
// post-processor and decoder. Parts that are not supported are refused by name.
#include <unordered_map>

#include "core/error.h"
#include "text/byte_alphabet.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

namespace mr {

namespace {

using Behavior = PreTokenizerStep::Behavior;

const Json* member(const Json& object, const char* key) {
  auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

template <class T>
T get(const Json& object, const char* key, T fallback) {
  const Json* value = member(object, key);
  if (value == nullptr) return fallback;
  try {
    return value->get<T>();
  } catch (const Json::exception&) {
    fail("tokenizer.json: '{}' has an unexpected type", key);
  }
}

// A whole number between low and high.
int32_t number(const Json& json, const char* what, int32_t low, int32_t high) {
  bool ok = json.is_number_integer() && json >= low && json <= high;
  check(ok, "tokenizer.json: '{}' is not a whole number between {} and {}", what, low, high);
  return json.get<int32_t>();
}

int32_t number(const Json& object, const char* key, int32_t fallback, int32_t low, int32_t high) {
  const Json* value = member(object, key);
  return value == nullptr ? fallback : number(*value, key, low, high);
}

constexpr int max_nesting = 16;  // of Sequences
void check_nesting(int depth) { check(depth < max_nesting, "tokenizer.json: a Sequence nests more than {} levels deep", max_nesting); }

std::string type_of(const Json& object) { return get<std::string>(object, "type", ""); }

const Json& list(const Json& object, const char* key) {
  const Json* value = member(object, key);
  check(value != nullptr && value->is_array(), "tokenizer.json: a {} lacks its list '{}'", type_of(object), key);
  return *value;
}

// {"String": "x"} or {"Regex": "x"}, as a regular expression.
std::string pattern_of(const Json& object) {
  const Json* pattern = member(object, "pattern");
  check(pattern != nullptr && pattern->is_object(), "tokenizer.json: a {} lacks its pattern", type_of(object));
  if (const Json* regex = member(*pattern, "Regex"); regex != nullptr && regex->is_string()) return regex->get<std::string>();
  return Regex::escape(get<std::string>(*pattern, "String", ""));
}

Behavior behavior_of(const Json& object, const char* fallback) {
  std::string name = get<std::string>(object, "behavior", fallback);
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  fail("tokenizer.json: the split behavior '{}' is not known", name);
}

void read_normalizer(const Json& json, std::vector<NormalizerStep>& steps, int depth = 0) {
  check_nesting(depth);
  using Kind = NormalizerStep::Kind;
  static const std::unordered_map<std::string, Kind> plain = {{"NFC", Kind::nfc},
                                                              {"NFD", Kind::nfd},
                                                              {"NFKC", Kind::nfkc},
                                                              {"NFKD", Kind::nfkd},
                                                              {"Lowercase", Kind::lowercase},
                                                              {"StripAccents", Kind::strip_accents}};
  std::string type = type_of(json);
  if (auto found = plain.find(type); found != plain.end()) {
    steps.push_back({found->second, "", ""});
  } else if (type == "Sequence") {
    for (const Json& step : list(json, "normalizers")) read_normalizer(step, steps, depth + 1);
  } else if (type == "Strip") {
    if (get(json, "strip_left", true)) steps.push_back({Kind::strip_left, "", ""});
    if (get(json, "strip_right", true)) steps.push_back({Kind::strip_right, "", ""});
  } else if (type == "Prepend") {
    steps.push_back({Kind::prepend, "", get<std::string>(json, "prepend", "")});
  } else if (type == "Replace") {
    const Json* pattern = member(json, "pattern");
    const Json* literal = pattern ? member(*pattern, "String") : nullptr;
    std::string to = get<std::string>(json, "content", "");
    if (literal != nullptr && literal->is_string()) {
      steps.push_back({Kind::replace, literal->get<std::string>(), to});
    } else {
      steps.push_back({Kind::replace_regex, pattern_of(json), to});
    }
  } else {
    fail("tokenizer.json: the normalizer '{}' is not supported", type);
  }
}

PreTokenizerStep split_step(std::string pattern, Behavior behavior, bool invert = false) {
  PreTokenizerStep step;
  step.pattern = std::move(pattern);
  step.behavior = behavior;
  step.invert = invert;
  return step;
}

PreTokenizerStep metaspace_step(const Json& json) {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::metaspace;
  step.replacement = get<std::string>(json, "replacement", "▁");
  std::string scheme = get<std::string>(json, "prepend_scheme", get(json, "add_prefix_space", true) ? "always" : "never");
  step.prefix = scheme != "never";
  step.only_first = scheme == "first";
  step.behavior = get(json, "split", true) ? Behavior::merged_with_next : Behavior::isolated;
  return step;
}

void read_pre_tokenizer(const Json& json, TokenizerData& data, int depth = 0) {
  check_nesting(depth);
  auto add = [&](PreTokenizerStep step) { data.pre_tokenizer.push_back(std::move(step)); };
  std::string type = type_of(json);
  check(!data.byte_level, "tokenizer.json: the pre-tokenizer '{}' comes after ByteLevel, which is not supported", type);
  if (type == "Sequence") {
    for (const Json& step : list(json, "pretokenizers")) read_pre_tokenizer(step, data, depth + 1);
  } else if (type == "ByteLevel") {
    if (get(json, "add_prefix_space", true)) {
      PreTokenizerStep step;
      step.kind = PreTokenizerStep::Kind::prefix_space;
      add(step);
    }
    if (get(json, "use_regex", true)) add(split_step(gpt2_split, Behavior::isolated));
    data.byte_level = true;
  } else if (type == "Split") {
    add(split_step(pattern_of(json), behavior_of(json, "Isolated"), get(json, "invert", false)));
  } else if (type == "Digits") {
    add(split_step(R"(\p{N})", get(json, "individual_digits", false) ? Behavior::isolated : Behavior::contiguous));
  } else if (type == "Punctuation") {
    add(split_step(R"([!-\/:-@\[-`{-~\p{P}])", behavior_of(json, "Isolated")));
  } else if (type == "Whitespace") {
    add(split_step(R"(\w+|[^\w\s]+)", Behavior::removed, true));
  } else if (type == "WhitespaceSplit") {
    add(split_step(R"(\s)", Behavior::removed));
  } else if (type == "BertPreTokenizer") {
    add(split_step(R"(\s)", Behavior::removed));
    add(split_step(R"([!-\/:-@\[-`{-~\p{P}])", Behavior::isolated));
  } else if (type == "CharDelimiterSplit") {
    add(split_step(Regex::escape(get<std::string>(json, "delimiter", " ")), Behavior::removed));
  } else if (type == "Metaspace") {
    add(metaspace_step(json));
  } else {
    fail("tokenizer.json: the pre-tokenizer '{}' is not supported", type);
  }
}

void read_vocabulary(const Json& model, TokenizerData& data) {
  const Json* vocab = member(model, "vocab");
  check(vocab != nullptr && vocab->is_object(), "tokenizer.json: the model lacks its vocab");
  const size_t most = most_ids(vocab->size());
  for (const auto& [piece, id] : vocab->items()) {
    check(id.is_number_integer() && id >= 0 && id < most, "tokenizer.json: the token '{}' has no usable id", piece);
    auto at = id.get<size_t>();
    if (data.pieces.size() <= at) data.pieces.resize(at + 1);
    data.pieces[at] = piece;
  }
}

// Merges are "left right" or ["left", "right"], best first.
void read_merges(const Json& model, TokenizerData& data) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < data.pieces.size(); ++id) {
    if (!data.pieces[id].empty()) ids.emplace(data.pieces[id], static_cast<int32_t>(id));
  }
  auto id_of = [&](const std::string& piece, size_t rank) {
    auto found = ids.find(piece);
    check(found != ids.end(), "tokenizer.json: merge {} needs the token '{}', which the vocabulary lacks", rank, piece);
    return found->second;
  };
  const Json& merges = list(model, "merges");
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    std::string left, right;
    if (const Json& merge = merges[rank]; merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      size_t space = text.find(' ');
      check(space != std::string::npos, "tokenizer.json: merge {} is not a pair: '{}'", rank, text);
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      check(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(), "tokenizer.json: merge {} is not a pair",
            rank);
      left = merge[0];
      right = merge[1];
    }
    data.merges.push_back({id_of(left, rank), id_of(right, rank), id_of(left + right, rank)});
  }
}

void read_model(const Json& json, TokenizerData& data) {
  const Json* model = member(json, "model");
  check(model != nullptr && model->is_object(), "tokenizer.json: there is no model");
  std::string type = get<std::string>(*model, "type", member(*model, "merges") ? "BPE" : "");
  check(type == "BPE", "tokenizer.json: the model type '{}' is not supported, only BPE is", type);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    check(get<std::string>(*model, key, "").empty(), "tokenizer.json: the model's {} is not supported", key);
  }
  read_vocabulary(*model, data);
  read_merges(*model, data);
  data.byte_fallback = get(*model, "byte_fallback", false);
  data.ignore_merges = get(*model, "ignore_merges", false);
  data.fuse_unknown = get(*model, "fuse_unk", false);
  std::string unknown = get<std::string>(*model, "unk_token", "");
  for (size_t id = 0; !unknown.empty() && id < data.pieces.size(); ++id) {
    if (data.pieces[id] == unknown) data.unknown = static_cast<int32_t>(id);
  }
}

void read_added_tokens(const Json& json, TokenizerData& data) {
  if (member(json, "added_tokens") == nullptr) return;
  for (const Json& token : list(json, "added_tokens")) {
    data.added.push_back({get<std::string>(token, "content", ""), number(token, "id", -1, -1, INT32_MAX), get(token, "special", false),
                          get(token, "lstrip", false), get(token, "rstrip", false), get(token, "single_word", false),
                          get(token, "normalized", true)});
  }
}

void read_template(const Json& json, TokenizerData& data) {
  constexpr size_t most = 1024;  // ids; an entry of the file may be named again and again
  const Json* special = member(json, "special_tokens");
  bool before = true;
  for (const Json& item : list(json, "single")) {
    const Json* token = member(item, "SpecialToken");
    if (token == nullptr) {
      before = false;
      continue;
    }
    std::string name = get<std::string>(*token, "id", "");
    const Json* entry = special ? member(*special, name.c_str()) : nullptr;
    check(entry != nullptr, "tokenizer.json: the post-processor's token '{}' is not defined", name);
    for (const Json& id : list(*entry, "ids")) {
      std::vector<int32_t>& ids = before ? data.prefix : data.suffix;
      check(ids.size() < most, "tokenizer.json: the post-processor adds more than {} tokens", most);
      ids.push_back(number(id, "ids", 0, INT32_MAX));
    }
  }
}

void read_post_processor(const Json& json, TokenizerData& data, int depth = 0) {
  check_nesting(depth);
  std::string type = type_of(json);
  if (type == "Sequence") {
    for (const Json& step : list(json, "processors")) read_post_processor(step, data, depth + 1);
  } else if (type == "TemplateProcessing") {
    read_template(json, data);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    const Json &cls = list(json, "cls"), &sep = list(json, "sep");
    check(cls.size() == 2 && sep.size() == 2, "tokenizer.json: {} lacks its tokens", type);
    data.prefix.push_back(number(cls[1], "cls", 0, INT32_MAX));
    data.suffix.push_back(number(sep[1], "sep", 0, INT32_MAX));
  } else {
    check(type == "ByteLevel", "tokenizer.json: the post-processor '{}' is not supported", type);  // it only moves offsets
  }
}

struct DecoderKinds {
  bool byte_level = false, byte_fallback = false, fuse = false;
};

void read_decoder(const Json& json, TokenizerData& data, DecoderKinds& kinds, int depth = 0) {
  check_nesting(depth);
  std::string type = type_of(json);
  DecoderRules& rules = data.decoder;
  if (type == "Sequence") {
    for (const Json& step : list(json, "decoders")) read_decoder(step, data, kinds, depth + 1);
  } else if (type == "ByteLevel") {
    kinds.byte_level = true;
  } else if (type == "ByteFallback") {
    kinds.byte_fallback = true;
  } else if (type == "Fuse") {
    kinds.fuse = true;
  } else if (type == "Replace") {
    const Json* pattern = member(json, "pattern");
    const Json* literal = pattern ? member(*pattern, "String") : nullptr;
    check(literal != nullptr && literal->is_string(), "tokenizer.json: a Replace decoder with a regular expression is not supported");
    rules.replace.emplace_back(literal->get<std::string>(), get<std::string>(json, "content", ""));
  } else if (type == "Strip") {
    check(kinds.fuse && number(json, "stop", 0, 0, INT32_MAX) == 0,
          "tokenizer.json: a Strip decoder is supported only after Fuse and at the start of the text");
    rules.strip_first = get<std::string>(json, "content", " ");
    rules.strip_first_count = rules.strip_first.empty() ? 0 : number(json, "start", 0, 0, 1024);
  } else if (type == "Metaspace") {
    rules.replace.emplace_back(get<std::string>(json, "replacement", "▁"), " ");
    rules.drop_in_first_token = metaspace_step(json).prefix;
  } else {
    fail("tokenizer.json: the decoder '{}' is not supported", type);
  }
}

// A token named in tokenizer_config.json: a string, or an object with its content.
int32_t named_token(const Json& config, const char* key, const TokenizerData& data) {
  const Json* value = member(config, key);
  if (value != nullptr && value->is_object()) value = member(*value, "content");
  if (value == nullptr || !value->is_string()) return -1;
  const auto& name = value->get_ref<const std::string&>();
  for (const AddedToken& token : data.added) {
    if (token.content == name) return token.id;
  }
  for (size_t id = 0; id < data.pieces.size(); ++id) {
    if (data.pieces[id] == name) return static_cast<int32_t>(id);
  }
  return -1;
}

std::string template_of(const Json& config) {
  const Json* value = member(config, "chat_template");
  if (value == nullptr) return {};
  if (value->is_string()) return *value;
  if (!value->is_array() || value->empty()) return {};
  for (const Json& entry : *value) {
    if (get<std::string>(entry, "name", "") == "default") return get<std::string>(entry, "template", "");
  }
  return get<std::string>((*value)[0], "template", "");
}

void read_config(const Json& config, TokenizerData& data) {
  data.bos = named_token(config, "bos_token", data);
  data.eos = named_token(config, "eos_token", data);
  data.chat_template = template_of(config);
  // transformers' Llama and Gemma classes let these flags overrule the post-processor.
  std::string tokenizer_class = get<std::string>(config, "tokenizer_class", "");
  if (tokenizer_class.find("Llama") == std::string::npos && tokenizer_class.find("Gemma") == std::string::npos) return;
  auto apply = [&](const char* flag, int32_t id, std::vector<int32_t>& around) {
    if (const Json* wanted = member(config, flag); wanted != nullptr && wanted->is_boolean() && id >= 0) {
      around.assign(wanted->get<bool>() ? 1 : 0, id);
    }
  };
  apply("add_bos_token", data.bos, data.prefix);
  apply("add_eos_token", data.eos, data.suffix);
}

// Without tokenizer_config.json: by the usual names.
void guess_config(TokenizerData& data) {
  auto first_of = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      for (const AddedToken& token : data.added) {
        if (token.special && token.content == name) return token.id;
      }
    }
    return int32_t{-1};
  };
  data.bos = !data.prefix.empty() ? data.prefix[0] : first_of({"<s>", "<|begin_of_text|>", "<bos>", "<|im_start|>"});
  data.eos = first_of({"</s>", "<|eot_id|>", "<eos>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>"});
}

}  // namespace

TokenizerData read_tokenizer_json(const Json& tokenizer_json, const Json* tokenizer_config) {
  TokenizerData data;
  read_model(tokenizer_json, data);
  read_added_tokens(tokenizer_json, data);
  if (const Json* normalizer = member(tokenizer_json, "normalizer")) read_normalizer(*normalizer, data.normalizer);
  if (const Json* pre_tokenizer = member(tokenizer_json, "pre_tokenizer")) read_pre_tokenizer(*pre_tokenizer, data);
  if (const Json* post_processor = member(tokenizer_json, "post_processor")) read_post_processor(*post_processor, data);
  DecoderKinds kinds;
  const Json* decoder = member(tokenizer_json, "decoder");
  if (decoder != nullptr) read_decoder(*decoder, data, kinds);
  if (decoder == nullptr) data.decoder.separator.push_back(' ');
  check(kinds.byte_level == data.byte_level, "tokenizer.json: ByteLevel must be both in the pre-tokenizer and in the decoder");
  check(kinds.byte_fallback || !data.byte_fallback, "tokenizer.json: the model falls back to bytes but the decoder does not undo it");
  if (tokenizer_config != nullptr) {
    read_config(*tokenizer_config, data);
  } else {
    guess_config(data);
  }
  if (data.byte_level) ByteAlphabet().convert(data);
  return data;
}

Tokenizer Tokenizer::from_json(const Json& tokenizer_json, const Json* tokenizer_config) {
  return Tokenizer(read_tokenizer_json(tokenizer_json, tokenizer_config));
}

}  // namespace mr
