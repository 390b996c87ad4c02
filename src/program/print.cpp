#include "program/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace mr {

namespace {

constexpr std::string_view kActivations[] = {"", "silu", "gelu", "gelu_tanh", "relu", "relu2"};

std::string joined(const std::vector<std::string>& parts, std::string_view between = ", ") {
  std::string text;
  for (const std::string& part : parts)
    if (!part.empty()) text += (text.empty() ? "" : std::string(between)) + part;
  return text;
}

std::string heads_text(const PagedKv& kv) {
  const std::string size = kv.k_dim == kv.v_dim ? std::to_string(kv.k_dim) : fmt::format("{} and {}", kv.k_dim, kv.v_dim);
  return fmt::format("{} heads of {} in {}", kv.kv_heads, size, kv.format().name);
}

// An operation's parameters beside its values and its weight.
struct Details {
  std::string operator()(const EmbedOp& o) const { return scale(o.scale); }
  std::string operator()(const NormOp& o) const {
    constexpr std::string_view kinds[] = {"rms", "layer", "scale"};
    return joined({std::string(kinds[size_t(o.norm->kind)]), o.norm->weight.rank ? "" : "no weight",
                   o.norm->offset != 0 ? fmt::format("{:g} + weight", o.norm->offset) : ""});
  }
  std::string operator()(const LinearOp& o) const { return joined({o.bias.rank ? "bias" : "", scale(o.scale)}); }
  std::string operator()(const AddOp& o) const { return scale(o.scale); }
  std::string operator()(const GateOp& o) const { return act(o.act); }
  std::string operator()(const ActivateOp& o) const { return act(o.act); }
  std::string operator()(const AnglesOp& o) const { return fmt::format("{} dimensions", o.rope->dim); }
  std::string operator()(const RopeOp& o) const { return o.interleaved ? "interleaved" : ""; }
  std::string operator()(const StoreKvOp& o) const { return heads_text(*o.kv); }
  std::string operator()(const AttendOp& o) const {
    return joined({fmt::format("{} on {}", o.args.heads, heads_text(*o.kv)), o.args.window ? fmt::format("window {}", o.args.window) : "",
                   o.args.softcap != 0 ? fmt::format("softcap {:g}", o.args.softcap) : "", o.args.sinks.rank ? "sinks" : ""});
  }
  std::string operator()(const ShortConvOp& o) const {
    return joined({fmt::format("width {}", o.conv->weight.shape[1]), o.conv->bias.rank ? "bias" : "", act(o.conv->act)});
  }
  std::string operator()(const DiagScanOp& o) const {
    return fmt::format("{} × {} states in {}", o.scan->inner, o.scan->n_state, name_of(o.scan->state.dtype));
  }
  std::string operator()(const OuterScanOp& o) const {
    return fmt::format("{} heads of {} × {} states in {}", o.scan->heads, o.scan->head_dim, o.scan->n_state, name_of(o.scan->state.dtype));
  }
  std::string operator()(const SoftplusOp& o) const { return o.bias.rank ? "bias" : ""; }
  std::string operator()(const RouteOp& o) const {
    return fmt::format("{} of {}{}", o.expert.cols, o.logits.cols, o.renormalize ? ", renormalized" : "");
  }
  std::string operator()(const GroupedLinearOp&) const { return ""; }
  std::string operator()(const CombineOp& o) const { return o.x.heads ? fmt::format("{} of {}", o.out.heads, o.x.heads) : ""; }
  std::string operator()(const MagnitudeOp& o) const {
    return joined({o.what.centered ? "centered" : "", o.what.floor > 0 ? fmt::format("at least {:g}", std::sqrt(o.what.floor)) : "",
                   o.what.inverse ? "inverse" : ""});
  }
  std::string operator()(const GatherOp&) const { return ""; }
  std::string operator()(const SoftcapOp& o) const { return fmt::format("{:g}", o.cap); }

  static std::string act(Activation a) { return std::string(kActivations[size_t(a)]); }
  static std::string scale(float s) { return s == 1 ? "" : fmt::format("× {:.4g}", s); }
};

class Printer {
 public:
  Printer(const Program& program, const OpList& list) : program_(program), list_(list) {}

  std::vector<ProgramLine> lines() {
    std::vector<ProgramLine> all;
    for (size_t i = 0; i < list_.ops.size(); i++) all.push_back(line(list_.ops[i], int(i)));
    for (const Mark& mark : list_.marks) all[size_t(mark.first)].marks.emplace_back(mark.rule, mark.count);
    draw(all);
    return all;
  }

