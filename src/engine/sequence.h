// A running answer, and the request it belongs to. A waiting request is only its prompt and parameters; its answers are created when
// they are about to run. The scheduler advances their state; an answer knows when it ends (a stop token, a stop string, its
// length) and which output is not yet delivered.
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

// The order of all answers: by arrival, where a level of priority counts as `overtakes` arrivals, then by choice. The
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

  bool scoring() const;  // some prompt tokens are still to be scored

  bool needs_results() const;  // the host must know its tokens before its next rows can be planned or sampled

  // Appends the next token. Sets `finish` if it ends the answer; none may follow then.
  void append(const Sampled&, std::span<const int32_t> stop_tokens);
  void end(Finish, const char* error = "") noexcept;
  void tell(const Sink&);  // delivers what is new

  Answering& request;
  int choice;
  int max_tokens;
  SequenceState state;
  std::unique_ptr<Decoding> decoding;
  SamplingState sampling;
  StopMatcher stop;
  std::optional<Detokenizer> detokenizer;  // none: the model has no tokenizer, answers have no text
  std::vector<Sequence*> followers;        // answers that fork from this one after the prompt; empty once they have
  int n_scored = 0;                        // prompt positions scored or in flight
  bool planned = false;                    // has rows in the next step
  int in_flight = 0;                       // tokens being computed; in state.tokens each is -1 - its output row
  int prefill_end = 0;                     // tokens it had when it last started
  int n_padded = 0;                        // padding rows computed after them
  Finish finish = Finish::none;
  TokenEvent news;  // since the last delivery
};

const char* reason_of(const std::exception&);  // message for the user; valid as long as the exception

// A request being answered.
struct Answering {
  Answering(Request, Sink, const Tokenizer*, std::string salt);

  Turn turn() const;  // of the next answer to create
  int n_made() const { return int(answers.size()); }
  int unmade() const { return request.n - n_made(); }
  Sequence& make_answer();                       // the next one; its state has no tokens yet
  void end(Finish, const char* error) noexcept;  // every answer, including those never created
  bool ended() const;

  int64_t id = 0;
  Request request;
  Sink sink;
  const Tokenizer* tokenizer;  // may be null
  uint64_t seed = 0;
  std::string salt;  // of its state: the request's, and all else that prevents sharing a prefix
  Clock::time_point submitted;
  std::optional<Clock::time_point> started;
  int n_cached = 0;
  std::vector<std::unique_ptr<Sequence>> answers;  // created so far, from first_choice on
  std::shared_ptr<const LogitEdits> edits;         // initial edits of all answers; created with the first
  TokenEvent last_word;                            // final event of answers never created
  bool has_news = false, over = false;             // it is in the engine's list news_ or ended_
};

}  // namespace mr
