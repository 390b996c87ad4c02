// Phi 3 and 4: Llama with q, k, v in one tensor, and gate and up in another.
#include "model/arch/arch.h"

namespace mr {

NameMap phi3_names() {
  NameMap names = decoder_names();
  names.entries.insert(names.entries.end(),
                       {{"qkv", "model.layers.{}.self_attn.qkv_proj"}, {"gate_up", "model.layers.{}.mlp.gate_up_proj"}});
  return names;
}

NameMap phi3_gguf_names() {
  NameMap names = decoder_gguf_names();
  names.entries.insert(names.entries.end(), {{"qkv", "blk.{}.attn_qkv"}, {"gate_up", "blk.{}.ffn_up"}});
  return names;
}

}  // namespace mr
