// The steps follow the `tokenizers` library: each splits every piece that the one before it produced.
#include "text/pretokenize.h"

#include <algorithm>

#include "core/error.h"
#include "text/unicode.h"

namespace mr {

namespace {

using Behavior = PreTokenizerStep::Behavior;

// Normalizing may make a text longer: a space becomes three bytes, one Arabic ligature thirty-three. The rules of a hostile file
// could fill the memory.
constexpr size_t max_growth = 16;
constexpr size_t max_rules = 256;

size_t growth_limit(size_t bytes) { return std::min<size_t>(max_growth * bytes + 65536, INT32_MAX); }

void check_growth(size_t bytes, size_t limit) {
  check(bytes <= limit, "the tokenizer's rules make {} bytes of a text: at most {} are allowed", bytes, limit);
}

// Checks that the text after replacing is within the limit, and holds its bytes.
void check_replacing(std::string_view text, std::string_view from, std::string_view to, size_t limit, const Allowance& allowance) {
  const size_t hits = count_of(text, from, allowance), bytes = text.size() - hits * from.size() + hits * to.size();
  check_growth(bytes, limit);
  if (bytes > text.size()) allowance.hold(2 * (bytes - text.size()));
}

struct Span {
  size_t begin, end;
  bool match;
};

// All of `text` as matches and the gaps between them.
void find_spans(const Regex& regex, std::string_view text, bool invert, MatchBudget& budget, const Allowance& allowance,
                std::vector<Span>& spans) {
  spans.clear();
  size_t pos = 0;
  regex.each_match(text, budget, [&](size_t begin, size_t end) {
    if (spans.size() + 2 > spans.capacity()) allowance.hold((spans.size() + 2) * sizeof(Span));
    if (pos < begin) spans.push_back({pos, begin, invert});
    spans.push_back({begin, end, !invert});
    pos = end;
  });
  if (pos < text.size()) spans.push_back({pos, text.size(), invert});
}

// A match joins its left neighbour unless that is a match too.
void merge_with_previous(std::vector<Span>& spans) {
  size_t kept = 0;
  bool previous = false;
  for (const Span& span : spans) {
    if (span.match && !previous && kept > 0) {
      spans[kept - 1].end = span.end;
    } else {
      spans[kept++] = {span.begin, span.end, false};
    }
    previous = span.match;
  }
  spans.resize(kept);
}

void merge_with_next(std::vector<Span>& spans) {
  std::vector<Span> merged;
  bool previous = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->match && !previous && !merged.empty()) {
      merged.back().begin = span->begin;
    } else {
      merged.push_back({span->begin, span->end, false});
    }
    previous = span->match;
  }
  spans.assign(merged.rbegin(), merged.rend());
}

void merge_equal(std::vector<Span>& spans) {
  size_t kept = 0;
  for (const Span& span : spans) {
    if (kept > 0 && spans[kept - 1].match == span.match) {
      spans[kept - 1].end = span.end;
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
}

void apply_behavior(Behavior behavior, std::vector<Span>& spans) {
  switch (behavior) {
    case Behavior::isolated:
      break;
    case Behavior::removed:
      std::erase_if(spans, [](const Span& s) { return s.match; });
      break;
    case Behavior::merged_with_previous:
      merge_with_previous(spans);
      break;
    case Behavior::merged_with_next:
      merge_with_next(spans);
      break;
    case Behavior::contiguous:
      merge_equal(spans);
      break;
  }
}

void split_pieces(TextPieces& pieces, const Regex& regex, Behavior behavior, bool invert, MatchBudget& budget, const Allowance& allowance) {
  std::vector<TextRange> out;
  out.reserve(pieces.text.size() / 4);
  std::vector<Span> spans;
  for (TextRange range : pieces.ranges) {
    std::string_view piece(pieces.text.data() + range.begin, range.end - range.begin);
    find_spans(regex, piece, invert, budget, allowance, spans);
    apply_behavior(behavior, spans);
    if (out.size() + spans.size() > out.capacity()) allowance.hold((out.size() + spans.size()) * sizeof(TextRange));
    for (const Span& span : spans) out.push_back({range.begin + span.begin, range.begin + span.end});
  }
  pieces.ranges = std::move(out);
}

// Puts `prefix` in front of each piece that lacks it, or of the first piece only.
void prefix_pieces(TextPieces& pieces, std::string_view prefix, bool only_first, size_t limit) {
  check_growth(pieces.text.size() + (only_first ? 1 : pieces.ranges.size()) * prefix.size(), limit);
  TextPieces out;
  bool first = true;
  for (TextRange range : pieces.ranges) {
    std::string_view piece(pieces.text.data() + range.begin, range.end - range.begin);
    size_t begin = out.text.size();
    if (!piece.starts_with(prefix) && (first || !only_first)) out.text += prefix;
    out.text += piece;
    out.ranges.push_back({begin, out.text.size()});
    first = false;
  }
  pieces = std::move(out);
}

void replace_in_pieces(TextPieces& pieces, std::string_view from, std::string_view to, size_t limit, const Allowance& allowance) {
  check_replacing(pieces.text, from, to, limit, allowance);
  TextPieces out;
  for (TextRange range : pieces.ranges) {
    std::string piece = pieces.text.substr(range.begin, range.end - range.begin);
    replace_all(piece, from, to, allowance);
    size_t begin = out.text.size();
    out.text += piece;
    out.ranges.push_back({begin, out.text.size()});
  }
  pieces = std::move(out);
}

}  // namespace

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  check(steps.size() <= max_rules, "the tokenizer has {} normalizers: at most {} are allowed", steps.size(), max_rules);
  for (const NormalizerStep& rule : steps) {
    Step step{rule, {}};
    if (rule.kind == NormalizerStep::Kind::replace_regex) step.regex.emplace(rule.from);
    steps_.push_back(std::move(step));
  }
}

