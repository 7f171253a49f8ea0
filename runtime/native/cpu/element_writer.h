// Elements of a request's data, written one after another; see request_data.h. Used by one thread.
#ifndef HETEROCC_CPU_ELEMENT_WRITER_H_
#define HETEROCC_CPU_ELEMENT_WRITER_H_

#include <cstdint>

#include "request_data.h"

namespace heterocc::cpu {

class ElementWriter {
 public:
  explicit ElementWriter(const Target& target) : target_(target) {}

  // Each writes an element, or counts it if there is no room. An integer is its magnitude and its sign.
  Problem Bool(bool value);
  Problem Integer(uint64_t magnitude, bool negative);
  Problem Float(double value);

  // A text is written in parts, between these two.
  Problem BeginText();
  Problem AddText(const char* data, int64_t size);
  void EndText();

  Element element() const { return target_.element; }
  bool takes_integers() const { return target_.element >= Element::kInt8 && target_.element <= Element::kUint64; }
  bool takes_floats() const { return target_.element == Element::kFloat32 || target_.element == Element::kFloat64; }

  // Elements, and what of the room was used, in its unit.
  int64_t count() const { return count_; }
  int64_t used() const { return target_.element == Element::kText ? bytes_ : count_; }

 private:
  template <typename T>
  Problem Put(T value) {
    if (count_ < target_.room) static_cast<T*>(target_.data)[count_] = value;
    ++count_;
    return Problem::kNone;
  }
  template <typename T>
  Problem PutInteger(uint64_t magnitude, bool negative);

  Target target_;
  int64_t count_ = 0;
  int64_t bytes_ = 0;
  int64_t begin_ = 0;  // of the current text
};

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_ELEMENT_WRITER_H_
