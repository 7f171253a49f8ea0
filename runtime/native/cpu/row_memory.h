// Memory of tensors to which runs append rows: the keys and values of a language model, longer by a token each time.
//
// The rows along an axis of a tensor are at the start of its planes, one for each index before the axis; planes have
// room for more rows. Tensors of different lengths begin at the same address, the longer ones being made of the
// shorter.
//
// What a tensor holds never changes: rows are written once, by whoever claims them, and only those after the last that
// was claimed can be. Of two runs that append to the same tensor, the second is refused and copies the rows elsewhere.
//
// Ownership: tensors share the memory, which goes back after the last of them.
// Threading: all functions may be called from any thread. A forked child gets a copy that works.
#ifndef HETEROCC_CPU_ROW_MEMORY_H_
#define HETEROCC_CPU_ROW_MEMORY_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <memory>

namespace heterocc::cpu {

// The sizes of a tensor around an axis of it.
struct Planes {
  int64_t count;
  int64_t rows;
  int64_t row_bytes;

  Planes(const DLTensor& tensor, int64_t axis);
};

// Whether the elements of a tensor are in order, without gaps.
bool IsCompact(const DLTensor& tensor);

class RowMemory : public std::enable_shared_from_this<RowMemory> {
 public:
  // The memory in which a tensor begins; null if it is other memory.
  static std::shared_ptr<RowMemory> Of(const DLTensor& tensor);

  // A tensor over the memory of another one, which it keeps, such that appending rows to it makes memory with room.
  static tvm::ffi::Tensor Around(const tvm::ffi::Tensor& tensor);

  // New memory with room for about twice the rows of `planes`, which are claimed. Throws std::bad_alloc.
  static std::shared_ptr<RowMemory> New(const Planes& planes);

  ~RowMemory();

  // Whether a tensor that begins here is made of first rows, along this axis or any.
  bool Holds(const DLTensor& tensor, int64_t axis) const;
  bool Holds(const DLTensor& tensor) const;

  // Claims the rows after those of `planes` up to `end`. False if the planes are others, if there is no room, or if
  // the rows are claimed already.
  bool Claim(const Planes& planes, int64_t end);

  // Takes a claim from row `start` on back: the rows may be written again. No tensor may have them.
  void Unclaim(int64_t start);

  // A tensor of the first rows, of the dtype and the sizes of another one.
  tvm::ffi::Tensor FirstRows(const DLTensor& like, int64_t axis);

  void* data() const { return data_; }
  // Rows for which each plane has room.
  int64_t room() const { return room_; }

 private:
  RowMemory() = default;
  void Register();

  void* data_ = nullptr;
  int64_t planes_ = 0;
  int64_t row_bytes_ = 0;
  int64_t room_ = 0;  // 0 if this is the memory of `owner_`
  int64_t claimed_ = 0;
  tvm::ffi::Optional<tvm::ffi::Tensor> owner_;
};

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_ROW_MEMORY_H_
