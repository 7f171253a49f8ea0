#include "allocator.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/memory/memory_manager.h>

#include <limits>
#include <memory>
#include <mutex>
#include <new>

#include "heap.h"
#include "memory_limits.h"

namespace heterocc::cpu {
namespace {

using tvm::Device;
using tvm::runtime::memory::Allocator;
using tvm::runtime::memory::AllocatorType;
using tvm::runtime::memory::Buffer;
using tvm::runtime::memory::MemoryManager;

// The first number after those of TVM.
constexpr auto kHeap = static_cast<AllocatorType>(tvm::runtime::memory::kPooled + 1);

class HeapAllocator final : public Allocator {
 public:
  HeapAllocator() : Allocator(kHeap) {}

  using Allocator::Alloc;

  Buffer Alloc(Device device, size_t nbytes, size_t alignment, DLDataType) override {
    if (alignment > Heap::kAlignment) throw std::bad_alloc();
    return Buffer{TakeForRun(nbytes), nbytes, device, kHeap};
  }

  void Free(const Buffer& buffer) override { Heap::Global().Give(buffer.data); }

  void Clear() override { Heap::Global().Trim(); }

  size_t UsedMemory() const override { return Heap::Global().used(); }
};

// TVM multiplies the sizes of a tensor without looking whether the product wraps around, so that one of 2**21 x 2**21 x
// 2**21 numbers fits in no bytes. Its function is replaced by one that looks and then calls it.
constexpr char kAllocTensor[] = "vm.builtin.alloc_tensor";

void CheckTensors() {
  const auto original = tvm::ffi::Function::GetGlobal(kAllocTensor);
  if (!original) return;
  const auto checked =
      tvm::ffi::Function::FromPacked([function = *original](tvm::ffi::PackedArgs arguments, tvm::ffi::Any* result) {
        const auto shape = arguments.size() < 4 ? std::nullopt : arguments[2].as<tvm::ffi::Shape>();
        if (shape) {
          const auto dtype = arguments[3].cast<DLDataType>();
          auto bytes = static_cast<size_t>((dtype.bits * dtype.lanes + 7) / 8);
          for (const int64_t extent : *shape) bytes = Times(bytes, extent);
          if (bytes == std::numeric_limits<size_t>::max()) CheckSize(bytes);  // other devices have other limits
        }
        function.CallPacked(arguments, result);
      });
  tvm::ffi::Function::SetGlobal(kAllocTensor, checked, /*override=*/true);
}

// The manager creates allocators of its own types only; the table that it keeps them in is open to derived classes.
struct Manager : MemoryManager {
  static constexpr auto kMutex = &Manager::mu_;
  static constexpr auto kAllocators = &Manager::allocators_;
};

}  // namespace

int32_t AddAllocator() {
  static const bool checks = [] {
    CheckTensors();
    return true;
  }();
  (void)checks;
  MemoryManager* const manager = MemoryManager::Global();
  const std::lock_guard<std::mutex> lock(manager->*Manager::kMutex);
  auto& made = (manager->*Manager::kAllocators)[Device{kDLCPU, 0}];
  if (made.find(kHeap) == made.end()) made.emplace(kHeap, std::make_unique<HeapAllocator>());
  return kHeap;
}

}  // namespace heterocc::cpu
