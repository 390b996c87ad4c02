// This machine as a chip: probed once, cached on disk. The only part of the analysis that runs kernels.
#pragma once

#include <vector>

#include "analyze/hardware.h"
#include "core/isa.h"

namespace mr {

// "local", at its best instruction set; activations are f32. Measures for a few seconds.
Chip probe_local(int threads);

// 0 threads: one per core. From cache_dir()/hardware.json, if that was written on this machine; new measurements are stored there,
// unless other programs were running.
Chip local_machine(int threads, bool probe_again);

}  // namespace mr
