#include "element_writer.h"

#include <cstring>
#include <limits>
#include <type_traits>

namespace heterocc::cpu {

namespace {

constexpr int64_t kLengthBytes = 4;

}  // namespace

Problem ElementWriter::Bool(bool value) {
  return target_.element == Element::kBool ? Put<uint8_t>(value) : Problem::kWrongType;
}

template <typename T>
Problem ElementWriter::PutInteger(uint64_t magnitude, bool negative) {
  const uint64_t highest = static_cast<uint64_t>(std::numeric_limits<T>::max());
  if (!negative) {
    return magnitude <= highest ? Put<T>(static_cast<T>(magnitude)) : Problem::kOutOfRange;
  }
  const uint64_t lowest = std::is_signed_v<T> ? highest + 1 : 0;
  if (magnitude > lowest) return Problem::kOutOfRange;
  return Put<T>(static_cast<T>(uint64_t{0} - magnitude));
}

Problem ElementWriter::Integer(uint64_t magnitude, bool negative) {
  switch (target_.element) {
    case Element::kInt8:
      return PutInteger<int8_t>(magnitude, negative);
    case Element::kInt16:
      return PutInteger<int16_t>(magnitude, negative);
    case Element::kInt32:
      return PutInteger<int32_t>(magnitude, negative);
    case Element::kInt64:
      return PutInteger<int64_t>(magnitude, negative);
    case Element::kUint8:
      return PutInteger<uint8_t>(magnitude, negative);
    case Element::kUint16:
      return PutInteger<uint16_t>(magnitude, negative);
    case Element::kUint32:
      return PutInteger<uint32_t>(magnitude, negative);
    case Element::kUint64:
      return PutInteger<uint64_t>(magnitude, negative);
    default:
      return Problem::kWrongType;
  }
}

Problem ElementWriter::Float(double value) {
  if (target_.element == Element::kFloat64) return Put<double>(value);
  if (target_.element != Element::kFloat32) return Problem::kWrongType;
  return Put<float>(static_cast<float>(value));
}

Problem ElementWriter::BeginText() {
  if (target_.element != Element::kText) return Problem::kWrongType;
  if (target_.room - bytes_ < kLengthBytes) return Problem::kTooMany;
  begin_ = bytes_;
  bytes_ += kLengthBytes;
  return Problem::kNone;
}

Problem ElementWriter::AddText(const char* data, int64_t size) {
  if (target_.room - bytes_ < size) return Problem::kTooMany;
  if (size > 0) std::memcpy(static_cast<char*>(target_.data) + bytes_, data, static_cast<size_t>(size));
  bytes_ += size;
  return Problem::kNone;
}

void ElementWriter::EndText() {
  const auto length = static_cast<uint32_t>(bytes_ - begin_ - kLengthBytes);
  auto* to = static_cast<uint8_t*>(target_.data) + begin_;
  for (int byte = 0; byte < kLengthBytes; ++byte) to[byte] = static_cast<uint8_t>(length >> (8 * byte));
  ++count_;
}

}  // namespace heterocc::cpu
