// The grammar of JSON (RFC 8259), without recursion beyond kDeepest and without memory of its own. See request_data.h.
#ifndef HETEROCC_CPU_JSON_SCANNER_H_
#define HETEROCC_CPU_JSON_SCANNER_H_

#include <cstdint>
#include <string_view>

#include "request_data.h"

namespace heterocc::cpu {

// Reads a text from its beginning to its end. Each function that reads returns false once something was refused;
// `problem` and `position` then say what and where.
class JsonScanner {
 public:
  JsonScanner(const char* text, int64_t size) : begin_(text), at_(text), end_(text + size) {}

  // The next character that is not white space, or 0 at the end; nothing is consumed but the space.
  char Peek();

  // Reads an object; `member(key)` reads each value, and gets the key as it is written, without quotes.
  template <typename Member>
  bool Object(Member member) {
    if (!Expect('{')) return false;
    if (Peek() == '}') return Expect('}');
    for (;;) {
      std::string_view key;
      if (Peek() != '"') return Fail(Problem::kMalformed);
      if (!String(&key) || !Expect(':') || !member(key)) return false;
      if (Peek() != ',') return Expect('}');
      ++at_;
    }
  }

  // Reads a list; `element()` reads each of its values.
  template <typename Item>
  bool Array(Item item) {
    if (!Expect('[')) return false;
    if (Peek() == ']') return Expect(']');
    for (;;) {
      if (!item()) return false;
      if (Peek() != ',') return Expect(']');
      ++at_;
    }
  }

  // Reads a string; `content` is what is between the quotes, in which escapes are well-formed.
  bool String(std::string_view* content);

  // Reads a number; `number` is its text.
  bool Number(std::string_view* number);

  // Reads `true`, `false` or `null`.
  bool Literal(std::string_view word);

  // Reads any value that is inside `depth` others.
  bool Value(int depth);

  // Whether only white space is left; it is refused otherwise.
  bool AtEnd();

  bool Fail(Problem problem) {
    if (problem_ == Problem::kNone) problem_ = problem;
    return false;
  }

  Problem problem() const { return problem_; }
  int64_t position() const { return at_ - begin_; }

 private:
  bool Expect(char character);
  bool Digits();

  const char* begin_;
  const char* at_;
  const char* end_;
  Problem problem_ = Problem::kNone;
};

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_JSON_SCANNER_H_
