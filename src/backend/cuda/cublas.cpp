#include "backend/cuda/cublas.h"

#include <dlfcn.h>
#include <glob.h>
#include <library_types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "core/error.h"

namespace mr::cuda {

namespace {

constexpr size_t kWorkspace = size_t(64) << 20;
constexpr int kProposals = 8;
constexpr int kCompute32F = 68, kTransA = 3, kMaxWorkspace = 1;  // of cublasLt.h

struct Proposal {
  std::array<uint64_t, 8> algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
using Opaque = void*;

const char* const kPlaces[] = {
    "/usr/local/cuda/lib64/libcublasLt.so.13",
    "/usr/local/cuda*/targets/x86_64-linux/lib/libcublasLt.so.13",
    "/usr/lib/x86_64-linux-gnu/libcublasLt.so.13",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcublasLt.so.13",
    "/usr/lib/python3*/*-packages/nvidia/*/lib/libcublasLt.so.13",
    "/opt/*/lib/python3*/site-packages/nvidia/*/lib/libcublasLt.so.13",
    "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib/libcublasLt.so.13",
};

void* open_at(const char* pattern, std::string& found) {
  glob_t matches{};
  void* handle = nullptr;
  if (glob(pattern, 0, nullptr, &matches) == 0)
    for (size_t i = 0; i < matches.gl_pathc && !handle; i++)
      if ((handle = dlopen(matches.gl_pathv[i], RTLD_NOW | RTLD_LOCAL))) found = matches.gl_pathv[i];
  globfree(&matches);
  return handle;
}

}  // namespace

struct Cublas::Library {
  void* handle = nullptr;
  Opaque context = nullptr, preference = nullptr;
  int (*create)(Opaque*);
  int (*desc_create)(Opaque*, int compute, int scale_type);
  int (*desc_set)(Opaque, int attribute, const void*, size_t);
  int (*layout_create)(Opaque*, int type, uint64_t rows, uint64_t cols, int64_t stride);
  int (*preference_create)(Opaque*);
  int (*preference_set)(Opaque, int attribute, const void*, size_t);
  int (*propose)(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, int, Proposal*, int*);
  int (*matmul)(Opaque, Opaque, const void*, const void*, Opaque, const void*, Opaque, const void*, const void*, Opaque, void*, Opaque,
                const void* algorithm, void*, size_t, cudaStream_t);
  int (*usable)(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, const void* algorithm, Proposal*);

