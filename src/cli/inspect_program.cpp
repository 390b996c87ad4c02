#include "cli/inspect_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "analyze/report.h"
#include "core/error.h"
#include "core/words.h"
#include "engine/engine.h"
#include "program/print.h"

namespace mr {

Phase ProgramQuestion::phase(const ModelSpec& spec) const {
  const int rows = prompt ? prompt : 1, sees = context ? context : prompt ? prompt : std::min(1024, spec.max_context);
  check(sees >= rows, "a prompt of {} does not fit into a context of {} (--context)", counted(rows, "token"), sees);
  return {double(batch), double(rows), double(sees)};
}

namespace {

size_t width_of(std::string_view text) {  // terminal columns
  return size_t(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(std::string_view text, size_t width, bool right = false) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + std::string(text) : std::string(text) + space;
}

// Aligned columns, each as wide as its widest cell.
class ProgramTable {
 public:
  static constexpr size_t n_right = 3;  // numbers: the columns before the last
  void add(std::vector<std::string> cells) {
    width_.resize(std::max(width_.size(), cells.size()));
    for (size_t i = 0; i < cells.size(); i++) width_[i] = std::max(width_[i], width_of(cells[i]));
    rows_.push_back(std::move(cells));
  }
  void add_line(std::string text) { rows_.push_back({std::move(text)}); }  // spans all columns
  std::string text() const {
    std::string out;
    for (const std::vector<std::string>& row : rows_) {
      std::string line = row.size() == 1 ? row[0] : "";
      for (size_t i = 0; row.size() > 1 && i < row.size(); i++) {
        const bool right = i == 0 || (i + 1 + n_right >= row.size() && i + 1 < row.size());
        line += (i ? "  " : "") + padded(row[i], width_[i], right);
      }
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> width_;
};

std::string amount(double value, const char* unit) { return value > 0 ? with_unit(value, unit) : ""; }

std::vector<std::string> cells_of_line(const ProgramLine& line, const Cost& c) {
  std::string marks;
  for (auto [rule, count] : line.marks) marks += fmt::format("{}{} {}", marks.empty() ? "" : ", ", name_of(rule), count);
  std::string what = line.weight + (line.weight.empty() ? "" : " ") + std::string(line.format);
  if (!line.details.empty()) what += (what.empty() ? "" : ", ") + line.details;
  return {std::to_string(line.index),
          line.name.empty() ? std::string(line.kind) : fmt::format("{} {}", line.kind, line.name),
          line.result,
          fmt::format("{} {}", padded(line.arrow, 2), line.operands),
          what,
          amount(c.weights + c.state + c.kept, "B"),
          amount(c.read + c.written, "B"),
          amount(c.flops, "FLOP"),
          line.brackets + (marks.empty() ? "" : " " + marks)};
}

struct Listed {
  const OpList& list;
  const BatchShape& shape;
  std::vector<ProgramLine> lines;
  std::vector<Cost> costs;
  Cost sum;
  std::map<std::string_view, int> marks;  // count by rule

  Listed(const Program& program, const OpList& the_list, const BatchShape& step)
      : list(the_list), shape(step), lines(lines_of(program, the_list)) {
    for (const Op& op : list.ops) sum += costs.emplace_back(cost(op, program, shape));
    for (const Mark& mark : list.marks) marks[name_of(mark.rule)]++;
  }
};

const OpList& list_of(const Program& program, const ProgramQuestion& q, const BatchShape& shape) {
  return q.tail ? program.tail : program.list(int64_t(shape.tokens), int64_t(shape.outputs));
}

// "layers 1-29: as layer 0", or the operations of the next layer.
void add_lines(ProgramTable& table, const Listed& listed, bool all) {
  const std::vector<int> alike = first_alike(listed.lines);
  int shown = -2;  // layer
  int last_of_layers = -1;
  for (const ProgramLine& line : listed.lines)
    if (line.layer >= 0) last_of_layers = line.index;
  for (const ProgramLine& line : listed.lines) {
    if (line.layer >= 0 && !all && alike[size_t(line.layer)] < line.layer) {
      if (line.layer <= shown) continue;
      int last = line.layer;
      while (last + 1 < int(alike.size()) && alike[size_t(last) + 1] == alike[size_t(line.layer)]) last++;
      const std::string range = last == line.layer ? fmt::format("layer {}", last) : fmt::format("layers {}-{}", line.layer, last);
      table.add_line(fmt::format("{}: as layer {}", range, alike[size_t(line.layer)]));
      shown = last;
      continue;
    }
    const bool within = line.layer < 0 && shown >= 0 && line.index < last_of_layers;  // the tail's gathers, in the middle of a layer
    if (within && line.kind == "gather" && listed.lines[size_t(line.index) - 1].kind != "gather") table.add_line("only outputs go on");
    if (!within && line.layer != shown && (line.layer >= 0 || shown >= 0))
      table.add_line(line.layer < 0 ? "after the layers" : fmt::format("layer {}", line.layer));
    if (!within) shown = line.layer;
    table.add(cells_of_line(line, listed.costs[size_t(line.index)]));
  }
}

struct Workspace {
  int64_t step, engine;  // of this step; of the largest step of an engine with default options
  SchedulerLimits limits;
};

Workspace workspace_of(const Program& program, const Listed& listed) {
  const SchedulerLimits limits = limits_of(EngineOptions{});
  return {listed.list.bytes(int64_t(listed.shape.tokens), int64_t(listed.shape.outputs)),
          program.workspace(limits.max_batch_tokens, limits.max_out()), limits};
}

}  // namespace

std::string program_text(const Model& model, const ProgramQuestion& q) {
  const Phase phase = q.phase(model.spec());
  const BatchShape shape(std::span(&phase, 1));
  const Program& program = model.program();
  const Listed listed(program, list_of(program, q, shape), shape);
  ProgramTable table;
  table.add({"#", "operation", "result", "   of", "weight, details", "weights, state", "values", "flops", "may be one kernel"});
  add_lines(table, listed, q.all);
  std::string out = fmt::format("{} list, for {} sequence{} of {} new token{} in a context of {}: {} operations, values v in {}\n",
                                &listed.list == &program.tail ? "tail" : "whole", q.batch, q.batch == 1 ? "" : "s", int(phase.rows),
                                phase.rows == 1 ? "" : "s", int(phase.context), listed.list.ops.size(), name_of(program.activation));
  out += table.text();
  const Cost& c = listed.sum;
  out += fmt::format("together {}: {} of weights, {} of state read and {} written, {} of values read and {} written\n",
                     with_unit(c.flops, "FLOP"), with_unit(c.weights, "B"), with_unit(c.state, "B"), with_unit(c.kept, "B"),
                     with_unit(c.read, "B"), with_unit(c.written, "B"));
  const Workspace w = workspace_of(program, listed);
  const auto used = std::ranges::count_if(listed.list.slot_of, [](int slot) { return slot >= 0; });
  out += fmt::format("workspace {}: {} values in {} slots; {} for any step of {} tokens and {} outputs\n", size_text(w.step), used,
                     listed.list.slots.size(), size_text(w.engine), w.limits.max_batch_tokens, w.limits.max_out());
  std::string marks;
  for (auto [rule, n] : listed.marks) marks += fmt::format("{}{} {}", marks.empty() ? "marks: " : ", ", n, rule);
  return out + (marks.empty() ? "" : marks + "\n");
}

Json program_json(const Model& model, const ProgramQuestion& q) {
  const Phase phase = q.phase(model.spec());
  const BatchShape shape(std::span(&phase, 1));
  const Program& program = model.program();
  const Listed listed(program, list_of(program, q, shape), shape);
  auto cost_json = [](const Cost& c) {
    return Json{{"flops", c.flops},     {"weight_bytes", c.weights}, {"state_bytes_read", c.state}, {"state_bytes_written", c.kept},
                {"bytes_read", c.read}, {"bytes_written", c.written}};
  };
  const Workspace w = workspace_of(program, listed);
  Json out{{"list", &listed.list == &program.tail ? "tail" : "whole"},
           {"batch", q.batch},
           {"rows", phase.rows},
           {"context", phase.context},
           {"activations", name_of(program.activation)},
           {"workspace_bytes", w.step},
           {"engine_workspace_bytes", w.engine},
           {"slots", listed.list.slots.size()},
           {"total", cost_json(listed.sum)},
           {"operations", Json::array()}};
  for (const ProgramLine& line : listed.lines) {
    Json op{{"index", line.index}, {"op", line.kind}, {"result", line.result}, {"how", line.arrow}, {"operands", line.operands}};
    if (line.layer >= 0) op["layer"] = line.layer;
    if (!line.name.empty()) op["name"] = line.name;
    if (!line.weight.empty()) op.update({{"weight", line.weight}, {"format", line.format}});
    if (!line.details.empty()) op["details"] = line.details;
    for (auto [rule, count] : line.marks) op["marks"].push_back({{"rule", name_of(rule)}, {"operations", count}});
    op.update(cost_json(listed.costs[size_t(line.index)]));
    out["operations"].push_back(std::move(op));
  }
  return out;
}

}  // namespace mr
