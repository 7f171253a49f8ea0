// A reader of untrusted bytes of a bundle's code. All numbers are little endian.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
//
// Ownership: a reader borrows the bytes. Threading: not thread-safe.
#ifndef HETEROCC_COMMON_READER_H_
#define HETEROCC_COMMON_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace heterocc::HETEROCC_PLUGIN {

// `Length` is the type of the format's counts and lengths. Every member throws a `module` error if the
// bytes do not have the expected form.
template <typename Length>
class Reader {
 public:
  // `what` names the bytes in errors: "the OpenCL module".
  Reader(const char* what, const char* data, size_t size) : what_(what), at_(data), end_(data + size) {}

  // Throws the error for contradictory bytes.
  [[noreturn]] void Damaged(const std::string& how) const;

  // Reads the name of the format, and its version as u32.
  void Header(const std::string& magic, uint32_t version);

  template <typename T>
  T Number() {
    T value;
    Copy(&value, sizeof value);
    return value;
  }

  // A length and as many bytes.
  std::string Text() {
    const auto size = Number<Length>();
    Need(size);
    std::string text(at_, size);
    at_ += size;
    return text;
  }

  // A count, at most `most`, of items of at least `item` bytes each.
  Length Count(size_t item, Length most = std::numeric_limits<Length>::max()) {
    const auto count = Number<Length>();
    if (count > Left() / item || count > most) Damaged("a count of " + std::to_string(count));
    return count;
  }

  // A count and as many numbers.
  template <typename T>
  std::vector<T> Numbers() {
    std::vector<T> numbers(Count(sizeof(T)));
    if (!numbers.empty()) Copy(numbers.data(), numbers.size() * sizeof(T));
    return numbers;
  }

  // Fills `target`.
  void Copy(void* target, size_t size) {
    Need(size);
    std::memcpy(target, at_, size);
    at_ += size;
  }

  // Requires that all bytes have been read.
  void End() const {
    if (at_ != end_) Damaged("bytes after the end");
  }

 private:
  size_t Left() const { return static_cast<size_t>(end_ - at_); }
  void Need(uint64_t size) const {
    if (Left() < size) CutShort();
  }
  [[noreturn]] void CutShort() const;

  const char* const what_;
  const char* at_;
  const char* const end_;
};

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_READER_H_
