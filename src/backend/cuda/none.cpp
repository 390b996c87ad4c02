// In the place of the GPU's backend where no CUDA compiler was found.
#include "backend/cuda/cuda_backend.h"
#include "core/error.h"

namespace mr {

bool cuda_available() { return false; }

std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions&) { fail("this millrace was built without CUDA: no nvcc was found"); }

}  // namespace mr
