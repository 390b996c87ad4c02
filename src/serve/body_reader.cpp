#include "serve/body_reader.h"

namespace mr {

BodyReader::BodyReader(std::optional<uint64_t> length, const Limits& limits, Charge charge_for_body)
    : charge(std::move(charge_for_body)), limits_(limits), chunked_(!length), at_(length ? At::data : At::size) {
  if (!length) return;
  n_left_ = n_total_ = *length;
  if (n_total_ > limits_.body) status_ = Status::too_large;
  if (n_total_ == 0) status_ = Status::done;
}

size_t BodyReader::feed(std::string_view bytes) {
  if (status_ == Status::no_memory) status_ = Status::more;
  size_t n = 0;
  while (n < bytes.size() && status_ == Status::more) {
    if (at_ == At::data)
      n += take_data(bytes.substr(n));
    else
      take(bytes[n++]);
  }
  return n;
}

size_t BodyReader::take_data(std::string_view bytes) {
  const size_t n = size_t(std::min<uint64_t>(bytes.size(), n_left_));
  if (!reserve(body.size() + n)) {
    status_ = Status::no_memory;
    return 0;
  }
  body.append(bytes.substr(0, n));
  n_left_ -= n;
  if (n_left_ > 0) return n;
  if (chunked_)
    at_ = At::data_cr;
  else
    status_ = Status::done;
  return n;
}

// The announced length only caps the reservation: announcing bytes must not allocate them.
bool BodyReader::reserve(size_t n) {
  if (n <= body.capacity() && n <= charge.size()) return true;
  const size_t most = chunked_ ? limits_.body : size_t(n_total_);
  const size_t capacity = std::max(n, std::min(most, std::max<size_t>(2 * body.capacity(), 4096)));
  if (!charge.set(capacity)) return false;
  body.reserve(capacity);
  return true;
}

void BodyReader::take(char c) {
  switch (at_) {
    case At::size:
      return take_size(c);
    case At::size_space:
      return take_after_size(c);
    case At::extension:
      return skip(c, At::extension, At::size_lf);
    case At::size_lf:
      return expect(c, '\n', n_left_ > 0 ? At::data : At::trailer_begin);
    case At::data_cr:
      return expect(c, '\r', At::data_lf);
    case At::data_lf:
      n_digits_ = 0;
      return expect(c, '\n', At::size);
    case At::trailer_begin:
      if (c != '\r') return take_trailer_name(c);
      at_ = At::end_lf;
      return;
    case At::trailer_name:
      return take_trailer_name(c);
    case At::trailer:
      return skip(c, At::trailer, At::trailer_lf);
    case At::trailer_lf:
      return expect(c, '\n', At::trailer_begin);
    case At::end_lf:
      expect(c, '\n', At::end_lf);
      if (status_ == Status::more) status_ = Status::done;
      return;
    case At::data:
      break;
  }
}

void BodyReader::take_size(char c) {
  const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  if (digit >= 0 && n_digits_ < 16) {
    n_digits_++;
    n_left_ = n_left_ * 16 + uint64_t(digit);
    return;
  }
  if (digit >= 0 || n_digits_ == 0) {
    status_ = Status::broken;
    return;
  }
  if (n_left_ > limits_.body - n_total_) {
    status_ = Status::too_large;
    return;
  }
  n_total_ += n_left_;
  take_after_size(c);
}

// Blanks may come before an extension, nothing else.
void BodyReader::take_after_size(char c) {
  if (c != '\r' && c != ';' && c != ' ' && c != '\t') {
    status_ = Status::broken;
    return;
  }
  skip(c, c == ';' ? At::extension : At::size_space, At::size_lf);
}

// A name's characters (RFC 9110, 5.6.2) up to the colon. A line that is folded or has no colon is none.
void BodyReader::take_trailer_name(char c) {
  const bool is_name = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  const bool is_end = c == ':' && at_ == At::trailer_name;
  if (is_name || is_end)
    skip(c, is_end ? At::trailer : At::trailer_name, At::trailer_lf);
  else
    status_ = Status::broken;
}

// One byte of an extension or of a trailer.
void BodyReader::skip(char c, At here, At after_cr) {
  at_ = here;
  const auto byte = (unsigned char)c;
  if (c == '\r')
    at_ = after_cr;
  else if ((byte < 0x20 && c != '\t') || byte == 0x7f)
    status_ = Status::broken;
  else if (++n_framing_ > limits_.framing)
    status_ = Status::too_much_framing;
}

void BodyReader::expect(char c, char wanted, At next) {
  at_ = next;
  if (c != wanted) status_ = Status::broken;
}

}  // namespace mr
