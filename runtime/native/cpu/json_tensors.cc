#include <locale.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <string_view>

#include "element_writer.h"
#include "json_scanner.h"
#include "request_data.h"

namespace heterocc::cpu {

namespace {

// The longest text of a key in which escapes are resolved.
constexpr int64_t kLongestKey = 64;

// The largest integer up to which float64 has all, and the largest power of ten that it has.
constexpr uint64_t kExactInteger = uint64_t{1} << 53;
constexpr int kExactPower = 22;
constexpr double kPowers[kExactPower + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                             1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

bool IsInteger(std::string_view number) {
  return number.find_first_of(".eE") == std::string_view::npos;
}

// The magnitude of an integer's digits; false if 64 bits lack it.
bool Magnitude(std::string_view digits, uint64_t* value) {
  *value = 0;
  for (char c : digits) {
    if (__builtin_mul_overflow(*value, uint64_t{10}, value) ||
        __builtin_add_overflow(*value, static_cast<uint64_t>(c - '0'), value)) {
      return false;
    }
  }
  return true;
}

// The float64 nearest to a number. Few digits and a small exponent need one operation, which is exact (W. Clinger, How
// to read floating point numbers accurately, 1990); the C library does the others.
double Nearest(std::string_view number) {
  const bool negative = number[0] == '-';
  uint64_t digits = 0;
  int64_t exponent = 0;
  size_t at = negative ? 1 : 0;
  bool fraction = false;
  bool exact = true;
  for (; at < number.size() && number[at] != 'e' && number[at] != 'E'; ++at) {
    if (number[at] == '.') {
      fraction = true;
      continue;
    }
    exact = exact && digits < kExactInteger / 10;
    if (exact) digits = digits * 10 + static_cast<uint64_t>(number[at] - '0');
    exponent -= fraction;
  }
  if (at < number.size() && exact) {
    const bool minus = number[++at] == '-';
    if (number[at] == '-' || number[at] == '+') ++at;
    int64_t given = 0;
    for (; at < number.size() && given < 10000; ++at) given = given * 10 + (number[at] - '0');
    exponent += minus ? -given : given;
  }
  if (exact && exponent >= -kExactPower && exponent <= kExactPower) {
    const auto value = static_cast<double>(digits);
    const double found = exponent < 0 ? value / kPowers[-exponent] : value * kPowers[exponent];
    return negative ? -found : found;
  }
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  char text[kLongestNumber + 1];
  std::memcpy(text, number.data(), number.size());
  text[number.size()] = '\0';
  return strtod_l(text, nullptr, plain);
}

Problem WriteNumber(std::string_view number, ElementWriter* writer) {
  if (writer->takes_integers()) {
    const bool negative = number[0] == '-';
    uint64_t magnitude;
    if (!IsInteger(number)) return Problem::kWrongType;
    if (!Magnitude(number.substr(negative ? 1 : 0), &magnitude)) return Problem::kOutOfRange;
    return writer->Integer(magnitude, negative);
  }
  if (!writer->takes_floats()) return Problem::kWrongType;
  const double value = Nearest(number);
  return std::isinf(value) ? Problem::kOutOfRange : writer->Float(value);
}

// The number of four hexadecimal digits.
uint32_t Hex(const char* digits) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = digits[i];
    value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return value;
}

int Utf8(uint32_t code, char* to) {
  if (code < 0x80) {
    to[0] = static_cast<char>(code);
    return 1;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr uint32_t kMarks[] = {0, 0xC0, 0xE0, 0xF0};
  to[0] = static_cast<char>(kMarks[more] | (code >> (6 * more)));
  for (int i = 1; i <= more; ++i) to[i] = static_cast<char>(0x80 | ((code >> (6 * (more - i))) & 0x3F));
  return more + 1;
}

// Passes on a string's content in parts, with its escapes resolved: `add(data, size)` returns a problem.
template <typename Add>
Problem Resolve(std::string_view content, Add add) {
  size_t at = 0;
  while (at < content.size()) {
    const size_t escape = std::min(content.find('\\', at), content.size());
    Problem problem = escape == at ? Problem::kNone : add(content.data() + at, static_cast<int64_t>(escape - at));
    if (problem != Problem::kNone) return problem;
    if (escape == content.size()) break;
    char character[4] = {content[escape + 1]};
    int size = 1;
    at = escape + 2;
    if (character[0] == 'u') {
      uint32_t code = Hex(content.data() + at);
      at += 4;
      if (code >= 0xD800 && code < 0xE000) {
        const bool follows = content.size() - at >= 6 && content[at] == '\\' && content[at + 1] == 'u';
        const uint32_t low = follows ? Hex(content.data() + at + 2) : 0;
        if (code >= 0xDC00 || low < 0xDC00 || low >= 0xE000) return Problem::kSurrogate;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
      }
      size = Utf8(code, character);
    } else if (const char* found = std::strchr("b\bf\fn\nr\rt\t", character[0])) {
      character[0] = found[1];
    }
    problem = add(character, size);
    if (problem != Problem::kNone) return problem;
  }
  return Problem::kNone;
}

// Whether a key as it is written means `name`.
bool IsKey(std::string_view written, std::string_view name) {
  if (written.find('\\') == std::string_view::npos) return written == name;
  char text[kLongestKey];
  int64_t size = 0;
  const Problem problem = Resolve(written, [&](const char* data, int64_t more) {
    if (kLongestKey - size < more) return Problem::kTooMany;
    std::memcpy(text + size, data, static_cast<size_t>(more));
    size += more;
    return Problem::kNone;
  });
  return problem == Problem::kNone && std::string_view(text, static_cast<size_t>(size)) == name;
}

// Lists of elements. Lists beside each other must have the same length, and elements the same depth.
class ListReader {
 public:
  ListReader(JsonScanner* scanner, ElementWriter* writer) : scanner_(scanner), writer_(writer) {
    for (int64_t& extent : extents_) extent = -1;
  }

  bool Read(int depth) {
    const char next = scanner_->Peek();
    if (next == '[') return List(depth);
    if (next == '{' || next == 'n') return scanner_->Fail(Problem::kWrongType);
    if (depth != lists_ || (elements_ >= 0 && elements_ != depth)) return scanner_->Fail(Problem::kRagged);
    elements_ = depth;
    const Problem problem = Element(next);
    return problem == Problem::kNone || scanner_->Fail(problem);
  }

 private:
  bool List(int depth) {
    if (depth >= kDeepest) return scanner_->Fail(Problem::kTooDeep);
    if (elements_ >= 0 && depth >= elements_) return scanner_->Fail(Problem::kRagged);
    if (lists_ < depth + 1) lists_ = depth + 1;
    int64_t length = 0;
    if (!scanner_->Array([&] {
          ++length;
          return Read(depth + 1);
        })) {
      return false;
    }
    if (extents_[depth] >= 0 && extents_[depth] != length) return scanner_->Fail(Problem::kRagged);
    extents_[depth] = length;
    return true;
  }

  Problem Element(char next) {
    std::string_view text;
    bool read = true;
    Problem problem = Problem::kNone;
    if (next == 't' || next == 'f') {
      read = scanner_->Literal(next == 't' ? "true" : "false");
      if (read) problem = writer_->Bool(next == 't');
    } else if (next == '"') {
      read = scanner_->String(&text);
      if (read) problem = Text(text);
    } else {
      read = scanner_->Number(&text);
      if (read) problem = WriteNumber(text, writer_);
    }
    return read ? problem : scanner_->problem();
  }

  Problem Text(std::string_view content) {
    Problem problem = writer_->BeginText();
    if (problem != Problem::kNone) return problem;
    problem = Resolve(content, [&](const char* data, int64_t size) { return writer_->AddText(data, size); });
    if (problem == Problem::kNone) writer_->EndText();
    return problem;
  }

  JsonScanner* scanner_;
  ElementWriter* writer_;
  int64_t extents_[kDeepest];
  int lists_ = 0;      // the depth of the innermost list so far
  int elements_ = -1;  // the depth of elements, -1 before the first one
};

}  // namespace

Outcome CutJson(const char* text, int64_t size, Span* spans, int64_t room) {
  JsonScanner scanner(text, size);
  int64_t count = 0;
  const auto input = [&](std::string_view key) {
    if (!IsKey(key, "data")) return scanner.Value(3);
    scanner.Peek();
    const int64_t begin = scanner.position();
    if (!scanner.Value(3)) return false;
    if (count == room) return scanner.Fail(Problem::kTooMany);
    spans[count++] = {begin, scanner.position()};
    return true;
  };
  const auto root = [&](std::string_view key) {
    if (!IsKey(key, "inputs") || scanner.Peek() != '[') return scanner.Value(1);
    return scanner.Array([&] { return scanner.Peek() == '{' ? scanner.Object(input) : scanner.Value(2); });
  };
  if (scanner.Peek() == '{' ? scanner.Object(root) : scanner.Value(0)) scanner.AtEnd();
  return {scanner.problem(), scanner.position(), count};
}

Outcome ReadJson(const char* text, int64_t size, const Target& target) {
  JsonScanner scanner(text, size);
  ElementWriter writer(target);
  ListReader reader(&scanner, &writer);
  if (reader.Read(0)) scanner.AtEnd();
  const bool done = scanner.problem() == Problem::kNone;
  return {scanner.problem(), done ? writer.used() : scanner.position(), writer.count()};
}

}  // namespace heterocc::cpu
