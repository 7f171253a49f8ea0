#include "allocator.h"

#include <tvm/runtime/memory/memory_manager.h>

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

// The manager creates allocators of its own types only; the table that it keeps them in is open to derived classes.
struct Manager : MemoryManager {
  static constexpr auto kMutex = &Manager::mu_;
  static constexpr auto kAllocators = &Manager::allocators_;
};

}  // namespace

int32_t AddAllocator() {
  MemoryManager* const manager = MemoryManager::Global();
  const std::lock_guard<std::mutex> lock(manager->*Manager::kMutex);
  auto& made = (manager->*Manager::kAllocators)[Device{kDLCPU, 0}];
  if (made.find(kHeap) == made.end()) made.emplace(kHeap, std::make_unique<HeapAllocator>());
  return kHeap;
}

}  // namespace heterocc::cpu
