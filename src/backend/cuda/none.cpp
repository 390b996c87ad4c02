// Replaces the CUDA backend in builds without a CUDA compiler.
#include "backend/cuda/cuda_backend.h"
#include "core/error.h"

namespace mr {

std::string why_no_cuda() { return "this millrace was built without CUDA"; }

std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions&) { fail("{}", why_no_cuda()); }

}  // namespace mr