  template <class F>
  void find(F& f, const char* name) {
    f = reinterpret_cast<F>(dlsym(handle, name));
    check(f, "cuBLASLt has no function {}", name);
  }
  explicit Library(void* h) : handle(h) {
    find(create, "cublasLtCreate");
    find(desc_create, "cublasLtMatmulDescCreate");
    find(desc_set, "cublasLtMatmulDescSetAttribute");
    find(layout_create, "cublasLtMatrixLayoutCreate");
    find(preference_create, "cublasLtMatmulPreferenceCreate");
    find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(propose, "cublasLtMatmulAlgoGetHeuristic");
    find(matmul, "cublasLtMatmul");
    find(usable, "cublasLtMatmulAlgoCheck");
  }
};

struct Cublas::Algorithm {
  std::array<uint64_t, 8> data{};
};
struct Cublas::Choice {
  bool found = false;
  Opaque desc = nullptr, a = nullptr, b = nullptr, d = nullptr;
  Algorithm algorithm;
};

Cublas::Cublas(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Cublas::~Cublas() { cudaFree(workspace_); }

std::unique_ptr<Cublas> Cublas::open(std::string& found) {
  void* handle = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  if (handle) found = "libcublasLt.so.13";
  for (const char* place : kPlaces)
    if (!handle) handle = open_at(place, found);
  if (!handle) {
    for (const char* place : kPlaces) found += (found.empty() ? "" : ", ") + std::string(place);
    return nullptr;
  }
  std::unique_ptr<Cublas> self(new Cublas(std::make_unique<Library>(handle)));
  Library& lib = *self->library_;
  check(lib.create(&lib.context) == 0 && lib.preference_create(&lib.preference) == 0, "cuBLASLt ({}) could not be started", found);
  check(lib.preference_set(lib.preference, kMaxWorkspace, &kWorkspace, sizeof kWorkspace) == 0, "cuBLASLt ({}) takes no workspace", found);
  must(cudaMalloc(&self->workspace_, kWorkspace));
  return self;
}

// To four counts an octave, from 1024 rows on two.
static int64_t rounded(int64_t rows) {
  const int64_t step = std::max<int64_t>(1, int64_t(std::bit_floor(uint64_t(rows))) / (rows < 1024 ? 4 : 2));
  return (rows + step - 1) / step * step;
}

Cublas::Key Cublas::key_of(const Product& p, int64_t rows, bool onto) {
  return {p.out, p.in, rows, p.x.stride, p.y.stride, int(p.y.dtype), onto};
}

// Its matrices are stored column after column: D [out, T] = W [in, out]^T x [in, T].
Cublas::Choice Cublas::choose(cudaStream_t stream, const Product& p, bool onto) {
  Library& lib = *library_;
  Choice c;
  const int type = p.y.dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF, transpose = 1;
  check(lib.desc_create(&c.desc, kCompute32F, CUDA_R_32F) == 0 && lib.desc_set(c.desc, kTransA, &transpose, sizeof transpose) == 0 &&
            lib.layout_create(&c.a, CUDA_R_16BF, uint64_t(p.in), uint64_t(p.out), p.in) == 0 &&
            lib.layout_create(&c.b, CUDA_R_16BF, uint64_t(p.in), uint64_t(p.x.rows), p.x.stride) == 0 &&
            lib.layout_create(&c.d, type, uint64_t(p.out), uint64_t(p.x.rows), p.y.stride) == 0,
        "cuBLASLt refuses a product of [{}, {}] with {} rows", p.out, p.in, p.x.rows);
  auto known = algorithms_.find(key_of(p, rounded(p.x.rows), onto));
  Proposal result;
  if (known != algorithms_.end() && lib.usable(lib.context, c.desc, c.a, c.b, c.d, c.d, &known->second.data, &result) == 0 &&
      result.workspace <= kWorkspace) {
    c.found = true, c.algorithm = known->second;
    return c;
  }
  time(stream, p, onto, c);
  return c;
}

void Cublas::time(cudaStream_t stream, const Product& p, bool onto, Choice& c) {
  Library& lib = *library_;
  Proposal proposal[kProposals];
  int n = 0;
  if (lib.propose(lib.context, c.desc, c.a, c.b, c.d, c.d, lib.preference, kProposals, proposal, &n) != 0 || n == 0) return;
  c.found = true, c.algorithm.data = proposal[0].algorithm;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  must(cudaStreamIsCapturing(stream, &capturing));
  if (capturing != cudaStreamCaptureStatusNone) return;

  // Each proposal onto a result that nobody needs, after the L2 cache was emptied. The first run of each loads its code.
  void *y = nullptr, *other = nullptr;
  const size_t bytes = size_t(p.y.stride * p.x.rows * size_of(p.y.dtype)), flush = size_t(160) << 20;
  cudaEvent_t begin, end;
  if (cudaMalloc(&y, bytes) != cudaSuccess || cudaMalloc(&other, flush) != cudaSuccess) {
    cudaFree(y), cudaGetLastError();
    return;
  }
  must(cudaEventCreate(&begin)), must(cudaEventCreate(&end));
  must(cudaMemsetAsync(y, 0, bytes, stream));
  const float alpha = 1, beta = onto ? 1.0f : 0.0f;
  float best = 1e30f;
  for (int i = 0; i < n; i++) {
    float fastest = 1e30f;
    for (int repeat = 0; repeat < (p.x.rows > 2048 ? 2 : 4); repeat++) {
      must(cudaMemsetAsync(other, repeat, flush, stream));
      must(cudaEventRecord(begin, stream));
      if (lib.matmul(lib.context, c.desc, &alpha, p.weight, c.a, p.x.data, c.b, &beta, y, c.d, y, c.d, &proposal[i].algorithm, workspace_,
                     kWorkspace, stream) != 0)
        break;
      must(cudaEventRecord(end, stream));
      must(cudaEventSynchronize(end));
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end));
      if (repeat > 0) fastest = std::min(fastest, ms);
    }
    if (fastest < best) best = fastest, c.algorithm.data = proposal[i].algorithm;
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  cudaFree(y), cudaFree(other);
  algorithms_[key_of(p, rounded(p.x.rows), onto)] = c.algorithm;
}

bool Cublas::product(cudaStream_t stream, const Product& p, bool onto) {
  const Key key = key_of(p, p.x.rows, onto);
  auto it = choices_.find(key);
  if (it == choices_.end()) it = choices_.emplace(key, choose(stream, p, onto)).first;
  const Choice& c = it->second;
  if (!c.found) return false;
  const float beta = onto ? 1.0f : 0.0f;
  int status = library_->matmul(library_->context, c.desc, &p.scale, p.weight, c.a, p.x.data, c.b, &beta, p.y.data, c.d, p.y.data, c.d,
                                &c.algorithm.data, workspace_, kWorkspace, stream);
  check(status == 0, "cuBLASLt failed with status {} on a product of [{}, {}] with {} rows", status, p.out, p.in, p.x.rows);
  return true;
}

}  // namespace mr::cuda
