// The codebooks of the IQ types: what an index stands for. Points of a lattice that were chosen once by what weights need; they are part
// of the format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mr {

template <size_t Entries, size_t Values>
using IqGrid = std::array<std::array<int8_t, Values>, Entries>;

extern const IqGrid<256, 8> kIq2XxsGrid;
extern const IqGrid<512, 8> kIq2XsGrid;
extern const IqGrid<1024, 8> kIq2SGrid;
extern const IqGrid<256, 4> kIq3XxsGrid;
extern const IqGrid<512, 4> kIq3SGrid;
extern const IqGrid<2048, 8> kIq1Grid;  // IQ1_S and IQ1_M

}  // namespace mr