 private:
  ProgramLine line(const Op& op, int index) const {
    ProgramLine line{.index = index, .layer = op.layer, .kind = name_of(op.kind), .name = op.name};
    std::vector<std::string> written, read, shapes;
    const auto values = touched(op);
    const bool makes = std::ranges::any_of(values, [](auto& v) { return v.second == Access::write; });  // else it updates in place
    bool in_place = false;
    for (auto [v, access] : values) {
      shapes.push_back(shape(v));
      const bool result = makes ? access == Access::write : access == Access::update;
      const bool again = std::ranges::count(values, std::pair(v, Access::write)) && access == Access::read;
      in_place |= again || (result && !makes);
      if (!again) (result ? written : read).push_back(text(v));
    }
    line.result = written.empty() ? "pages" : joined(written);
    line.operands = op.get<EmbedOp>() ? "token ids" : op.get<AnglesOp>() ? "positions" : joined(read);
    line.arrow = !in_place ? "←" : op.get<LinearOp>() || op.get<AddOp>() ? "+=" : "↻";
    weight(op, line);
    line.details = std::visit(Details{}, op.kind);
    line.shape = joined(
        {std::string(line.kind), line.name, std::string(line.arrow), joined(shapes), line.weight, std::string(line.format), line.details},
        "; ");
    return line;
  }

  static void weight(const Op& op, ProgramLine& line) {
    const Weight* w = nullptr;
    if (auto* o = op.get<EmbedOp>()) w = o->table;
    if (auto* o = op.get<LinearOp>()) w = o->weight;
    if (auto* o = op.get<GroupedLinearOp>()) w = &o->experts[0];
    if (!w) return;
    line.weight = fmt::format("[{}, {}]", w->out, w->in);
    if (auto* o = op.get<GroupedLinearOp>()) line.weight = fmt::format("{} × {}", o->experts.size(), line.weight);
    line.format = w->codec->name;
  }

  std::string shape(const Value& v) const {
    const ValueInfo& info = program_.values[size_t(v.id)];
    constexpr std::string_view types[] = {"", "f32 ", "i32 "};
    std::string rows = info.rows.base == Rows::Base::outputs ? "outputs" : "tokens";
    if (info.rows.times != 1) rows += fmt::format("×{}", info.rows.times);
    std::string cols = v.heads ? fmt::format("{}×{}", v.heads, v.cols / v.heads) : std::to_string(v.cols);
    return fmt::format("{}[{}, {}]", types[size_t(info.type)], rows, cols);
  }
  std::string text(const Value& v) const { return fmt::format("v{}{} {}", v.id, v.first ? fmt::format("+{}", v.first) : "", shape(v)); }

  // Each mark gets the leftmost free column, which is free again after its end.
  void draw(std::vector<ProgramLine>& all) const {
    struct Column {
      Mark mark;
      bool open = false;
    };
    std::vector<Column> columns;
    size_t next = 0;
    for (int i = 0; i < int(all.size()); i++) {
      for (Column& c : columns) c.open = c.open && c.mark.end() > i;
      for (; next < list_.marks.size() && list_.marks[next].first == i; next++) {
        auto free = std::ranges::find(columns, false, &Column::open);
        if (free == columns.end()) free = columns.insert(free, Column{});
        *free = {list_.marks[next], true};
      }
      while (!columns.empty() && !columns.back().open) columns.pop_back();
      for (const Column& c : columns)
        all[size_t(i)].brackets += !c.open ? " " : i == c.mark.first ? "┌" : i == c.mark.end() - 1 ? "└" : "│";
    }
  }

  const Program& program_;
  const OpList& list_;
};

}  // namespace

std::vector<ProgramLine> lines_of(const Program& program, const OpList& list) { return Printer(program, list).lines(); }

std::vector<int> first_alike(const std::vector<ProgramLine>& lines) {
  std::vector<std::string> layers;
  for (const ProgramLine& line : lines) {
    if (line.layer < 0) continue;
    layers.resize(std::max(layers.size(), size_t(line.layer) + 1));
    layers[size_t(line.layer)] += line.shape + "; " + line.brackets + "\n";
  }
  std::map<std::string, int> first;
  std::vector<int> alike;
  for (const std::string& layer : layers) alike.push_back(first.try_emplace(layer, int(alike.size())).first->second);
  return alike;
}

}  // namespace mr
