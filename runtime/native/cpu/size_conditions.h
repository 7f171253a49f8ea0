// Conditions of the sizes of inputs, as the bundle's format has them.
//
// Threading: an object is for one thread at a time.
#ifndef HETEROCC_CPU_SIZE_CONDITIONS_H_
#define HETEROCC_CPU_SIZE_CONDITIONS_H_

#include <cstdint>
#include <vector>

namespace heterocc::cpu {

// A step of an expression in postfix notation: a number, the size of a symbol, an operator on the two values before, or
// a relation of these, which ends a condition. runtime/native/cpu_sizes.py has the same numbers.
struct SizeToken {
  enum Kind : int64_t {
    kNumber,
    kSymbol,
    kSum,
    kProduct,
    kQuotient,
    kLeast,
    kMost,
    kEqual,
    kAtLeast,
    kMultiple,
    kBroadcast
  };
  int64_t kind, value;
};

class SizeConditions {
 public:
  SizeConditions() = default;
  // The expressions must be whole: see `is_whole` in artifacts/dynamic.py.
  explicit SizeConditions(std::vector<SizeToken> tokens);

  // Whether all hold for these sizes, by symbol. False, too, if a value is too large for 64 bits.
  bool Hold(const std::vector<int64_t>& sizes);

 private:
  bool AllHold(const std::vector<int64_t>& sizes);

  std::vector<SizeToken> tokens_;
  std::vector<int64_t> values_;
  std::vector<int64_t> last_;  // the last sizes for which all hold
};

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_SIZE_CONDITIONS_H_
