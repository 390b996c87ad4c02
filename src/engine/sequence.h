// A running answer, and the request it belongs to. A request that waits is its prompt and its wishes alone; its answers are made when
// they are about to run. The scheduler moves their state forward; an answer itself knows when it is over (a stop token, a stop string,
// its length) and what its reader has not yet seen.
#pragma once

#include <chrono>
#include <exception>
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

// What every answer of the engine is ordered by: arrival, where a level of priority is worth so many arrivals, then choice. The
// scheduler serves the first and preempts the last.
struct Turn {
  int64_t late, arrival;
  int choice;
  auto operator<=>(const Turn&) const = default;
};

struct Sequence {
  static constexpr int64_t overtakes = 1024;

  Sequence(Answering&, int choice);

  Turn turn() const;

  bool scoring() const;  // some of the prompt's logits are still to be handed out

  bool needs_results() const;  // the host must know its tokens before it can say what is computed next

  // The next token. Sets `finish` when it ends the answer; nothing may follow then.
  void append(const Sampled&, std::span<const int32_t> stop_tokens);
  void end(Finish, const char* error = "") noexcept;
  void tell(const Sink&);  // what is new

  Answering& request;
  int choice;
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

const char* reason_of(const std::exception&);  // for a reader, as long as the exception lives

// A request while it is answered.
struct Answering {
  Answering(Request, Sink, const Tokenizer*, std::string salt);

  Turn turn() const;  // of the answer that is made next
  int n_made() const { return int(answers.size()); }
  int unmade() const { return request.n - n_made(); }
  Sequence& make_answer();                       // the next one; its state has no tokens yet
  void end(Finish, const char* error) noexcept;  // every answer, those too that were never made
  bool ended() const;

  int64_t id = 0;
  Request request;
  Sink sink;
  const Tokenizer* tokenizer;  // may be null
  uint64_t seed = 0;
  std::string salt;  // of its state: the request's, and whatever else prefixes may not be shared across
  Clock::time_point submitted;
  std::optional<Clock::time_point> started;
  int n_cached = 0;
  std::vector<std::unique_ptr<Sequence>> answers;  // those that were made, from first_choice on
  std::shared_ptr<const LogitEdits> edits;         // that all answers begin with; made with the first of them
  TokenEvent last_word;                            // for those that were never made
  bool has_news = false, over = false;             // it stands in the engine's list of these
};

}  // namespace mr
