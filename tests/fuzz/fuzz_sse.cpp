// A streamed answer, as `bench --url` reads it from anyone's server: HTTP and the events within. Pieces of any size give the same outcome:
// compared for a share of the inputs, since that takes as long again.
#include "bench/streamed_answer.h"
#include "fuzz/input.h"
#include "fuzz/mutate.h"
#include "net/response_reader.h"

using namespace mr;

static Outcome read_events(std::string_view stream, size_t piece, int status) {
  Outcome outcome;
  StreamedAnswer answer(outcome, [] { return 0.0; });
  for (size_t at = 0; at < stream.size(); at += piece) answer.body(status, stream.substr(at, piece));
  answer.end("");
  return outcome;
}

static Outcome read_http(std::string_view stream, size_t piece, bool head_only) {
  Outcome outcome;
  StreamedAnswer answer(outcome, [] { return 0.0; });
  using State = ResponseReader::State;
  int n_heads = 0;
  ResponseReader reader([&](int status, std::string_view bytes) { answer.body(status, bytes); },
                        [&](const ResponseReader::Header& header) {
                          if (++n_heads > 1 || (header.result_int() > 0 && header.result_int() < 200)) std::abort();
                          return header.result_int() != 204;
                        },
                        head_only);
  State state = State::more;
  for (size_t at = 0; state == State::more && at < stream.size(); at += piece) state = reader.feed(stream.substr(at, piece));
  const bool whole = state == State::done || (state == State::more && reader.finish());
  if (state == State::done) (void)reader.keeps_alive();
  if (head_only && outcome.n_tokens > 0) std::abort();
  answer.end(whole && reader.status() == 200 ? "" : "refused");
  return outcome;
}

// The first byte says how the stream is cut, and what it is: an answer with its headers (to a HEAD, too), or the body of one, or of a
// refusal.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view stream = fuzz::as_text(data + 1, size - 1);
  const int kind = data[0] % 8;
  auto read = [&](size_t piece) {
    return kind < 4 ? read_http(stream, piece, kind == 3) : read_events(stream, piece, kind == 7 ? 500 : 200);
  };
  const Outcome cut = read(1 + data[0] / 8), whole = size % 4 == 0 ? read(size) : cut;
  // Of a broken answer the words may differ: the parser may see what is wrong before it passes on what was right.
  const bool same_words = kind < 4 || whole.detail == cut.detail;
  if (whole.error != cut.error || !same_words || whole.n_tokens != cut.n_tokens || whole.prompt_tokens != cut.prompt_tokens) std::abort();
  if (whole.n_tokens < 0 || whole.prompt_tokens < 0 || whole.detail.size() > StreamedAnswer::max_detail) std::abort();
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> words = fuzz::words(
      "HTTP/1.1 200 OK\r\n@HTTP/1.1 100 Continue\r\n\r\n@HTTP/1.0 429 Too Many\r\n@Transfer-Encoding: chunked\r\n@Content-Length: "
      "9\r\n@Connection: "
      "close\r\n@\r\n@\r\n\r\n@\n\n@"
      "data: @data:@data@event: x\n@: ping\n@[DONE]@{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}@{\"choices\":[{\"text\":\"b\"}]}@"
      "{\"usage\":{\"completion_tokens\":3,\"prompt_tokens\":7}}@{\"error\":\"x\"}@5\r\ndata:\r\n@0\r\n\r\n@0\r\nX: "
      "y\r\n\r\n@ffffffffffffffff\r\n@1;x=y\r\n",
      "@");
  fuzz::Random random(seed);
  return fuzz::insert_word(data, size, max_size, words, random);
}
