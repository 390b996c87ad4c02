// A running answer, and the request it belongs to. The scheduler moves its state forward; the answer itself knows when it is
// over (a stop token, a stop string, its length) and what its reader has not yet seen.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "decode/decoding.h"
#include "decode/stop.h"
#include "engine/request.h"
#include "state/sequence_state.h"
#include "text/detokenizer.h"

namespace mr {

using Clock = std::chrono::steady_clock;

struct Answering;

struct Sequence {
  Sequence(Answering&, int choice, const Tokenizer*);

  // What every answer of the engine is ordered by: arrival, where a level of priority is worth `overtakes` arrivals, then
  // choice. The scheduler serves the first and preempts the last.
  static constexpr int64_t overtakes = 1024;
  bool before(const Sequence&) const;

  bool scoring() const;  // some of the prompt's logits are still to be handed out

  bool needs_results() const;  // the host must know its tokens before it can say what is computed next

  // The next token. Sets `finish` when it ends the answer; nothing may follow then.
  void append(const Sampled&, std::span<const int32_t> stop_tokens);
  void end(Finish, std::string error = {});

  Answering& request;
  int choice;
  int64_t order;  // of the request's arrival
  int max_tokens;
  SequenceState state;
  std::unique_ptr<Decoding> decoding;
  SamplingState sampling;
  StopMatcher stop;
  std::optional<Detokenizer> detokenizer;  // none: the model has no tokenizer, answers have no text
  std::vector<Sequence*> followers;        // answers that begin where this one's prompt ends; empty once they have begun
  int n_scored = 0;                        // prompt positions whose logits were seen or are being computed
  bool planned = false;                    // has rows in the next step
  int in_flight = 0;                       // tokens that are being computed; in state.tokens each is -1 - its output row
  int prefill_end = 0;                     // tokens it had when it last began
  int n_padded = 0;                        // rows computed for nothing behind them
  Finish finish = Finish::none;
  TokenEvent news;  // since the last delivery
};

// A request while it is answered.
struct Answering {
  // shared: all answers go on from the prompt's state, which is computed once.
  Answering(int64_t id, Request, Sink, const Tokenizer*, uint64_t seed, std::string salt, bool shared);

  int64_t id;
  Request request;
  Sink sink;
  uint64_t seed;
  std::string salt;  // of its state: the request's, and whatever else prefixes may not be shared across
  Clock::time_point submitted;
  std::optional<Clock::time_point> started;
  int n_cached = 0;
  std::vector<std::unique_ptr<Sequence>> answers;  // [n]
};

}  // namespace mr
