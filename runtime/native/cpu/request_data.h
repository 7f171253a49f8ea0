// Data of inference requests as arrays: JSON's lists, and the typed lists of protobuf messages.
//
// Texts are of any content and size: nothing outside [text, text + size) is read, nothing outside the given memory is
// written, and time is linear in the size. Depth is limited, so that the stack is, too.
//
// Threading: stateless; to be called without the interpreter's lock.
#ifndef HETEROCC_CPU_REQUEST_DATA_H_
#define HETEROCC_CPU_REQUEST_DATA_H_

#include <cstdint>

namespace heterocc::cpu {

// Why data was refused; runtime/native/request_data.py has the same numbers.
enum class Problem : int64_t {
  kNone = 0,
  kMalformed = 1,   // not JSON, or not protobuf's wire format
  kTooDeep = 2,     // nested more deeply than kDeepest
  kWrongType = 3,   // a value of another type than asked for
  kOutOfRange = 4,  // a number that the element type lacks
  kRagged = 5,      // nested lists of different lengths
  kSurrogate = 6,   // an escape of half a character
  kTooLong = 7,     // a number of more than kLongestNumber characters
  kTooMany = 8,     // more values than the result has room for
};

// The types of elements; runtime/native/request_data.py has the same numbers.
enum class Element : int32_t {
  kBool = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kUint8 = 5,
  kUint16 = 6,
  kUint32 = 7,
  kUint64 = 8,
  kFloat32 = 9,
  kFloat64 = 10,
  kText = 11,  // the protocol's binary form: a length in four bytes, little-endian, and UTF-8
};

constexpr int kDeepest = 64;
constexpr int64_t kLongestNumber = 4096;

// The place of a value in a text.
struct Span {
  int64_t begin;
  int64_t end;
};

// What came of a call: where it ended or failed, and the number of elements found.
struct Outcome {
  Problem problem;
  int64_t position;
  int64_t count;
};

// Where elements are written: `room` is in elements, for kText in bytes.
struct Target {
  Element element;
  void* data;
  int64_t room;
};

// Checks a JSON document, and finds the values of `data` in the objects of the root's list `inputs`. `count` is the
// number of spans.
Outcome CutJson(const char* text, int64_t size, Span* spans, int64_t room);

// Reads a JSON value, nested or flat lists of elements, in order. `count` is the number of elements, and `position`
// without a problem the size of what was written, in the unit of `room`.
Outcome ReadJson(const char* text, int64_t size, const Target& target);

// The same of a field of a message InferTensorContents: packed or not, one number or text after another.
Outcome ReadContents(const uint8_t* data, int64_t size, int32_t field, const Target& target);

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_REQUEST_DATA_H_
