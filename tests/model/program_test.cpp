// Every fixture's program in all the ways that it can be derived and run: marks or none, slots shared or not, the whole list or the
// tail. On the CPU each gives the same bits. Memory begins as NaN, and slots become NaN as soon as nobody needs what they hold.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/world.h"
#include "core/arena.h"
#include "model/fixtures.h"
#include "model/model.h"
#include "program/lives.h"

namespace mr::test {
namespace {

namespace fs = std::filesystem;

// Fills what is dead with NaN after every operation.
class Poison final : public Observer {
 public:
  Poison(const Program& program, const OpList& list) : list_(list), alive_(alive(program, list)) {}
  void begin() override {}
  void ran(std::string_view) override {}
  void ran(const Bound& at, int first, int count) override {
    const int now = first + count;  // the next operation
    auto needed = [&](int v) {
      const Alive& a = alive_[size_t(v)];
      return a && a.first < now && a.last >= now;
    };
    std::vector<bool> busy(list_.slots.size(), false);
    for (int v = 0; v < int(alive_.size()); v++)
      if (list_.slot_of[size_t(v)] >= 0 && needed(v)) busy[size_t(list_.slot_of[size_t(v)])] = true;
    for (int v = 0; v < int(alive_.size()); v++) {
      const int slot = list_.slot_of[size_t(v)];
      if (slot < 0 || busy[size_t(slot)]) continue;
      const Tensor t = at(Value{v, 0, at.program().values[size_t(v)].cols});
      std::fill_n(t.as<std::byte>(), t.bytes(), std::byte(0xff));
    }
  }

 private:
  const OpList& list_;
  std::vector<Alive> alive_;
};

// Two sequences in steps; logits of all outputs, then all of the state.
class Course {
 public:
  Course(Backend& backend, const Model& model, const ProgramOptions& options)
      : backend_(backend), program_(model.record(options)), vocab_(model.spec().vocab) {
    backend.prepare(program_);
    for (const Group& g : model.layout().groups()) {
      const bool paged = g.kind == StateSpec::Kind::paged;
      units_.push_back(std::make_unique<Units>(paged ? 1 + 2 * kPages : 3, g.bytes * (paged ? kPage : 1), paged ? kPage : 0, 3));
      state_.group.push_back(units_.back()->state.group[0]);
    }
  }

  // every: each row is an output, not the last of each sequence alone. poisons: dead slots, by an observer that takes steps apart.
  std::vector<float> steps(bool every, bool poisons) {
    std::vector<float> all;
    int done[2] = {0, 0};
    for (auto [first, second] : {std::pair{9, 0}, {1, 5}, {1, 1}, {3, 1}}) {
      Rows rows;
      std::vector<std::vector<int32_t>> pages(state_.group.size()), begin(pages.size(), {0}), src(pages.size()), dst(pages.size());
      for (int s = 0; s < 2; s++) {
        const int n = s ? second : first;
        if (n == 0) continue;
        rows.add(done[s], n);
        for (int r = 0; r < n; r++) {
          rows.token[rows.token.size() - size_t(n - r)] = (done[s] + r) * 7 % (vocab_ - 1) + s;
          if (every || r == n - 1) rows.out_row.push_back(int(rows.token.size()) - n + r);
        }
        for (size_t g = 0; g < pages.size(); g++) {
          for (int p = 0; p < kPages; p++) pages[g].push_back(1 + s * kPages + p);
          begin[g].push_back(int(pages[g].size()));
          src[g].push_back(done[s] ? 1 + s : 0);
          dst[g].insert(dst[g].end(), size_t(n), -1);
          dst[g].back() = 1 + s;
        }
        done[s] += n;
      }
      rows.out.assign(rows.out_row.size(), Out::logits);
      rows.sample.resize(rows.out_row.size());
      Batch batch = rows.batch();
      std::vector<GroupTable> tables;
      for (size_t g = 0; g < pages.size(); g++) tables.push_back({pages[g].data(), begin[g].data(), src[g].data(), dst[g].data()});
      batch.group = tables;
      const Tensor logits = step(batch, poisons);
      for (int i = 0; i < batch.n_out; i++) {
        const bool last = std::ranges::count(rows.row_begin, rows.out_row[size_t(i)] + 1) > 0;
        if (last) all.insert(all.end(), logits.row<float>(i), logits.row<float>(i) + vocab_);
      }
    }
    for (const StateMemory::GroupMemory& g : state_.group) {
      const float* values = reinterpret_cast<const float*>(g.base);
      all.insert(all.end(), values, values + g.n_units * g.unit_bytes / 4);
    }
    return all;
  }
  const Program& program() const { return program_; }

 private:
  Tensor step(const Batch& batch, bool poisons) {
    const OpList& list = program_.list(batch.n_tokens, batch.n_out);
    arena_ = std::make_unique<Arena>(size_t(program_.workspace(batch.n_tokens, batch.n_out)));
    const size_t bytes = size_t(list.bytes(batch.n_tokens, batch.n_out));
    std::fill_n(arena_->take(bytes), bytes, std::byte(0xff));
    Poison poison(program_, list);
    return backend_.run(program_, batch, state_, *arena_, poisons ? &poison : nullptr);
  }
  static constexpr int kPage = 16, kPages = 2;

  Backend& backend_;
  Program program_;
  int vocab_;
  std::vector<std::unique_ptr<Units>> units_;
  StateMemory state_;
  std::unique_ptr<Arena> arena_;
};

TEST(Programs, OfFixturesGiveTheSameBitsHoweverTheyAreDerived) {
  std::vector<NamedBackend> backends;
  backends.push_back({"ref", make_ref_backend()});
  backends.push_back({"cpu", make_cpu_backend(best_isa(), 2)});
  ASSERT_GE(model_fixtures().size(), 30u);
  for (auto& [name, backend] : backends)
    for (const fs::path& path : model_fixtures()) {
      const std::string where = fmt::format("{} on {}", path.string(), name);
      auto model = Model::load(*Checkpoint::open(path), *backend, {});
      const std::vector<float> want = Course(*backend, *model, {.fuse = false, .share = false}).steps(false, false);
      auto expect = [&](ProgramOptions options, bool every, bool poisons) {
        Course course(*backend, *model, options);
        expect_same_bits(
            course.steps(every, poisons), want,
            fmt::format("{}, marks {}, shared {}, every row {}, poisoned {}", where, options.fuse, options.share, every, poisons));
      };
      for (bool fuses : {false, true})
        for (bool shares : {false, true}) expect({fuses, shares}, false, false);
      expect({}, true, false);
      expect({.fuse = false}, true, true);
      expect({}, false, true);
      const float* logits = want.data();
      for (int i = 0; i < model->spec().vocab; i++) ASSERT_TRUE(std::isfinite(logits[i])) << where;
    }
}

}  // namespace
}  // namespace mr::test
