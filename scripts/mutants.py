"""Single-line faults for scripts/mutate: each must make one of its suites fail.

M(file, old, new, suites): `old` occurs once in the file and is replaced by `new`. A suite is a test program with an optional gtest
filter; they run in order until one fails. `survives`: why no test can, or need, notice it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class M:
    file: str
    old: str
    new: str
    suites: tuple
    survives: str = ""


ENGINE = ("test_engine:Engine.*:Scheduling.*:Batching.*:PlainState.*", "test_engine:All/Law4.*/llama_gqa:All/Law4.*/jamba:All/Law4.*/mistral_window",
          "test_engine:Faults.*")
DECODE = ("test_decode", "test_engine:Engine.*")
STATE = ("test_state", "test_engine:All/Law4.*/jamba:All/Law4.*/mistral_window:Scheduling.*")
TEXT = ("test_text",)
IO = ("test_io",)
SERVE = ("test_serve:-Http.*:Server.*:Client.*",)
ROPE = ("test_model:Rope.*", "test_engine:All/Logits.*/llama_rope*")
SAMPLE = ("test_backend:Sample.*",)
ATTEND = ("test_backend:Attention.*",)
OPS = ("test_backend:Ops.*:Recurrent.*:OuterScanOp.*",)
LINEAR = ("test_backend:Linear.*:All/LinearTest.*",)
EXPERTS = ("test_backend:Experts.*",)

decode = "src/decode/"
engine = "src/engine/"
state = "src/state/"
text = "src/text/"
io = "src/io/"
serve = "src/serve/"
cpu = "src/backend/cpu/"

MUTANTS = [
    # ---- decode: what a user asks of sampling, and when an answer stops
    M(decode + "sampling.cpp", "|| params.presence_penalty != 0;", ";", DECODE),
    M(decode + "sampling.cpp", "params.frequency_penalty != 0 ||", "", DECODE),
    M(decode + "sampling.cpp", "if (params.repetition_penalty != 1)\n", "if (params.presence_penalty != 0)\n", DECODE),
    M(decode + "sampling.cpp", "of(token).seen = 1;", "of(token).n_generated = 1;", DECODE),
    M(decode + "sampling.cpp", "of(token).bias = bias;", "of(token).bias = -bias;", DECODE),
    M(decode + "sampling.cpp", "  e.n_generated++;\n", "", DECODE),
    M(decode + "sampling.cpp", "  e.seen = 1;\n", "", DECODE),
    M(decode + "sampling.cpp", "if (!own_) own_ =", "own_ =", DECODE),
    M(decode + "sampling.cpp", "row.n_edits = int32_t(edits().size());", "row.n_edits = int32_t(first_->all().size());", DECODE),
    M(decode + "sampling.cpp", "row_.choice = choice;", "row_.choice = 0;", DECODE),
    M(decode + "sampling.cpp", "row_.presence_penalty = params.presence_penalty;", "", DECODE),
    M(decode + "sampling.cpp", "row.position = position;", "row.position = position - 1;", DECODE),
    M(decode + "sampling.cpp", "top_p > 0 && top_p <= 1", "top_p >= 0 && top_p <= 1", DECODE),
    M(decode + "sampling.cpp", "bias >= -100 && bias <= 100", "bias >= -100 || bias <= 100", DECODE),
    M(decode + "sampling.cpp", "token >= 0 && token < vocab", "token >= 0 && token <= vocab", DECODE),
    M(decode + "stop.cpp", "a.size() > b.size();", "a.size() < b.size();", DECODE),
    M(decode + "stop.cpp", "end = n_old + 1;", "end = n_old + 2;", DECODE),
    M(decode + "stop.cpp", "out.append(held_, 0, end - stop.size());", "out.append(held_, 0, end);", DECODE),
    M(decode + "stop.cpp", "held_.erase(0, n_safe);", "held_.clear();", DECODE),
    M(decode + "stop.cpp", "stops_.front().size() - 1;", "stops_.back().size() - 1;", DECODE),
    M(decode + "stop.cpp", "  out += held_;\n", "", DECODE),
    M(decode + "autoregressive.cpp", "int(plan.tokens.size()) - 1;", "0;", DECODE),
    M(decode + "autoregressive.cpp", ".n_rows = n_rows,", ".n_rows = 1,", DECODE),
    # ---- engine: who runs when
    M(engine + "scheduler.cpp", "for (bool decode : {true, false})", "for (bool decode : {false, true})", ENGINE),
    M(engine + "scheduler.cpp", "return places() + n_places > limits_.max_seqs", "return places() + 1 > limits_.max_seqs", ENGINE),
    M(engine + "scheduler.cpp", "1 + int(seq.followers.size()) +", "1 +", ENGINE),
    M(engine + "scheduler.cpp", "(limits_.shared_state ? seq.request.unmade() : 0);", "0;", ENGINE),
    M(engine + "scheduler.cpp", "last.request.request.priority <= request.request.priority", "last.request.request.priority < request.request.priority", ENGINE),
    M(engine + "scheduler.cpp", "|| last.turn() <= turn) return false;", ") return false;", ENGINE,
      survives="a later request of better priority is before the last that runs unless `overtakes` requests came between them, and the "
               "first to wait is never behind the last that runs by more than that in a queue a test can build in seconds"),
    M(engine + "scheduler.cpp", "int n = limits_.max_batch_tokens - next_.n_tokens;", "int n = limits_.max_batch_tokens;", ENGINE),
    M(engine + "scheduler.cpp", "limits_.max_prompt_tokens - next_.n_prompt_tokens", "limits_.max_prompt_tokens", ENGINE),
    M(engine + "scheduler.cpp", "s.news.timing.n_generated + s.in_flight >= s.max_tokens", "s.news.timing.n_generated >= s.max_tokens", ENGINE),
    M(engine + "scheduler.cpp", "if (limits_.victim == Victim::newest) return running_.back();", "return running_.back();", ENGINE),
    M(engine + "scheduler.cpp", "for (size_t i = 1; i < running_.size(); i++)  // never the first of all", "for (size_t i = 0; i < running_.size(); i++)  // never the first of all", ENGINE),
    M(engine + "scheduler.cpp", "if (running_.size() < 2) return nullptr;", "if (running_.empty()) return nullptr;", ENGINE),
    M(engine + "scheduler.cpp", "if (!states_.swap_out(seq.state, next_.copies)) states_.release(seq.state);", "states_.release(seq.state);", ENGINE),
    M(engine + "scheduler.cpp", "  metrics_.preemptions++;\n", "", ENGINE),
    M(engine + "scheduler.cpp", "seq.state.reuse = !seq.scoring();", "seq.state.reuse = true;", ENGINE),
    M(engine + "scheduler.cpp", "metrics_.prefix_hit_tokens += n_hit;", "metrics_.prefix_hit_tokens = n_hit;", ENGINE),
    M(engine + "scheduler.cpp", "f->state.tokens.push_back(-1 - (output + 1 +", "f->state.tokens.push_back(-1 - (output +", ENGINE),
    M(engine + "scheduler.cpp", "int32_t output = part.first_out + part.n_out() - part.n_choices;", "int32_t output = part.first_out;", ENGINE),
    M(engine + "scheduler.cpp", "f->in_flight++;", "", ENGINE),
    M(engine + "scheduler.cpp", "if (part.scores_first)\n", "if (part.scores)\n", ENGINE),
    M(engine + "scheduler.cpp", "if (seq.max_tokens == 0) seq.end(Finish::length);", "", ENGINE),
    M(engine + "scheduler.cpp", "if (f.finish == Finish::none) emit(", "emit(", ENGINE),
    M(engine + "scheduler.cpp", "part.score_to = std::clamp(state.n_prompt - 1 - state.committed,", "part.score_to = std::clamp(state.n_prompt - state.committed,", ENGINE),
    M(engine + "scheduler.cpp", "n = std::min(n, part.score_from + limits_.max_scored - next_.n_scored);", "", ENGINE),
    M(engine + "scheduler.cpp", "batch_waits_ = more_may_come && wanted < limits_.max_seqs && !waited;", "batch_waits_ = more_may_come && wanted < limits_.max_seqs;", ENGINE),
    M(engine + "scheduler.cpp", "for (const Answering* request : arrived_) wanted += request->unmade();", "", ENGINE),
    M(engine + "scheduler.cpp", "longest_ - s.prefill_end - s.n_padded;", "longest_ - s.prefill_end;", ENGINE),
    M(engine + "scheduler.cpp", "if (seq->in_flight) return;", "", ENGINE),
    M(engine + "scheduler.cpp", "seq.planned = false;\n  part.scores_first", "part.scores_first", ENGINE),
    M(engine + "scheduler.cpp", "  states_.release(seq.state);\n  if (running_.empty()) end_padding();", "  if (running_.empty()) end_padding();", ENGINE),
    M(engine + "sequence.cpp", "request.id + Sequence::overtakes * request.request.priority", "request.id - Sequence::overtakes * request.request.priority", ENGINE),
    M(engine + "sequence.cpp", "if (timing.n_generated >= max_tokens) end(Finish::length);", "if (timing.n_generated > max_tokens) end(Finish::length);", ENGINE),
    M(engine + "sequence.cpp", "if (timing.n_generated++ == 0) timing.first_token_s", "if (timing.n_generated++ == 1) timing.first_token_s", ENGINE),
    M(engine + "sequence.cpp", "if (!params.ignore_eos && ", "if (", ENGINE),
    M(engine + "sequence.cpp", "sampling.add(sampled.token);", "", ENGINE),
    M(engine + "sequence.cpp", "if (!stopped) stop.finish(news.text);", "", ENGINE),
    M(engine + "sequence.cpp", "/*continues=*/true", "/*continues=*/false", ENGINE + ("test_serve:Completion.*",)),
    M(engine + "sequence.cpp", "detokenizer.reset();", "", ENGINE),
    M(engine + "sequence.cpp", "(unmade() == 0 || last_word.finish != Finish::none) &&", "", ENGINE),
    M(engine + "engine.cpp", "std::min(request.sampling.max_tokens, memory_.max_context - int(request.prompt.size()))", "request.sampling.max_tokens", ENGINE),
    M(engine + "engine.cpp", "token >= 0 && token < vocab", "token >= 0 && token <= vocab", ENGINE),
    M(engine + "engine.cpp", "if (int(r.prompt.size()) <= rope.original) continue;", "continue;", ENGINE + ("test_engine:All/Law4.*/llama_rope*",)),
    M(engine + "engine.cpp", "n_prompt + n_answer <= memory_.max_context", "n_prompt <= memory_.max_context", ENGINE),
    M(engine + "engine.cpp", "n_kept <= memory_.state.n_tokens", "n_kept <= memory_.state.n_tokens + 1", ENGINE),
    M(engine + "engine.cpp", "  states_->reset();\n", "", ENGINE),
    M(engine + "engine.cpp", "  scheduler_->clear();\n", "", ENGINE),
    M(engine + "engine.cpp", "  loop_->forget();\n", "", ENGINE),
    M(engine + "engine.cpp", "if (!tell(request)) end(request, Finish::error, \"its reader failed\");", "tell(request);", ENGINE),
    M(engine + "engine.cpp", "  if (!loop_->in_flight()) erase(buried_);\n", "", ENGINE),
    M(engine + "engine.cpp", "if (request.over) return;", "", ENGINE),
    M(engine + "engine.cpp", "if (std::exchange(request.has_news, true)) return;", "", ENGINE,
      survives="a request told twice in a turn has nothing to say the second time; the list's room is what the line protects, and only "
               "from a failing allocation between two that succeed"),
    M(engine + "step_loop.cpp", "if (parts_.scheduler.needs_results()) finish_last();", "", ENGINE),
    M(engine + "step_loop.cpp", "last_ = next;", "", ENGINE),
    M(engine + "step_loop.cpp", "if (failure) std::rethrow_exception(failure);", "", ENGINE),
    M(engine + "step_loop.cpp", "if (part.n_sampled() > 0) request.request.on_logits", "if (part.n_sampled() > 1) request.request.on_logits", ENGINE),
    M(engine + "step_loop.cpp", "metrics.computed_tokens += step.n_tokens;", "", ENGINE),
    M(engine + "runner.cpp", "a.sample[i] = sampling.row(seq.state.committed + r + 1);", "a.sample[i] = sampling.row(seq.state.committed + r);", ENGINE),
    M(engine + "runner.cpp", "int next = seq.state.committed + r + 1;", "int next = seq.state.committed + r;", ENGINE),
    M(engine + "runner.cpp", "a.position[first_row + r] = part.position + r;", "a.position[first_row + r] = part.position;", ENGINE),
    M(engine + "runner.cpp", "c == 0 ? seq.sampling : seq.followers[size_t(c) - 1]->sampling", "seq.sampling", ENGINE),
    M(engine + "step_buffer.cpp", "(end + 15) / 16 * 16", "end / 16 * 16", ENGINE + ("test_engine:StepBuffer.*",)),
    M(engine + "traffic.cpp", "values[i] + (at - double(i)) * (values[next] - values[i])", "values[i]", ("test_engine:Traffic.*", "test_serve:Load.*")),
    M(engine + "traffic.cpp", "low + pick(seed, index, 0, purpose, high - low + 1)", "low + pick(seed, index, 0, purpose, high - low)", ("test_engine:Traffic.*", "test_serve:Load.*")),
    # ---- state: units, prefixes, windows, swaps
    M(state + "state_manager.cpp", "std::max(0, committed - window + 1) / page_tokens_", "std::max(0, committed - window) / page_tokens_", STATE),
    M(state + "state_manager.cpp", "std::max(0, committed - window + 1) / page_tokens_;", "std::max(0, committed - window + 2) / page_tokens_;", STATE),
    M(state + "state_manager.cpp", "int(tokens.size() - 1) / page_tokens_;\n  std::vector<Node*> path;", "int(tokens.size()) / page_tokens_;\n  std::vector<Node*> path;", STATE),
    M(state + "state_manager.cpp", "all &= run[g] >= wanted;", "all &= run[g] > 0;", STATE),
    M(state + "state_manager.cpp", "held.temporary = false;", "", STATE),
    M(state + "state_manager.cpp", "needed += pools_[g].refs(t.unit[p]) > 1;", "needed += 0;", STATE),
    M(state + "state_manager.cpp", "else if (int32_t shared = unit[p]; pool(g).refs(shared) > 1)", "else if (int32_t shared = unit[p]; pool(g).refs(shared) > 2)", STATE),
    M(state + "state_manager.cpp", "if (pool(g).n_free() == 0) tree_.evict(g);", "", STATE),
    M(state + "state_manager.cpp", "if (in_place) forget_snapshot(seq, g);", "", STATE),
    M(state + "state_manager.cpp", "if (t.src > 0) pool(g).release(t.src);\n  t.src = last;", "t.src = last;", STATE),
    M(state + "state_manager.cpp", "while (n_known > 0 && tokens[size_t(n_known) - 1] < 0) n_known--;", "", STATE),
    M(state + "state_manager.cpp", "if (ours < 0 || ours == theirs) continue;", "if (ours < 0) continue;", STATE,
      survives="retaining a unit and releasing it again changes nothing: the line saves work"),
    M(state + "state_manager.cpp", "p * page_tokens_ >= seq.n_prompt) tree_.drop", "p * page_tokens_ < seq.n_prompt) tree_.drop", STATE),
    M(state + "state_manager.cpp", "if (to.src > 0) pool(g).retain(to.src);", "", STATE),
    M(state + "state_manager.cpp", "if (child.node) tree_.pin(child.node);", "", STATE),
    M(state + "state_manager.cpp", "  for (UnitPool& p : pools_) p.reset();\n", "", STATE + ("test_engine:Faults.*",)),
    M(state + "state_manager.cpp", "const int resume_at = publishes(seq) ? seq.committed / page_tokens_ * page_tokens_ : seq.committed;", "const int resume_at = seq.committed;", STATE),
    M(state + "prefix_tree.cpp", "it->second->parent == parent && ", "", STATE),
    M(state + "prefix_tree.cpp", "order.splice(order.end(), order, node->held[group].place);", "", STATE),
    M(state + "prefix_tree.cpp", "(!spine_[group] || node->n_children == 0)", "true", STATE),
    M(state + "prefix_tree.cpp", "node->n_children == 0 && node->n_pins == 0 &&", "node->n_children == 0 &&", STATE),
    M(state + "swap.cpp", "if (seq.table[g].src > 0) host[g].src = move(seq.table[g].src);", "", STATE),
    M(state + "swap.cpp", "    release_host(from, g);\n", "", STATE),
    M(state + "swap.cpp", "  seq.committed = committed;\n", "", STATE),
    M(state + "pool.h", "n_idle_ -= idle(unit);\n    refs_[unit]++;", "refs_[unit]++;", STATE),
    M(state + "pool.h", "refs_[unit] == 0 ? length + 1 : 0", "refs_[unit] == 0 ? length + 1 : length", STATE),
    M(state + "memory_plan.cpp", "return 1 + pages;", "return pages;", STATE),
    M(state + "memory_plan.cpp", "low + (high - low + 1) / 2;", "low + (high - low) / 2;", STATE),
    M(state + "memory_plan.cpp", "limits.bytes / 4 / layout.bytes_per_sequence()", "limits.bytes / 2 / layout.bytes_per_sequence()", STATE),
    # ---- text: tokens from text and back
    M(text + "bpe.cpp", "cost != other.cost ? cost > other.cost : left > other.left;", "cost != other.cost ? cost > other.cost : left < other.left;", TEXT),
    M(text + "bpe.cpp", "pairs[i].cost < pairs[best].cost)", "pairs[i].cost <= pairs[best].cost)", TEXT),
    M(text + "bpe.cpp", "if (best > 0) refresh(best - 1);", "", TEXT),
    M(text + "bpe.cpp", "if (left.length + right.length != pair.length) continue;", "", TEXT),
    M(text + "bpe.cpp", "if (right.next >= 0) symbols[right.next].prev = pair.left;", "", TEXT),
    M(text + "bpe.cpp", "    offer(left.prev);\n", "", TEXT),
    M(text + "bpe.cpp", "data_.fuse_unknown && ", "", TEXT),
    M(text + "bpe.cpp", "if (fresh) known->second = {begin, ids.size()};", "if (fresh) known->second = {begin, begin + 1};", TEXT),
    M(text + "added_tokens.cpp", "if (token.lstrip && done < begin) begin -=", "if (token.rstrip && done < begin) begin -=", TEXT),
    M(text + "added_tokens.cpp", "if (token.special && !parse_special) continue;", "", TEXT),
    M(text + "added_tokens.cpp", "begin = std::max(begin, done);", "", TEXT),
    M(text + "detokenizer.cpp", "first_(!continues)", "first_(true)", TEXT),
    M(text + "detokenizer.cpp", "strip_left_(continues ? 0 : ", "strip_left_(!continues ? 0 : ", TEXT),
    M(text + "detokenizer.cpp", "  first_ = false;\n", "", TEXT),
    M(text + "detokenizer.cpp", "      --strip_left_;\n", "", TEXT),
    M(text + "detokenizer.cpp", "pending_.erase(0, pending_.size() - tail);", "pending_.clear();", TEXT),
    # ---- io: files that strangers wrote
    M(io + "gguf.cpp", "n <= (bytes_.size() - at_) / least", "n <= bytes_.size()", IO),
    M(io + "gguf.cpp", "check(n <= bytes_.size() - at_,", "check(n <= bytes_.size(),", IO),
    M(io + "gguf.cpp", "depth < kMaxArrayDepth", "depth <= kMaxArrayDepth", IO),
    M(io + "gguf.cpp", "(in.position() + alignment - 1) / alignment * alignment", "in.position()", IO),
    M(io + "gguf.cpp", "info.offset % alignment == 0", "info.offset % alignment != 1", IO),
    M(io + "gguf.cpp", "&& bytes <= size - data - info.offset;", "&& bytes <= size - data;", IO),
    M(io + "gguf.cpp", "std::reverse(t.shape.begin(), t.shape.end());", "", IO),
    M(io + "gguf.cpp", "version == 2 || version == 3", "version >= 2", IO),
    M(io + "safetensors.cpp", "length <= bytes.size() - 8,", "length <= bytes.size(),", IO),
    M(io + "safetensors.cpp", "offsets.size() == 2 && offsets[0] <= offsets[1]", "offsets.size() == 2", IO),
    M(io + "safetensors.cpp", "bytes == size_t(e.end - e.begin)", "bytes <= size_t(e.end - e.begin)", IO),
    M(io + "safetensors.cpp", "check(e.begin == at,", "check(e.begin >= at,", IO),
    M(io + "safetensors.cpp", "size_t(at) == data.size()", "size_t(at) <= data.size()", IO),
    M(io + "safetensors.cpp", "size_t(e.end) <= data.size()", "size_t(e.begin) <= data.size()", IO),
    M(io + "checkpoint.cpp", "inside = inside && part != \"..\";", "inside = inside && part != \".\";", IO),
    M(io + "checkpoint.cpp", "check(held.contains(name),", "check(held.contains(name) || true,", IO),
    M(io + "checkpoint.cpp", "check(part == 0,", "check(part <= 1,", IO),
    # ---- serve: what a request says and an answer is
    M(serve + "tool_calls.cpp", "if (!last && open_tag.starts_with(text)) return false;", "", SERVE),
    M(serve + "tool_calls.cpp", "close == npos ? held_.size() : close + close_tag.size()", "close == npos ? held_.size() : close", SERVE),
    M(serve + "tool_calls.cpp", "if (std::ranges::find(names_, call.name) == names_.end()) return {};", "", SERVE),
    M(serve + "tool_calls.cpp", "any_calls_ = after_call_ = true;", "any_calls_ = true;", SERVE),
    M(serve + "tool_calls.cpp", "const size_t from = after_call_ ? begin : 0;", "const size_t from = begin;", SERVE),
    M(serve + "answer.cpp", "prompt * asked_.n + event.choice", "prompt + event.choice", SERVE),
    M(serve + "metrics.cpp", "std::ranges::lower_bound(bounds_, x)", "std::ranges::upper_bound(bounds_, x)", SERVE),
    M(serve + "metrics.cpp", "n += counts_.back();", "", SERVE),
    M(serve + "openai.cpp", "if (sampling.logprobs && !asked.logprobs)", "if (sampling.logprobs && asked.logprobs)", SERVE),
    M(serve + "openai.cpp", "std::max<int64_t>(0, f.integer(\"top_k\", 0, -1, most))", "f.integer(\"top_k\", 0, -1, most)", SERVE),
    M(serve + "openai.cpp", "float(f.number(\"presence_penalty\", 0, -2, 2))", "float(f.number(\"frequency_penalty\", 0, -2, 2))", SERVE),
    M(serve + "openai.cpp", "asked.request.score_prompt = asked.echo && asked.logprobs;", "asked.request.score_prompt = asked.echo;", SERVE),
    # ---- rope: frequencies and angles
    M("src/model/rope.cpp", "low = std::max(low, 0.0), high", "high", ROPE),
    M("src/model/rope.cpp", "high = std::min(high, double(r.dim - 1));", "high = high + 0;", ROPE),
    M("src/model/rope.cpp", "if (low == high) high += 0.001;", "", ROPE),
    M("src/model/rope.cpp", "low = std::floor(low), high = std::ceil(high);", "low = std::ceil(low), high = std::ceil(high);", ROPE),
    M("src/model/rope.cpp", "if (wavelength < high) continue;", "if (wavelength < low) continue;", ROPE),
    M("src/model/rope.cpp", "f = (1 - smooth) * f / r.factor + smooth * f;", "f = smooth * f / r.factor + (1 - smooth) * f;", ROPE),
    M("src/model/rope.cpp", "r.mscale && r.mscale_all_dim ?", "r.mscale ?", ROPE),
    M("src/model/rope.cpp", "float(2 * i) / float(r.dim)", "float(i) / float(r.dim)", ROPE),
    M("src/model/rope.cpp", "i < size_t(r.pairs) ? t.inv_freq[i] / r.factor : 0", "i <= size_t(r.pairs) ? t.inv_freq[i] / r.factor : 0", ROPE),
    M("src/model/rope.cpp", "std::sqrt(1 + std::log(r.factor) / std::log(float(r.original)))", "std::sqrt(std::log(r.factor) / std::log(float(r.original)))", ROPE),
    M("src/backend/angles.cpp", "rope.dim / (rope.dim - 2.0)", "rope.dim / (rope.dim - 1.0)", ("test_engine:All/Logits.*/llama_rope*", "test_backend:Ops.*")),
    M("src/backend/angles.cpp", "Length::longrope && length > rope.original", "Length::longrope && length >= rope.original", ("test_engine:All/Logits.*/llama_rope*", "test_backend:Ops.*")),
    # ---- the CPU: sampling, experts, attention, recurrences, products
    M("src/backend/sample.cpp", "kept[n].weight >= row.min_p", "kept[n].weight > row.min_p", SAMPLE),
    M("src/backend/sample.cpp", "-std::log(double(row.min_p)) : kInf", "-std::log(double(row.min_p)) / 2 : kInf", SAMPLE),
    M("src/backend/sample.cpp", "x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty", "x / row.repetition_penalty", SAMPLE + DECODE),
    M("src/backend/sample.cpp", "if (e.n_generated > 0) x -= row.presence_penalty;", "if (e.seen) x -= row.presence_penalty;", SAMPLE + DECODE),
    M("src/backend/sample.cpp", "a.logit != b.logit ? a.logit > b.logit : a.token < b.token", "a.logit >= b.logit", SAMPLE),
    M("src/backend/sample.cpp", "mass < row.top_p * total", "mass <= row.top_p * total", SAMPLE,
      survives="they differ where a sum of exponentials equals a share of another to the last bit; no definition says which is meant"),
    M("src/backend/sample.cpp", "if (edited != scratch.edited.end()) logit = edited->logprob;", "", SAMPLE),
    M("src/backend/sample.cpp", "if (!(mask[word] >> (i % 32) & 1))", "if (mask[word] >> (i % 32) & 1)", SAMPLE),
    M(cpu + "experts.cpp", "if (logits[e] > logits[best]) best = e;", "if (logits[e] >= logits[best]) best = e;", EXPERTS),
    M(cpu + "experts.cpp", "s.order[size_t(i)] / share", "s.order[size_t(i)]", EXPERTS),
    M(cpu + "experts.cpp", "for (int64_t j = 0; j < k; j++) total += weight[j];", "total = weight[0];", EXPERTS),
    M(cpu + "attend.cpp", "std::max(0, position - window + 1)", "std::max(0, position - window)", ATTEND),
    M(cpu + "attend.cpp", "s.hi = context + row - begin + 1;", "s.hi = context + row - begin + 2;", ATTEND),
    M(cpu + "attend.cpp", "kernels.store(pages.v_row(seq, head, place), v, pages.kv->v_dim, 1, type);", "kernels.store(pages.v_row(seq, head, place), k, pages.kv->v_dim, 1, type);", ATTEND),
    M(cpu + "attend.cpp", "q[d] * c.args.scale", "q[d]", ATTEND),
    M(cpu + "attend.cpp", "if (position - batch.position[begin + i] >= window)", "if (position - batch.position[begin + i] > window)", ATTEND),
    M(cpu + "attention.inl", "const Vec c0 = exp_of(*max - top), c1", "const Vec c0 = set1(1), c1", ATTEND),
    M(cpu + "attention.inl", "s = select_lt(index, set1(float(sight.lo)), never, s);", "", ATTEND),
    M(cpu + "attention.inl", "total = fma(total, scale, exp_of(sink - top));", "total = mul(total, scale);", ATTEND),
    M(cpu + "ops.inl", "if (a.bias) v = add(v, load_some(a.bias + i, m));", "", OPS),
    M(cpu + "ops.inl", "square / float(n) + a.eps", "square / float(n)", OPS),
    M(cpu + "ops.inl", "x[2 * i + 1] = __builtin_fmaf(b, cosine[i], a * sine[i]);", "x[2 * i + 1] = __builtin_fmaf(b, cosine[i], -a * sine[i]);", OPS),
    M(cpu + "ops.inl", "if (j) store(after + (j - 1) * kLanes, v);", "if (j) store(after + j * kLanes, v);", OPS),
    M(cpu + "ops.inl", "dt = dt < a.dt_min ? a.dt_min : dt > a.dt_max ? a.dt_max : dt;", "dt = dt < a.dt_min ? a.dt_min : dt;", OPS),
    M(cpu + "ops.inl", "(u + 0x7fff + ((u >> 16) & 1)) >> 16", "(u + 0x8000) >> 16", ATTEND + OPS),
    M(cpu + "linear.inl", "if (c.scale != 1) sum = mul(set1(c.scale), sum);", "", LINEAR),
    M(cpu + "linear.inl", "out->start = -W::kOffset * sum;", "out->start = 0;", LINEAR),
    M(cpu + "linear.inl", "if (k < end) input(k, 0);", "", LINEAR),
    M(cpu + "linear.inl", "32639.0f / largest, out->q", "16319.0f / largest, out->q", LINEAR),
    M(cpu + "linear.cpp", "c.residual_stride = e.residual.stride[0];", "c.residual_stride = out.stride[0];", LINEAR),
    M(cpu + "linear.cpp", "c.bias = e.bias.as<float>();", "", LINEAR),
]
