#include "backend/cuda/gemm/cublas.h"

#include <dlfcn.h>
#include <glob.h>
#include <library_types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <optional>
#include <vector>

#include "core/error.h"

namespace mr::cuda {

namespace {

constexpr size_t kWorkspace = size_t(64) << 20, kMostShapes = 4096;
constexpr int kProposals = 8, kRounds = 3;                            // kRounds: timings of each; the first includes loading its code
constexpr int64_t kTriedAtOnce = 512, kUncached = int64_t(64) << 20;  // rows; values of a weight
constexpr int kCompute32F = 68, kTransA = 3, kMaxWorkspace = 1;       // of cublasLt.h

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
  int (*desc_destroy)(Opaque);
  int (*layout_destroy)(Opaque);
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
    find(desc_destroy, "cublasLtMatmulDescDestroy");
    find(layout_destroy, "cublasLtMatrixLayoutDestroy");
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
// The library's descriptors of a product, by its exact shape.
struct Cublas::Shape {
  Opaque desc = nullptr, a = nullptr, b = nullptr, d = nullptr;
  Contest* contest = nullptr;    // null: no algorithm
  std::optional<Algorithm> own;  // if the contest's algorithms do not support this shape
};
// The library's proposals for a range of shapes, and the best time of each.
struct Cublas::Contest {
  std::vector<Algorithm> proposal;
  std::vector<float> least;  // milliseconds
  struct Run {
    int which;
    cudaEvent_t begin, end;
  };
  std::deque<Run> runs;  // launched, not read yet
  int n_begun = 0, n_read = 0, best = 0;

