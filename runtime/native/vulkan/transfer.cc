#include "transfer.h"

#include <cstring>
#include <memory>
#include <utility>

#include "../common/copies.h"
#include "device_api.h"
#include "error.h"

namespace heterocc::vulkan_plugin {
namespace {

namespace ffi = tvm::ffi;

// A piece of a queue's memory that stays pinned.
class Pinned {
 public:
  Pinned(std::shared_ptr<Queue> queue, uint64_t nbytes) : queue_(std::move(queue)), memory_(queue_->Pin(nbytes)) {}
  ~Pinned() { queue_->Unpin(memory_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  char* host() const { return memory_.host; }
  bool cached() const { return memory_.cached; }

 private:
  const std::shared_ptr<Queue> queue_;
  const Allocation memory_;
};

class PinnedData {
 public:
  explicit PinnedData(std::shared_ptr<Pinned> memory) : memory_(std::move(memory)) {}
  void AllocData(DLTensor* tensor) { tensor->data = memory_->host(); }
  void FreeData(DLTensor*) { memory_.reset(); }

 private:
  std::shared_ptr<Pinned> memory_;
};

ffi::Function Settler(std::shared_ptr<Queue> queue, uint64_t serial) {
  return ffi::Function::FromTyped([queue = std::move(queue), serial]() { queue->Await(serial); });
}

}  // namespace

ffi::Function StartCopy(const ffi::Tensor& from, const ffi::Tensor& to) {
  const size_t nbytes = CopySize(from, to);
  if (nbytes == 0) return ffi::Function::FromTyped([]() {});
  Buffer* buffer = static_cast<Buffer*>((OnDevice(to) ? to : from).data_ptr());
  const std::shared_ptr<Queue> queue = buffer->queue;
  if (OnDevice(from) && OnDevice(to)) {
    auto* source = static_cast<Buffer*>(from.data_ptr());
    if (source->queue != queue) {
      Throw(ErrorClass::kDevice, "Vulkan cannot copy between two devices: copy through the host");
    }
    queue->Copy(source, from.byte_offset(), buffer, to.byte_offset(), nbytes);
    return Settler(queue, queue->Mark());
  }
  if (OnDevice(to)) return Settler(queue, queue->StartWrite(HostAddress(from), buffer, to.byte_offset(), nbytes));
  char* target = HostAddress(to);
  if (queue->IsPinned(target, nbytes)) {
    return Settler(queue, queue->StartRead(buffer, from.byte_offset(), target, nbytes));
  }
  auto stage = std::make_shared<Pinned>(queue, nbytes);
  const uint64_t serial = queue->StartRead(buffer, from.byte_offset(), stage->host(), nbytes);
  return ffi::Function::FromTyped([queue, serial, stage, target, nbytes]() {
    queue->Await(serial);
    std::memcpy(target, stage->host(), nbytes);
  });
}

ffi::Function Mark(int64_t device) {
  std::shared_ptr<Queue> queue = Queue::LastUsed(static_cast<int>(device));
  const uint64_t serial = queue->Mark();
  return Settler(std::move(queue), serial);
}

ffi::Optional<ffi::Tensor> Pin(int64_t device, int64_t nbytes) {
  auto memory = std::make_shared<Pinned>(Queue::Of(static_cast<int>(device)), static_cast<uint64_t>(nbytes));
  if (!memory->cached()) return std::nullopt;
  return HostBytes(PinnedData(std::move(memory)), nbytes);
}

}  // namespace heterocc::vulkan_plugin
