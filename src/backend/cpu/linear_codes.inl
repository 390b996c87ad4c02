// What quantized weights are made of, for linear.inl.
//
// A type is how its scales lie in a panel and how its codes do (panels.h). `block` is the panel's block of the codec,
// j the 32 inputs within it, Half one of the groups of 16 if there are two. As int16 lanes, a vector's even bytes are inputs 0
// and 2 of each row and its odd bytes inputs 1 and 3: the pairs of a RoundedBlock. pairs(use) calls use(weights, at) for each:
// `weights` multiply the two activations at q[at]. quads(use) passes 4 inputs as bytes.
#pragma once

#include <type_traits>

#include "backend/cpu/linear_float.inl"
#include "backend/cpu/linear_ivec.h"
#include "quant/value_tables.h"

namespace {
namespace linear {

// f(0), f(1) … as constants. What is passed here is always inlined: sums stay in registers.
template <int I, int End, class F>
[[gnu::always_inline]] inline void each(F f) {
  f(std::integral_constant<int, I>{});
  if constexpr (I + 1 < End) each<I + 1, End>(f);
}

// Bits [from, from + …) of a byte moved to begin at `to`; neighbours' bits are to be masked.
template <int From, int To>
inline IVec move_bits(IVec v) {
  if constexpr (From > To)
    return shift16<From - To>(v);
  else if constexpr (From < To)
    return left16<To - From>(v);
  else
    return v;
}
// The field of quad G of a plane of Bits bits, beginning at bit To.
template <int Bits, int G, int To>
inline IVec field(const uint8_t* plane) {
  return and_bytes(move_bits<G / Bits * Bits, To>(load_bytes(plane + 64 * (G % Bits))), int8_t(((1 << Bits) - 1) << To));
}

// Pairs of a type that has quads.
template <class C, int First, int End, class F>
[[gnu::always_inline]] inline void pairs_of_quads(const uint8_t* codes, F use) {
  each<First, End>([&]<int G>(std::integral_constant<int, G>) __attribute__((always_inline)) {
    IVec v = C::template quad<G>(codes);
    use(and16(v, 0xff), 4 * G);
    use(shift16<8>(v), 4 * G + 2);
  });
}

template <int Bits>
struct Codes {
  static constexpr int kBytes = Bits * 64, kLargest = (1 << Bits) - 1;
  static constexpr int kLow = Bits == 3 ? 2 : Bits > 4 && Bits < 8 ? 4 : Bits;  // bits of the first plane
  template <int G>
  static IVec quad(const uint8_t* codes) {
    if constexpr (Bits == 8)
      return load_bytes(codes + 64 * G);
    else if constexpr (kLow == Bits)
      return field<Bits, G, 0>(codes);
    else
      return either(field<kLow, G, 0>(codes), field<Bits - kLow, G, kLow>(codes + 64 * kLow));
  }
  template <int First, int End, class F>
  [[gnu::always_inline]] static void pairs(const uint8_t* codes, F use) {
    pairs_of_quads<Codes, First, End>(codes, use);
  }
};

// All pairs of a vector of nibbles take fewer steps than those of its quads.
struct Nibbles : Codes<4> {
  template <int First, int End, class F>
  [[gnu::always_inline]] static void pairs(const uint8_t* codes, F use) {
    static_assert(First == 0 && End == 8);
    for (int g = 0; g < 4; g++) {
      IVec v = load_bytes(codes + 64 * g);
      use(and16(v, 15), 4 * g);
      use(and16(shift16<8>(v), 15), 4 * g + 2);
      use(and16(shift16<4>(v), 15), 16 + 4 * g);
      use(shift16<12>(v), 16 + 4 * g + 2);
    }
  }
};

// Values of a table of 16, plus 128.
struct Shifted {
  uint8_t value[16];
  constexpr explicit Shifted(const int8_t* table) : value() {
    for (int i = 0; i < 16; i++) value[i] = uint8_t(table[i] + 128);
  }
};
template <const int8_t* Table>
struct Lookup {
  static constexpr int kBytes = 256, kLargest = 255;
  static constexpr Shifted kTable{Table};
  template <int G>
  static IVec quad(const uint8_t* codes) {
    return lookup(Codes<4>::quad<G>(codes), kTable.value);
  }
  template <int First, int End, class F>
  [[gnu::always_inline]] static void pairs(const uint8_t* codes, F use) {
    pairs_of_quads<Lookup, First, End>(codes, use);
  }
};

// One f16 a block of 32, and a minimum.
template <bool Minimum>
struct OneLevel {
  static constexpr int kBlocks = 1, kGroups = 1, kHead = 2 * kPanel * (1 + Minimum), kGroupBytes = 0;
  static constexpr bool kMinimum = Minimum, kSubtracts = false;
  static Vec scale(const uint8_t* block, const uint8_t*, int) { return load_f16((const uint16_t*)block); }
  static Vec minimum(const uint8_t* block, const uint8_t*, int) { return load_f16((const uint16_t*)block + kPanel); }
};
// One f16 a block of 256, which multiplies a byte for every 32 or 16; minima alike.
template <int Groups, bool Minimum>
struct TwoLevels {
  static constexpr int kBlocks = 8, kGroups = Groups, kHead = 2 * kPanel * (1 + Minimum), kGroupBytes = kPanel * Groups * (1 + Minimum);
  static constexpr bool kMinimum = Minimum, kSubtracts = true;
  static Vec scale(const uint8_t* block, const uint8_t* group, int half) {
    return mul(load_f16((const uint16_t*)block), load_i8(group + half * kPanel));
  }
  static Vec minimum(const uint8_t* block, const uint8_t* group, int half) {
    return mul(load_f16((const uint16_t*)block + kPanel), load_i8(group + (Groups + half) * kPanel));
  }
};

// The same with bytes of two nibbles: scale low, minimum high.
template <int Groups>
struct NibbleLevels {
  static constexpr int kBlocks = 8, kGroups = Groups, kHead = 4 * kPanel, kGroupBytes = kPanel * Groups;
  static constexpr bool kMinimum = true, kSubtracts = true;
  static Vec scale(const uint8_t* block, const uint8_t* group, int half) {
    return mul(load_f16((const uint16_t*)block), load_low4(group + half * kPanel));
  }
  static Vec minimum(const uint8_t* block, const uint8_t* group, int half) {
    return mul(load_f16((const uint16_t*)block + kPanel), load_high4(group + half * kPanel));
  }
};
// A power of two a block of 32.
struct Powers {
  static constexpr int kBlocks = 1, kGroups = 1, kHead = kPanel, kGroupBytes = 0;
  static constexpr bool kMinimum = false, kSubtracts = false;
  static Vec scale(const uint8_t* block, const uint8_t*, int) { return load_e8m0_half(block); }
};

// Scales that do not lie beside the codes.
struct Apart {
  static constexpr int kBlocks = 1, kGroups = 1, kHead = 0, kGroupBytes = 0;
  static constexpr bool kMinimum = true, kSubtracts = false;
};

template <int Offset, class S, class C>
struct Packed {
  Packed(const LinearCall&, int64_t) {}  // of a panel
  static constexpr int kOffset = Offset, kBlocks = S::kBlocks, kGroups = S::kGroups, kLargest = C::kLargest;
  static constexpr int kInner = S::kGroupBytes + C::kBytes, kBytes = S::kHead + kBlocks * kInner;
  static constexpr bool kMinimum = S::kMinimum, kSubtracts = S::kSubtracts;
  static constexpr int kQuads = 8 / kGroups;  // of a group
  static Vec scale(const uint8_t* block, int j, int half) { return S::scale(block, block + S::kHead + j * kInner, half); }
  static Vec minimum(const uint8_t* block, int j, int half) { return S::minimum(block, block + S::kHead + j * kInner, half); }
  static const uint8_t* codes(const uint8_t* block, int j) { return block + S::kHead + j * kInner + S::kGroupBytes; }
  template <int Half, class F>
  [[gnu::always_inline]] static void pairs(const uint8_t* block, int j, F use) {
    C::template pairs<Half * kQuads, (Half + 1) * kQuads>(codes(block, j), use);
  }
  template <int Half, class F>
  [[gnu::always_inline]] static void quads(const uint8_t* block, int j, F use) {
    each<Half * kQuads, (Half + 1) * kQuads>([&]<int G>(std::integral_constant<int, G>)
                                                 __attribute__((always_inline)) { use(C::template quad<G>(codes(block, j)), 4 * G); });
  }
  // f(half) as constants
  template <class F>
  [[gnu::always_inline]] static void halves(F f) {
    each<0, kGroups>(f);
  }
};

// Groups of any number of blocks, which share a scale and a zero or minimum.
template <class C>
struct InGroups : Packed<0, Apart, C> {
  using Base = Packed<0, Apart, C>;
  const LinearCall& c;
  const uint8_t *codes_begin, *heads;
  InGroups(const LinearCall& call, int64_t panel)
      : Base(call, panel),
        c(call),
        codes_begin((const uint8_t*)call.packed + panel * (call.in / kBlock) * Base::kBytes),
        heads((const uint8_t*)call.heads + panel * call.panel_heads) {}
  const uint8_t* head(const uint8_t* block) const {
    const auto at = uint64_t(block - codes_begin) / Base::kBytes;
    return heads + int64_t(at * c.group_inverse >> 32) * c.head_bytes;
  }
  Vec load_scales(const uint8_t* p) const {
    if (c.scales == LinearCall::Scale::f16) return load_f16((const uint16_t*)p);
    if (c.scales == LinearCall::Scale::bf16) return load_bf16((const uint16_t*)p);
    return load((const float*)p);
  }
  Vec scale(const uint8_t* block, int, int) const { return load_scales(head(block)); }
  Vec minimum(const uint8_t* block, int, int) const {
    const uint8_t *first = head(block), *second = first + (c.scales == LinearCall::Scale::f32 ? 4 : 2) * kPanel;
    if (c.minima) return load_scales(second);
    return mul(load_scales(first), sub(set1(-128), load_i8(second)));  // scale * -zero
  }
};

using Int8 = Packed<128, OneLevel<false>, Codes<8>>;
using Int4 = Packed<8, OneLevel<false>, Nibbles>;
using Int4Min = Packed<0, OneLevel<true>, Nibbles>;
using Int5 = Packed<16, OneLevel<false>, Codes<5>>;
using Int5Min = Packed<0, OneLevel<true>, Codes<5>>;
using Int4Levels = Packed<0, TwoLevels<1, true>, Nibbles>;
using Int5Levels = Packed<0, TwoLevels<1, true>, Codes<5>>;
using Int6Levels = Packed<32, TwoLevels<2, false>, Codes<6>>;
using Int3Levels = Packed<4, TwoLevels<2, false>, Codes<3>>;
using Int2Levels = Packed<0, NibbleLevels<2>, Codes<2>>;
using Iq4 = Packed<128, OneLevel<false>, Lookup<mr::kIq4>>;
using Iq4Levels = Packed<128, TwoLevels<1, false>, Lookup<mr::kIq4>>;
using Int4Groups = InGroups<Nibbles>;
using Int8Groups = InGroups<Codes<8>>;
using E2m1 = Packed<128, Powers, Lookup<mr::kE2m1Doubled>>;

}  // namespace linear
}  // namespace
