// This machine as a chip: probed once, kept in the cache folder. The only part of the analysis that runs anything.
#pragma once

#include <vector>

#include "analyze/hardware.h"
#include "core/isa.h"

namespace mr {

struct LocalMachine {
  Chip chip;          // "local", at its best instruction set; activations are f32
  bool busy = false;  // others were running while it was measured: the true limits are higher
};

LocalMachine probe_local(int threads);  // measures for a few seconds
LocalMachine local_machine(int threads,
                           bool probe_again);  // 0 threads: one per core. From cache_dir()/hardware.json, if that is of this machine

}  // namespace mr
