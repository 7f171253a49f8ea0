#include "size_conditions.h"

#include <algorithm>
#include <utility>

namespace heterocc::cpu {
namespace {

// The result of an operator. False if it does not exist in 64 bits.
bool Combine(int64_t kind, int64_t left, int64_t right, int64_t* result) {
  switch (kind) {
    case SizeToken::kSum:
      return !__builtin_add_overflow(left, right, result);
    case SizeToken::kProduct:
      return !__builtin_mul_overflow(left, right, result);
    case SizeToken::kQuotient:
      if (right == 0 || (right == -1 && left == INT64_MIN)) return false;
      *result = left / right - static_cast<int64_t>(left % right != 0 && (left < 0) != (right < 0));
      return true;
    case SizeToken::kLeast:
      *result = std::min(left, right);
      return true;
    default:
      *result = std::max(left, right);
      return true;
  }
}

bool Relate(int64_t kind, int64_t left, int64_t right) {
  switch (kind) {
    case SizeToken::kEqual:
      return left == right;
    case SizeToken::kAtLeast:
      return left >= right;
    case SizeToken::kMultiple:
      return right != 0 && right != -1 && left % right == 0;
    default:
      return left == right || left == 1 || right == 1;
  }
}

}  // namespace

SizeConditions::SizeConditions(std::vector<SizeToken> tokens) : tokens_(std::move(tokens)) {
  values_.reserve(tokens_.size());
}

bool SizeConditions::Hold(const std::vector<int64_t>& sizes) {
  if (tokens_.empty() || sizes == last_) return true;
  if (!AllHold(sizes)) return false;
  last_ = sizes;
  return true;
}

bool SizeConditions::AllHold(const std::vector<int64_t>& sizes) {
  values_.clear();
  for (const SizeToken& token : tokens_) {
    if (token.kind == SizeToken::kNumber) {
      values_.push_back(token.value);
      continue;
    }
    if (token.kind == SizeToken::kSymbol) {
      values_.push_back(sizes[static_cast<size_t>(token.value)]);
      continue;
    }
    const int64_t right = values_.back();
    values_.pop_back();
    const int64_t left = values_.back();
    values_.pop_back();
    if (token.kind >= SizeToken::kEqual) {
      if (!Relate(token.kind, left, right)) return false;
      continue;
    }
    int64_t result = 0;
    if (!Combine(token.kind, left, right, &result)) return false;
    values_.push_back(result);
  }
  return true;
}

}  // namespace heterocc::cpu
