#include "analyze/subject.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "hub/models.h"
#include "model/arch/arch.h"

namespace mr {

namespace fs = std::filesystem;

// A set of matrices: mean bytes of a weight, and the format of most bytes.
struct Stored {
  std::map<std::string, double> bytes;
  double weights = 0;

  void add(const StoredTensor& t) {
    double n = 1;
    for (int64_t d : t.shape) n *= double(d);
    weights += n;
    bytes[t.format] += double(t.bytes.size());
  }
  void add(const Weight& w) {
    weights += double(w.in * w.out);
    bytes[std::string(w.codec->name)] += double(w.bytes());
  }
  void into(double& each, NumberFormat::Product& product, std::string& name) const {
    if (weights == 0) return;
    double sum = 0, most = 0;
    for (auto& [format, n] : bytes) {
      sum += n;
      if (n > most) {
        most = n;
        name = format;
      }
    }
    each = sum / weights;
    product = product_of(name);
  }
};

static Storage storage_of(const Stored& blocks, const Stored& tables) {
  Storage s;
  blocks.into(s.block, s.block_product, s.block_name);
  tables.into(s.table, s.table_product, s.table_name);
  return s;
}

Storage storage_of(const Program& program) {
  Stored blocks, tables;
  for (const Op& op : program.whole.ops) {
    if (auto* e = op.get<EmbedOp>()) tables.add(*e->table);
    if (auto* l = op.get<LinearOp>()) (op.name == "output" ? tables : blocks).add(*l->weight);
    if (auto* g = op.get<GroupedLinearOp>())
      for (const Weight& expert : g->experts) blocks.add(expert);
  }
  return storage_of(blocks, tables);
}

// Null: a model that cannot run.
static std::shared_ptr<const Model> outline_of(const Checkpoint& files) {
  const auto backend = make_ref_backend();
  try {
    return Model::outline(files, *backend, {});
  } catch (const Error&) {
    return nullptr;
  }
}

// A quantized weight lies in several tensors, whose shapes do not tell how many numbers they stand for; its codec does.
static Storage storage_of(const Checkpoint& files, const NameMap& names, const Model* outline) {
  if (outline && !files.quantization().empty()) return storage_of(outline->program());
  Stored blocks, tables;
  auto is_table = [&](const std::string& tensor) {
    for (const char* role : {"embedding", "output", "per_layer_embedding"})
      if (names.find(role) && tensor.starts_with(names.name(role, {}) + ".")) return true;
    return false;
  };
  for (const StoredTensor& t : files.tensors())
    if (t.shape.size() >= 2) (is_table(t.name) ? tables : blocks).add(t);
  return storage_of(blocks, tables);
}

Storage storage_of(const Checkpoint& files) { return storage_of(files, describe(files).names, outline_of(files).get()); }

std::vector<Operation> operations(const Subject& s, const Phase& phase, int chips) {
  return s.program ? s.program->operations(s.storage, std::span(&phase, 1), chips) : operations(s.spec, s.storage, phase, chips);
}

// Models that cannot run keep their closed forms.
static void record(Subject& s, const Checkpoint& files) {
  s.outline = outline_of(files);
  if (s.outline) s.program = std::make_shared<ProgramCosts>(s.outline->program());
}

void describe_as(Subject& s, ModelSpec spec) {
  if (spec == s.spec) return;
  s.spec = std::move(spec);
  s.outline = nullptr;
  s.program = nullptr;
}

Subject subject_of(const Preset& p) { return {std::string(p.name), spec_of(p), {}}; }

static fs::path found(const std::string& model) {
  try {
    return find_model(model);
  } catch (const Error& e) {
    if (model.empty()) throw;
    fail("{}; without files these can be analysed: {}", e.what(), preset_names());
  }
}

Subject subject_of(const std::string& model) {
  if (!model.empty() && !fs::exists(model))
    if (const Preset* p = find_preset(model)) return subject_of(*p);
  fs::path path = found(model);
  if (path.extension() == ".json") {
    Subject s{path.string(), spec_from(read_json(path), path.string()), {}};
    if (path.filename() == "config.json") record(s, *Checkpoint::open(fs::absolute(path).parent_path(), Checkpoint::Want::configuration));
    return s;
  }
  std::error_code ignored;
  bool weights = !fs::is_directory(path) || fs::exists(path / "model.safetensors", ignored) ||
                 fs::exists(path / "model.safetensors.index.json", ignored);
  auto files = Checkpoint::open(path, weights ? Checkpoint::Want::tensors : Checkpoint::Want::configuration);
  Described d = describe(*files);
  Subject s{path.filename().empty() ? path.string() : path.filename().string(), std::move(d.spec), {}};
  record(s, *files);
  s.storage = storage_of(*files, d.names, s.outline.get());
  return s;
}

void store_weights_as(Storage& s, std::string_view name) {
  const NumberFormat& f = number_format(name);
  s.block = s.table = f.bytes;
  s.block_product = s.table_product = f.product;
  s.block_name = s.table_name = f.name;
  s.renamed = true;
}

void store_keys_as(Storage& s, std::string_view name) {
  const auto known = std::ranges::find(kv_formats(), name == "fp8" ? "fp8_e4m3" : name, &KvFormat::name);
  s.kv_name = name;
  if (known == kv_formats().end()) {
    s.kv = number_format(name).bytes;
    s.kv_dtype = std::nullopt;
  } else {
    s.kv = double(bits_of(known->element)) / 8;
    s.kv_dtype = known->element;
  }
}

}  // namespace mr
