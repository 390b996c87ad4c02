#include "program/ops.h"

#include <type_traits>

namespace mr {

namespace {

struct Listing {
  std::vector<Touched> list;
  void add(Value& v, Access access) {
    if (v) list.push_back({&v, access});
  }
  void read(Value& v) { add(v, Access::read); }
  void write(Value& v) { add(v, Access::write); }
  void update(Value& v) { add(v, Access::update); }

  void operator()(EmbedOp& o) { write(o.out); }
  void operator()(NormOp& o) {
    read(o.x);
    write(o.out);
  }
  void operator()(LinearOp& o) {
    read(o.x);
    read(o.residual);
    write(o.out);
  }
  void operator()(AddOp& o) {
    read(o.x);
    update(o.into);
  }
  void operator()(GateOp& o) {
    read(o.gate);
    read(o.up);
    write(o.out);
  }
  void operator()(ActivateOp& o) { update(o.x); }
  void operator()(AnglesOp& o) { write(o.out); }
  void operator()(RopeOp& o) {
    read(o.angles);
    update(o.x);
  }
  void operator()(StoreKvOp& o) {
    read(o.k);
    read(o.v);
  }
  void operator()(AttendOp& o) {
    read(o.q);
    write(o.out);
  }
  void operator()(ShortConvOp& o) {
    read(o.x);
    write(o.out);
  }
  template <class Scan>
    requires std::is_same_v<Scan, DiagScanOp> || std::is_same_v<Scan, OuterScanOp>
  void operator()(Scan& o) {
    read(o.x);
    read(o.dt);
    read(o.b);
    read(o.c);
    write(o.out);
  }
  void operator()(SoftplusOp& o) { update(o.x); }
  void operator()(RouteOp& o) {
    update(o.logits);
    write(o.expert);
    write(o.weight);
  }
  void operator()(GroupedLinearOp& o) {
    read(o.x);
    read(o.expert);
    write(o.out);
  }
  void operator()(CombineOp& o) {
    read(o.x);
    read(o.weight);
    add(o.out, o.add ? Access::update : Access::write);
  }
  void operator()(MagnitudeOp& o) {
    read(o.x);
    write(o.out);
  }
  void operator()(GatherOp& o) {
    read(o.x);
    write(o.out);
  }
  void operator()(SoftcapOp& o) { update(o.x); }
};

constexpr std::string_view kNames[] = {"embed", "norm",           "linear",  "add",        "gate",      "activate",   "angles",
                                       "rope",  "store_kv",       "attend",  "short_conv", "diag_scan", "outer_scan", "softplus",
                                       "route", "grouped_linear", "combine", "magnitude",  "gather",    "softcap"};
static_assert(std::size(kNames) == std::variant_size_v<OpKind>);

template <class... Kinds>
bool is_any(const OpKind& kind) {
  return (std::holds_alternative<Kinds>(kind) || ...);
}

}  // namespace

std::vector<Touched> touched(Op& op) {
  Listing listing;
  std::visit(listing, op.kind);
  return std::move(listing.list);
}

std::vector<std::pair<Value, Access>> touched(const Op& op) {
  std::vector<std::pair<Value, Access>> list;
  for (const Touched& t : touched(const_cast<Op&>(op))) list.emplace_back(*t.value, t.access);  // only read through the pointers
  return list;
}

std::string_view name_of(const OpKind& kind) { return kNames[kind.index()]; }

bool reads_rows(const OpKind& kind) { return is_any<EmbedOp, AnglesOp, StoreKvOp, AttendOp, ShortConvOp, DiagScanOp, OuterScanOp>(kind); }

}  // namespace mr
