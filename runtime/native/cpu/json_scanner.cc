#include "json_scanner.h"

#include <cstring>

namespace heterocc::cpu {

namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsHex(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

char JsonScanner::Peek() {
  while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  return at_ < end_ ? *at_ : '\0';
}

bool JsonScanner::Expect(char character) {
  if (Peek() != character || at_ == end_) return Fail(Problem::kMalformed);
  ++at_;
  return true;
}

bool JsonScanner::AtEnd() {
  Peek();
  return at_ == end_ || Fail(Problem::kMalformed);
}

bool JsonScanner::String(std::string_view* content) {
  if (!Expect('"')) return false;
  const char* first = at_;
  while (at_ < end_ && *at_ != '"') {
    if (static_cast<unsigned char>(*at_) < 0x20) return Fail(Problem::kMalformed);
    if (*at_++ != '\\') continue;
    if (at_ == end_) return Fail(Problem::kMalformed);
    const char escaped = *at_;
    if (escaped == 'u') {
      if (end_ - at_ < 5) return Fail(Problem::kMalformed);
      for (int digit = 1; digit <= 4; ++digit) {
        if (!IsHex(at_[digit])) return Fail(Problem::kMalformed);
      }
      at_ += 5;
    } else if (escaped != '\0' && std::strchr("\"\\/bfnrt", escaped) != nullptr) {
      ++at_;
    } else {
      return Fail(Problem::kMalformed);
    }
  }
  if (at_ == end_) return Fail(Problem::kMalformed);
  *content = std::string_view(first, static_cast<size_t>(at_ - first));
  ++at_;
  return true;
}

bool JsonScanner::Digits() {
  const char* first = at_;
  while (at_ < end_ && IsDigit(*at_)) ++at_;
  return at_ > first || Fail(Problem::kMalformed);
}

bool JsonScanner::Number(std::string_view* number) {
  const char* first = at_;
  if (at_ < end_ && *at_ == '-') ++at_;
  const bool zero = at_ < end_ && *at_ == '0';
  const char* leading = at_;
  if (!Digits()) return false;
  if (zero && at_ - leading > 1) return Fail(Problem::kMalformed);
  if (at_ < end_ && *at_ == '.') {
    ++at_;
    if (!Digits()) return false;
  }
  if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
    ++at_;
    if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
    if (!Digits()) return false;
  }
  if (at_ - first > kLongestNumber) return Fail(Problem::kTooLong);
  *number = std::string_view(first, static_cast<size_t>(at_ - first));
  return true;
}

bool JsonScanner::Literal(std::string_view word) {
  if (static_cast<size_t>(end_ - at_) < word.size() || std::memcmp(at_, word.data(), word.size()) != 0) {
    return Fail(Problem::kMalformed);
  }
  at_ += word.size();
  return true;
}

bool JsonScanner::Value(int depth) {
  std::string_view text;
  switch (Peek()) {
    case '{':
      if (depth >= kDeepest) return Fail(Problem::kTooDeep);
      return Object([&](std::string_view) { return Value(depth + 1); });
    case '[':
      if (depth >= kDeepest) return Fail(Problem::kTooDeep);
      return Array([&] { return Value(depth + 1); });
    case '"':
      return String(&text);
    case 't':
      return Literal("true");
    case 'f':
      return Literal("false");
    case 'n':
      return Literal("null");
    default:
      return Number(&text);
  }
}

}  // namespace heterocc::cpu
