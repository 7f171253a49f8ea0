#include <cstring>

#include "element_writer.h"
#include "request_data.h"

namespace heterocc::cpu {

namespace {

// Protobuf's wire types (protobuf.dev/programming-guides/encoding).
enum Wire : uint32_t { kVarint = 0, kEight = 1, kLength = 2, kFour = 5 };

constexpr int kVarintBytes = 10;

class WireReader {
 public:
  WireReader(const uint8_t* data, int64_t size) : begin_(data), at_(data), end_(data + size) {}

  bool AtEnd() const { return at_ == end_; }
  int64_t position() const { return at_ - begin_; }
  const uint8_t* at() const { return at_; }

  bool Varint(uint64_t* value) {
    *value = 0;
    for (int byte = 0; byte < kVarintBytes && at_ < end_; ++byte) {
      const uint8_t next = *at_++;
      *value |= static_cast<uint64_t>(next & 0x7F) << (7 * byte);
      if (next < 0x80) return true;
    }
    return false;
  }

  bool Skip(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) return false;
    at_ += size;
    return true;
  }

  template <typename T>
  bool Fixed(T* value) {
    if (static_cast<size_t>(end_ - at_) < sizeof(T)) return false;
    std::memcpy(value, at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }

 private:
  const uint8_t* begin_;
  const uint8_t* at_;
  const uint8_t* end_;
};

// The fields of InferTensorContents.
enum Field : int32_t {
  kBools = 1,
  kInts = 2,
  kInt64s = 3,
  kUints = 4,
  kUint64s = 5,
  kFloats = 6,
  kDoubles = 7,
  kTexts = 8
};

uint32_t WireOf(int32_t field) {
  return field == kFloats ? kFour : field == kDoubles ? kEight : field == kTexts ? kLength : kVarint;
}

Problem Signed(int64_t value, ElementWriter* writer) {
  const bool negative = value < 0;
  return writer->Integer(negative ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value),
                         negative);
}

// Reads one number of a field.
Problem ReadNumber(int32_t field, WireReader* reader, ElementWriter* writer) {
  if (field == kFloats) {
    float value;
    return reader->Fixed(&value) ? writer->Float(value) : Problem::kMalformed;
  }
  if (field == kDoubles) {
    double value;
    return reader->Fixed(&value) ? writer->Float(value) : Problem::kMalformed;
  }
  uint64_t value;
  if (!reader->Varint(&value)) return Problem::kMalformed;
  switch (field) {
    case kBools:
      return writer->Bool(value != 0);
    case kInts:  // longer numbers are cut, as protobuf does
      return Signed(static_cast<int32_t>(static_cast<uint32_t>(value)), writer);
    case kInt64s:
      return Signed(static_cast<int64_t>(value), writer);
    case kUints:
      return writer->Integer(static_cast<uint32_t>(value), false);
    case kUint64s:
      return writer->Integer(value, false);
    default:
      return Problem::kWrongType;
  }
}

Problem ReadValue(int32_t field, uint32_t wire, WireReader* reader, ElementWriter* writer) {
  if (wire != kLength) return wire == WireOf(field) ? ReadNumber(field, reader, writer) : Problem::kMalformed;
  uint64_t size;
  if (!reader->Varint(&size)) return Problem::kMalformed;
  const uint8_t* first = reader->at();
  if (!reader->Skip(size)) return Problem::kMalformed;
  Problem problem = Problem::kNone;
  if (field == kTexts) {
    problem = writer->BeginText();
    if (problem == Problem::kNone)
      problem = writer->AddText(reinterpret_cast<const char*>(first), static_cast<int64_t>(size));
    if (problem == Problem::kNone) writer->EndText();
    return problem;
  }
  WireReader packed(first, static_cast<int64_t>(size));
  while (problem == Problem::kNone && !packed.AtEnd()) problem = ReadNumber(field, &packed, writer);
  return problem;
}

bool SkipValue(uint32_t wire, WireReader* reader) {
  uint64_t value;
  switch (wire) {
    case kVarint:
      return reader->Varint(&value);
    case kEight:
      return reader->Skip(8);
    case kFour:
      return reader->Skip(4);
    case kLength:
      return reader->Varint(&value) && reader->Skip(value);
    default:
      return false;
  }
}

}  // namespace

Outcome ReadContents(const uint8_t* data, int64_t size, int32_t field, const Target& target) {
  WireReader reader(data, size);
  ElementWriter writer(target);
  Problem problem = Problem::kNone;
  while (problem == Problem::kNone && !reader.AtEnd()) {
    uint64_t tag;
    if (!reader.Varint(&tag) || (tag >> 3) == 0 || tag > UINT32_MAX) {
      problem = Problem::kMalformed;
    } else if ((tag >> 3) == static_cast<uint64_t>(field)) {
      problem = ReadValue(field, tag & 7, &reader, &writer);
    } else if (!SkipValue(tag & 7, &reader)) {
      problem = Problem::kMalformed;
    }
  }
  return {problem, problem == Problem::kNone ? writer.used() : reader.position(), writer.count()};
}

}  // namespace heterocc::cpu
