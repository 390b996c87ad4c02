// From stored tensors to packed weights: finds a role's tensor, checks its shape, lets the backend pack it and drops the
// file's pages, so that a weight is in memory once. With a store that only counts it makes an outline: the same checks and shapes,
// no data.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "backend/backend.h"
#include "io/checkpoint.h"
#include "model/arch/arch.h"
#include "model/linear.h"
#include "model/quantized.h"
#include "model/weight_formats.h"

namespace mr {

class Loader {
 public:
  struct Part {
    std::string_view role;
    int64_t rows;
    int head_dim = 0;  // of q and k, whose rows some files permute within each head; 0: plain rows
  };

  // random_seed: weights are random instead of read; `files` then only provides the configuration.
  Loader(const Checkpoint& files, NameMap names, Backend& backend, WeightStore& store, std::optional<uint64_t> random_seed);

  // [sum of rows, in], the parts stacked; parts in different formats stay separate inside the Linear.
  Linear linear(std::initializer_list<Part> parts, int64_t in, bool bias, Place at = {});
  Weight weight(std::string_view role, int64_t rows, int64_t in, Place at = {});
  // f32; `map` is applied to every value.
  Tensor vector(std::string_view role, std::string_view suffix, std::initializer_list<int64_t> shape, Place at = {},
                float (*map)(float) = nullptr);
  float number(std::string_view role, Place at = {});  // a tensor of one value
  // Of the codes that keys (role "k") or values ("v") are stored as: k_scale or v_scale, beside the projection or in it; 1 if absent.
  float kv_scale(std::string_view role, Place at);
  // f32 values of no file, where the backend reads them.
  Tensor place(const std::vector<float>&, std::initializer_list<int64_t> shape);
  Tensor filled(int64_t n, float value);
  Norm norm(const NormSpec&, std::string_view role, int64_t dim, Place at = {});
  bool has(std::string_view role, Place at = {}) const;  // is there such a tensor? (random: does the family name one)

  std::function<void(int64_t done, int64_t total)> progress;  // bytes of the files
  // Weights are encoded in these formats before they are packed; again: also those that are quantized already. None: as they are stored.
  std::optional<WeightFormats> formats;
  bool again = false;

 private:
  const StoredTensor* find(std::string_view role, std::string_view suffix, Place) const;
  const StoredTensor& get(std::string_view role, std::string_view suffix, Place) const;
  StoredTensor part_of(const Part&, int64_t in, Place);  // checked
  float scale_of(const StoredTensor&, const Part&, Place) const;
  Weight made_up(std::string_view role, int64_t rows, int64_t in, Place);
  const Codec& codec_for(const StoredTensor&, std::string_view role, int64_t in, Place) const;  // as `formats` asks for it
  std::vector<Weight> weights(std::initializer_list<Part>, int64_t in, Place);                  // one per run of equal codecs
  std::vector<float> values(std::string_view role, std::string_view suffix, std::initializer_list<int64_t> shape,
                            Place);  // none in an outline
  void read(Tensor out, const StoredTensor&);
  void done_with(const StoredTensor&);
  bool outlines() const { return store_.mode() == WeightStore::Mode::counts; }

  const Checkpoint& files_;
  NameMap names_;
  Quantization quantization_;
  Backend& backend_;
  WeightStore& store_;
  std::optional<uint64_t> random_seed_;
  uint64_t random_stream_ = 0;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
};

}  // namespace mr