  bool decided() const { return n_read >= kRounds * int(proposal.size()) || proposal.size() == 1; }
  // Reads the times of runs that have ended; all: waits for the others.
  void read(bool all) {
    while (!runs.empty()) {
      const Run& run = runs.front();
      if (all) must(cudaEventSynchronize(run.end));
      const cudaError_t state = cudaEventQuery(run.end);
      if (state == cudaErrorNotReady) return (void)cudaGetLastError();  // not an error: clear it
      must(state);
      float ms = 0;
      must(cudaEventElapsedTime(&ms, run.begin, run.end));
      least[size_t(run.which)] = std::min(least[size_t(run.which)], ms);
      if (least[size_t(run.which)] < least[size_t(best)]) best = run.which;
      cudaEventDestroy(run.begin);
      cudaEventDestroy(run.end);
      runs.pop_front();
      n_read++;
    }
  }
};

Cublas::Cublas(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Cublas::~Cublas() {
  forget_shapes();
  cudaFree(workspace_);
}

int64_t Cublas::workspace_bytes() { return int64_t(kWorkspace); }

void Cublas::forget_shapes() {
  for (auto& [key, s] : shapes_) {
    library_->desc_destroy(s.desc);
    for (Opaque layout : {s.a, s.b, s.d}) library_->layout_destroy(layout);
  }
  shapes_.clear();
}

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
  check(lib.create(&lib.context) == 0 && lib.preference_create(&lib.preference) == 0, "cuBLASLt ({}) could not be initialized", found);
  check(lib.preference_set(lib.preference, kMaxWorkspace, &kWorkspace, sizeof kWorkspace) == 0, "cuBLASLt ({}) rejects a workspace", found);
  must(cudaMalloc(&self->workspace_, kWorkspace));
  self->awake_ = std::async(std::launch::async, [cublas = self.get()] { cublas->wake(); });
  return self;
}

// Rounds up to four row counts per octave, two from 1024 rows on.
static int64_t rounded(int64_t rows) {
  const int64_t step = std::max<int64_t>(1, int64_t(std::bit_floor(uint64_t(rows))) / (rows < 1024 ? 4 : 2));
  return (rows + step - 1) / step * step;
}

Cublas::Key Cublas::key_of(const Product& p, int64_t rows, bool onto) {
  return {p.out, p.in, rows, p.x.stride, p.y.stride, int(p.y.dtype), onto};
}

// cuBLASLt's matrices are column-major: D [out, T] = W [in, out]^T x [in, T].
Cublas::Shape Cublas::shape_of(const Product& p) const {
  const Library& lib = *library_;
  Shape s;
  const int type = p.y.dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF, transpose = 1;
  check(lib.desc_create(&s.desc, kCompute32F, CUDA_R_32F) == 0 && lib.desc_set(s.desc, kTransA, &transpose, sizeof transpose) == 0 &&
            lib.layout_create(&s.a, CUDA_R_16BF, uint64_t(p.in), uint64_t(p.out), p.in) == 0 &&
            lib.layout_create(&s.b, CUDA_R_16BF, uint64_t(p.in), uint64_t(p.x.rows), p.x.stride) == 0 &&
            lib.layout_create(&s.d, type, uint64_t(p.out), uint64_t(p.x.rows), p.y.stride) == 0,
        "cuBLASLt rejects a product of [{}, {}] with {} rows", p.out, p.in, p.x.rows);
  return s;
}

std::vector<Cublas::Algorithm> Cublas::propose(const Shape& s) const {
  Proposal proposal[kProposals];
  int n = 0;
  if (library_->propose(library_->context, s.desc, s.a, s.b, s.d, s.d, library_->preference, kProposals, proposal, &n) != 0) n = 0;
  std::vector<Algorithm> algorithms;
  for (int i = 0; i < n; i++) algorithms.push_back({proposal[i].algorithm});
  return algorithms;
}

// The first query for each result type takes a tenth of a second: done while weights are loaded.
void Cublas::wake() {
  for (DType type : {DType::bf16, DType::f32}) {
    Product p;
    p.out = p.in = 4096;
    p.x.rows = p.x.stride = p.y.stride = 4096;
    p.y.dtype = type;
    propose(shape_of(p));
  }
}

Cublas::Shape Cublas::describe(const Product& p, bool onto) {
  Library& lib = *library_;
  Shape s = shape_of(p);
  auto usable = [&](const Algorithm& algorithm) {
    Proposal result;
    return lib.usable(lib.context, s.desc, s.a, s.b, s.d, s.d, &algorithm.data, &result) == 0 && result.workspace <= kWorkspace;
  };
  Contest& contest = contests_[key_of(p, rounded(p.x.rows), onto)];
  if (contest.proposal.empty()) {
    contest.proposal = propose(s);
    contest.least.assign(contest.proposal.size(), 1e30f);
  }
  if (!contest.proposal.empty() && std::ranges::all_of(contest.proposal, usable)) {
    s.contest = &contest;
  } else if (std::vector<Algorithm> own = propose(s); !own.empty()) {
    s.own = own[0];
  }
  return s;
}

void Cublas::decide() {
  for (auto& [key, contest] : contests_) contest.read(true);
}

bool Cublas::product(cudaStream_t stream, const Product& p, bool onto) {
  const Key key = key_of(p, p.x.rows, onto);
  if (awake_.valid()) awake_.get();
  auto it = shapes_.find(key);
  if (it == shapes_.end()) {
    if (shapes_.size() >= kMostShapes) forget_shapes();
    it = shapes_.emplace(key, describe(p, onto)).first;
  }
  const Shape& s = it->second;
  if (!s.contest && !s.own) return false;
  const float beta = onto ? 1.0f : 0.0f;
  auto multiply = [&](const Algorithm& algorithm) {
    int status = library_->matmul(library_->context, s.desc, &p.scale, p.weight, s.a, p.x.data, s.b, &beta, p.y.data, s.d, p.y.data, s.d,
                                  &algorithm.data, workspace_, kWorkspace, stream);
    check(status == 0, "cuBLASLt failed with status {} on a product of [{}, {}] with {} rows", status, p.out, p.in, p.x.rows);
    return true;
  };
  if (!s.contest) return multiply(*s.own);
  Contest& contest = *s.contest;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  if (!contest.decided()) must(cudaStreamIsCapturing(stream, &capturing));
  if (!contest.decided() && capturing == cudaStreamCaptureStatusNone) contest.read(false);
  if (contest.decided()) return multiply(contest.proposal[size_t(contest.best)]);
  if (capturing != cudaStreamCaptureStatusNone) return multiply(contest.proposal[0]);  // the library's first choice
  // A weight larger than L2 may be timed back to back, as it is never cached: the output layer runs only once before a graph is captured.
  const bool at_once = contest.n_begun == 0 && !onto && p.x.rows <= kTriedAtOnce && p.out * p.in > kUncached;
  for (int n = at_once ? kRounds * int(contest.proposal.size()) : 1; n > 0; n--) {
    Contest::Run run{contest.n_begun++ % int(contest.proposal.size()), nullptr, nullptr};
    must(cudaEventCreate(&run.begin));
    must(cudaEventCreate(&run.end));
    must(cudaEventRecord(run.begin, stream));
    multiply(contest.proposal[size_t(run.which)]);
    must(cudaEventRecord(run.end, stream));
    contest.runs.push_back(run);
  }
  return true;
}

}  // namespace mr::cuda
