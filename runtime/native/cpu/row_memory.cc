#include "row_memory.h"

#include <pthread.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "heap.h"

namespace heterocc::cpu {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Tensor;

// The least number of rows for which there is room beside those that are there.
constexpr int64_t kLeastRoom = 16;

// All memory of this kind, by address.
struct Known {
  std::mutex mutex;
  std::unordered_map<const void*, std::weak_ptr<RowMemory>> by_address;
};

Known& Registry() {
  static Known* const known = [] {
    static Known* const made = new Known;  // tensors outlive static objects
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); }, [] { made->mutex.unlock(); });
    return made;
  }();
  return *known;
}

const void* Start(const DLTensor& tensor) {
  return static_cast<const char*>(tensor.data) + tensor.byte_offset;
}

// An allocator of tensors that share memory.
class InRows {
 public:
  explicit InRows(std::shared_ptr<RowMemory> memory) : memory_(std::move(memory)) {}

  void AllocData(DLTensor* tensor) {
    tensor->data = memory_->data();
    tensor->byte_offset = 0;
  }

  void FreeData(DLTensor*) {}

 private:
  std::shared_ptr<RowMemory> memory_;
};

}  // namespace

Planes::Planes(const DLTensor& tensor, int64_t axis)
    : count(1), rows(tensor.shape[axis]), row_bytes((tensor.dtype.bits * tensor.dtype.lanes + 7) / 8) {
  for (int64_t i = 0; i < axis; ++i) count *= tensor.shape[i];
  for (int64_t i = axis + 1; i < tensor.ndim; ++i) row_bytes *= tensor.shape[i];
}

bool IsCompact(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t stride = 1;
  bool follows = true;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] > 1 && tensor.strides[i] != stride) follows = false;
    stride *= tensor.shape[i];
  }
  return follows;
}

std::shared_ptr<RowMemory> RowMemory::Of(const DLTensor& tensor) {
  Known& known = Registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.by_address.find(Start(tensor));
  return found == known.by_address.end() ? nullptr : found->second.lock();
}

std::shared_ptr<RowMemory> RowMemory::New(const Planes& planes) {
  const std::shared_ptr<RowMemory> made(new RowMemory);
  made->planes_ = planes.count;
  made->row_bytes_ = planes.row_bytes;
  made->claimed_ = planes.rows;
  made->room_ = planes.rows + std::max(planes.rows, kLeastRoom);
  made->data_ = Heap::Global().Take(static_cast<size_t>(planes.count * made->room_ * planes.row_bytes));
  if (made->data_ == nullptr) throw std::bad_alloc();
  made->Register();
  return made;
}

Tensor RowMemory::Around(const Tensor& tensor) {
  const std::shared_ptr<RowMemory> made(new RowMemory);
  made->owner_ = tensor;
  made->data_ = const_cast<void*>(Start(*tensor.GetDLTensorPtr()));
  made->Register();
  const DLTensor& given = *tensor.GetDLTensorPtr();
  const tvm::ffi::ShapeView shape(given.shape, static_cast<size_t>(given.ndim));
  return Tensor::FromNDAlloc(InRows(made), shape, given.dtype, given.device);
}

void RowMemory::Register() {
  Known& known = Registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.by_address[data_] = weak_from_this();
}

RowMemory::~RowMemory() {
  if (data_ == nullptr) return;
  {
    Known& known = Registry();
    const std::lock_guard<std::mutex> lock(known.mutex);
    const auto found = known.by_address.find(data_);
    if (found != known.by_address.end() && found->second.expired()) known.by_address.erase(found);
  }
  if (!owner_.has_value()) Heap::Global().Give(data_);
}

bool RowMemory::Holds(const DLTensor& tensor, int64_t axis) const {
  const Planes planes(tensor, axis);
  if (planes.count != planes_ || planes.row_bytes != row_bytes_ || planes.rows > room_ || tensor.strides == nullptr) {
    return false;
  }
  int64_t stride = 1;
  for (int64_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] != stride) return false;
    stride *= i == axis ? room_ : tensor.shape[i];
  }
  return true;
}

bool RowMemory::Holds(const DLTensor& tensor) const {
  for (int64_t axis = 0; axis < tensor.ndim; ++axis) {
    if (Holds(tensor, axis)) return true;
  }
  return false;
}

bool RowMemory::Claim(const Planes& planes, int64_t end) {
  if (planes.count != planes_ || planes.row_bytes != row_bytes_ || end > room_) return false;
  const std::lock_guard<std::mutex> lock(Registry().mutex);
  if (claimed_ != planes.rows) return false;
  claimed_ = end;
  return true;
}

void RowMemory::Unclaim(int64_t start) {
  const std::lock_guard<std::mutex> lock(Registry().mutex);
  claimed_ = start;
}

Tensor RowMemory::FirstRows(const DLTensor& like, int64_t axis) {
  std::vector<int64_t> shape(like.shape, like.shape + like.ndim), strides(shape.size());
  int64_t stride = 1;
  for (int64_t i = like.ndim - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= i == axis ? room_ : shape[static_cast<size_t>(i)];
  }
  return Tensor::FromNDAllocStrided(InRows(shared_from_this()), {shape.data(), shape.size()},
                                    {strides.data(), strides.size()}, like.dtype, like.device);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("heterocc.cpu.appendable",
           [](const Tensor& tensor) -> Any {
             if (RowMemory::Of(*tensor.GetDLTensorPtr()) != nullptr) return nullptr;
             return RowMemory::Around(tensor);
           })
      .def("heterocc.cpu.holds_rows", [](const Tensor& tensor) {
        const std::shared_ptr<RowMemory> memory = RowMemory::Of(*tensor.GetDLTensorPtr());
        return memory != nullptr && memory->Holds(*tensor.GetDLTensorPtr());
      });
}

}  // namespace heterocc::cpu
