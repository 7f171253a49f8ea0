// Copies of weights in the layouts that kernels read, made when a bundle is loaded.
//
// Threading: all functions may be called from any thread; the caller owns both tensors.
#ifndef HETEROCC_CPU_ARRANGE_H_
#define HETEROCC_CPU_ARRANGE_H_

#include <cstdint>

namespace heterocc::cpu {

constexpr int kMaxRank = 8;
// Rows of a matrix that transforms weights.
constexpr int kMaxFilter = 8;

// A block of a layout as the bundle's manifest describes it; offsets and strides count elements.
struct Block {
  int64_t rank;
  int64_t start;
  int64_t to;
  int64_t planes;
  int64_t extents[kMaxRank];
  int64_t strides[kMaxRank];
  int64_t to_strides[kMaxRank];
};

// Copies the blocks of `source` to `result` on at most `threads` threads. Elements have `size` bytes: 1, 2, 4 or 8.
// With a `matrix` of `rows` x 3 they are groups of 3 x 3 float32, of which the transform is stored.
// The caller has checked that every block is inside both. Returns 0, or -1 for sizes that it does not know.
int Arrange(const void* source, void* result, int size, const Block* blocks, int count, const double* matrix, int rows,
            int threads);

// The formats of numbers of 16 bits that Widen converts.
enum class Format : int32_t { kFloat16 = 0, kBfloat16 = 1 };

// Writes `count` numbers of `source` to `result` as float32, on at most `threads` threads. Exact; NaN stays NaN.
void Widen(const uint16_t* source, float* result, int64_t count, Format format, int threads);

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_ARRANGE_H_
