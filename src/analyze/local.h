// This machine as a chip: probed once, kept in the cache folder. The only part of the analysis that runs anything.
#pragma once

#include <vector>

#include "analyze/hardware.h"
#include "core/isa.h"

namespace mr {

// "local", at its best instruction set; activations are f32. Measures for a few seconds.
Chip probe_local(int threads);

// 0 threads: one per core. From cache_dir()/hardware.json, if that is of this machine; measured limits are kept there, unless
// others were running.
Chip local_machine(int threads, bool probe_again);

}  // namespace mr
