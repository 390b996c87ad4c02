// What Gemma's later members share.
#pragma once

#include "model/arch/arch.h"

namespace mr {

ModelSpec gemma3_spec(const Config&, int otherwise);           // every so many layers one without a window, unless the file says
void share_last_kv(ModelSpec&, const Config&, int otherwise);  // so many layers read keys and values of earlier ones
void add_per_layer_inputs(ModelSpec&, const Config&);
NameMap gemma_names();

}  // namespace mr