std::string Normalizer::apply(std::string_view input, const Allowance& allowance) const {
  using Kind = NormalizerStep::Kind;
  std::string text(input);
  const size_t limit = growth_limit(input.size());
  MatchBudget budget(input.size(), allowance);
  for (const Step& step : steps_) {
    allowance.check_time("splitting the text");
    switch (step.rule.kind) {
      case Kind::nfc:
        text = normalize(text, NormalForm::nfc, allowance);
        break;
      case Kind::nfd:
        text = normalize(text, NormalForm::nfd, allowance);
        break;
      case Kind::nfkc:
        text = normalize(text, NormalForm::nfkc, allowance);
        break;
      case Kind::nfkd:
        text = normalize(text, NormalForm::nfkd, allowance);
        break;
      case Kind::lowercase:
        text = to_lower(text, allowance);
        break;
      case Kind::strip_accents:
        text = strip_accents(text, allowance);
        break;
      case Kind::strip_left:
        text.erase(0, leading_space(text));
        break;
      case Kind::strip_right:
        text.erase(text.size() - trailing_space(text));
        break;
      case Kind::prepend:
        check_growth(text.size() + step.rule.to.size(), limit);
        if (!text.empty()) text.insert(0, step.rule.to);
        break;
      case Kind::replace:
        check_replacing(text, step.rule.from, step.rule.to, limit, allowance);
        replace_all(text, step.rule.from, step.rule.to, allowance);
        break;
      case Kind::replace_regex: {
        std::string out;
        size_t pos = 0;
        step.regex->each_match(text, budget, [&](size_t begin, size_t end) {
          check_growth(out.size() + begin - pos + step.rule.to.size(), limit);
          out.append(text, pos, begin - pos).append(step.rule.to);
          pos = end;
        });
        text = out.append(text, pos);
        break;
      }
    }
    check_growth(text.size(), limit);
  }
  return text;
}

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  check(steps.size() <= max_rules, "the tokenizer has {} pre-tokenizers: at most {} are allowed", steps.size(), max_rules);
  for (const PreTokenizerStep& rule : steps) {
    Step step{rule, {}};
    if (rule.kind == PreTokenizerStep::Kind::split) step.regex.emplace(rule.pattern);
    if (rule.kind == PreTokenizerStep::Kind::metaspace && rule.behavior == Behavior::merged_with_next) {
      step.regex.emplace(Regex::escape(rule.replacement));
    }
    steps_.push_back(std::move(step));
  }
}

TextPieces PreTokenizer::apply(std::string text, bool first, const Allowance& allowance) const {
  using Kind = PreTokenizerStep::Kind;
  const size_t limit = growth_limit(text.size());
  MatchBudget budget(text.size(), allowance);
  TextPieces pieces{std::move(text), {}};
  if (!pieces.text.empty()) pieces.ranges.push_back({0, pieces.text.size()});
  for (const Step& step : steps_) {
    allowance.check_time("splitting the text");
    switch (step.rule.kind) {
      case Kind::split:
        split_pieces(pieces, *step.regex, step.rule.behavior, step.rule.invert, budget, allowance);
        break;
      case Kind::prefix_space:
        prefix_pieces(pieces, " ", false, limit);
        break;
      case Kind::metaspace:
        replace_in_pieces(pieces, " ", step.rule.replacement, limit, allowance);
        if (step.rule.prefix && (first || !step.rule.only_first)) prefix_pieces(pieces, step.rule.replacement, step.rule.only_first, limit);
        if (step.regex) split_pieces(pieces, *step.regex, step.rule.behavior, false, budget, allowance);
        break;
    }
  }
  return pieces;
}

}  // namespace mr
