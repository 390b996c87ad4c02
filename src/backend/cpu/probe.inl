// The loops of probe.h for one instruction set.
#include "backend/cpu/linear_ivec.h"
#include "backend/cpu/probe_kernels.h"
#if defined(__AMX_BF16__)
#include "backend/cpu/tiles.h"
#endif

namespace {
namespace probe {

float read(const float* p, int64_t n) {
  Vec m[8];
  for (Vec& v : m) v = zero();
  int64_t i = 0;
  for (; i + 8 * kLanes <= n; i += 8 * kLanes)
    for (int j = 0; j < 8; j++) m[j] = max(m[j], load(p + i + j * kLanes));
  for (int j = 1; j < 8; j++) m[0] = max(m[0], m[j]);
  return max_lane(m[0]);
}

// A product [kRows, kDepth] . [kDepth, kPanels * 16] at peak: a register tile of R rows by P vectors, operands in L1 and L2
// (the panels' P * 16 KB, the rows one value at a time), nothing to unpack or to scale.
constexpr int kRows = 48, kDepth = 256, kPanels = 8;
#if defined(__AVX512F__)
constexpr int kTileRows = 8, kTilePanels = 2;
#elif defined(__AVX2__)
constexpr int kTileRows = 6, kTilePanels = 1;
#else
constexpr int kTileRows = 4, kTilePanels = 1;
#endif
static_assert(kRows % kTileRows == 0 && kPanels % kTilePanels == 0);
static_assert(mr::ProbeKernels::kFloats >= kRows * kDepth + kPanels * kDepth * kLanes + kRows * kPanels * kLanes);

// Calls tile(rows of x, panels, out), which computes kTileRows by kTilePanels.
template <class F>
double product(int64_t rounds, float* memory, F tile) {
  float *x = memory, *w = x + kRows * kDepth, *out = w + kPanels * kDepth * kLanes;
  for (int64_t i = 0; i < rounds; i++)
    for (int p = 0; p < kPanels; p += kTilePanels)
      for (int r = 0; r < kRows; r += kTileRows) tile(x + r * kDepth, w + p * kDepth * kLanes, out + (r * kPanels + p) * kLanes);
  return double(rounds) * kRows * kDepth * kPanels * kLanes;
}

double float_product(int64_t rounds, float* memory) {
  return product(rounds, memory, [](const float* x, const float* w, float* out) {
    Vec acc[kTileRows][kTilePanels];
    for (int r = 0; r < kTileRows; r++)
      for (int p = 0; p < kTilePanels; p++) acc[r][p] = zero();
    for (int k = 0; k < kDepth; k++) {
      Vec wk[kTilePanels];
      for (int p = 0; p < kTilePanels; p++) wk[p] = load(w + (p * kDepth + k) * kLanes);
      for (int r = 0; r < kTileRows; r++) {
        Vec xk = set1(x[r * kDepth + k]);
        for (int p = 0; p < kTilePanels; p++) acc[r][p] = in_register(fma(xk, wk[p], acc[r][p]));
      }
    }
    for (int r = 0; r < kTileRows; r++)
      for (int p = 0; p < kTilePanels; p++) store(out + (r * kPanels + p) * kLanes, acc[r][p]);
  });
}

#if defined(__AMX_BF16__)
// The same on tiles: 2 tiles of 16 rows by 2 panels in registers, operands in the layout of linear_amx.inl, activations in two
// pieces.
double tile_product(int64_t rounds, float* memory) {
  constexpr int kRowTiles = 4, kBlocks = 16, kTilePanels = 4, kTile = 1024, kAgain = 4;
  static_assert(mr::ProbeKernels::kFloats * 4 >= (kRowTiles * 2 * kBlocks + kTilePanels * kBlocks + kRowTiles * kTilePanels) * kTile);
  auto* bytes = (uint8_t*)memory;
  uint8_t *weights = bytes + kRowTiles * 2 * kBlocks * kTile, *out = weights + kTilePanels * kBlocks * kTile;
  TileShapes shapes;
  for (int i = 0; i < 8; i++) {
    shapes.row_bytes[i] = 64;
    shapes.rows[i] = 16;
  }
  Tiles::configure(shapes);
  for (int64_t i = 0; i < kAgain * rounds; i++)
    for (int p = 0; p < kTilePanels; p += 2)
      for (int r = 0; r < kRowTiles; r += 2) {
        const uint8_t *x = bytes + r * 2 * kBlocks * kTile, *w = weights + p * kBlocks * kTile;
        Tiles::zero<0>();
        Tiles::zero<1>();
        Tiles::zero<2>();
        Tiles::zero<3>();
        for (int b = 0; b < kBlocks; b++) {
          Tiles::load<6>(w + b * kTile, 64);
          Tiles::load<7>(w + (kBlocks + b) * kTile, 64);
          for (int piece = 2 * b; piece < 2 * b + 2; piece++) {
            Tiles::load<4>(x + piece * kTile, 64);
            Tiles::load<5>(x + (2 * kBlocks + piece) * kTile, 64);
            Tiles::dot<0, 4, 6>();
            Tiles::dot<1, 4, 7>();
            Tiles::dot<2, 5, 6>();
            Tiles::dot<3, 5, 7>();
          }
        }
        uint8_t* y = out + (r * kTilePanels + 2 * p) * kTile;
        Tiles::store<0>(y, 64);
        Tiles::store<1>(y + kTile, 64);
        Tiles::store<2>(y + 2 * kTile, 64);
        Tiles::store<3>(y + 3 * kTile, 64);
      }
  Tiles::release();
  return double(kAgain * rounds) * (16 * kRowTiles) * (32 * kBlocks) * (16 * kTilePanels);
}
#endif

// Pairs of int16, two inputs per lane: 16-bit activations times 4- to 8-bit weights, as in quantized layers.
double pair_product(int64_t rounds, float* memory) {
#if defined(__AMX_BF16__)
  return tile_product(rounds, memory);
#else
  return 2 * product(rounds, memory, [](const float* x, const float* w, float* out) {
           IVec acc[kTileRows][kTilePanels];
           for (int r = 0; r < kTileRows; r++)
             for (int p = 0; p < kTilePanels; p++) acc[r][p] = set_all(0);
           for (int k = 0; k < kDepth; k++) {
             IVec wk[kTilePanels];
             for (int p = 0; p < kTilePanels; p++) wk[p] = load_bytes((const uint8_t*)(w + (p * kDepth + k) * kLanes));
             for (int r = 0; r < kTileRows; r++) {
               Pair xk = load_pair((const int16_t*)(x + r * kDepth + k));
               for (int p = 0; p < kTilePanels; p++) acc[r][p] = dot(acc[r][p], wk[p], xk);
             }
           }
           for (int r = 0; r < kTileRows; r++)
             for (int p = 0; p < kTilePanels; p++) store(out + (r * kPanels + p) * kLanes, to_float(acc[r][p]));
         });
#endif
}

constexpr mr::ProbeKernels kKernels{read, float_product, pair_product};

}  // namespace probe
}  // namespace
