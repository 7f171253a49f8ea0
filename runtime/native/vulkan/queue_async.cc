// Asynchronous copies, and the pinned memory that they use.
#include <cstring>

#include "error.h"
#include "queue.h"

namespace heterocc::vulkan_plugin {
namespace {

// Uploads from this size on are submitted at once; smaller ones with the kernels that read them.
constexpr uint64_t kWorthSubmitting = uint64_t{256} << 10;

constexpr uint64_t kPinAlignment = 64;

}  // namespace

void Queue::RecordCopy(Allocation* from, uint64_t from_offset, Allocation* to, uint64_t to_offset, uint64_t nbytes) {
  const uint64_t source = from->address + from_offset;
  const uint64_t target = to->address + to_offset;
  const Span spans[] = {{source, source + nbytes, false}, {target, target + nbytes, true}};
  const VkCommandBuffer commands = Record(spans, 2);
  const VkBufferCopy region{from->offset + from_offset, to->offset + to_offset, nbytes};
  device_.vk().vkCmdCopyBuffer(commands, from->buffer, to->buffer, 1, &region);
  ++copies_;
  from->last_use = to->last_use = open_->serial;
}

Allocation Queue::TakeStaging(uint64_t nbytes, std::unique_lock<std::mutex>* lock) {
  Allocation memory = staging_heap_.Allocate(nbytes, kPinAlignment);
  const uint64_t serial = SubmitUser(memory.last_use);
  if (serial != 0) {
    lock->unlock();
    Wait(serial);
    lock->lock();
    CheckAlive();
  }
  return memory;
}

Allocation Queue::Pin(uint64_t nbytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  CheckAlive();
  const Allocation memory = TakeStaging(nbytes, &lock);
  return pinned_[memory.address] = memory;
}

void Queue::Unpin(const Allocation& memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pinned_.find(memory.address);
  staging_heap_.Free(found->second, Completed());  // with the serial of its last use
  pinned_.erase(found);
}

Allocation* Queue::FindPinned(const void* host, uint64_t nbytes) {
  const auto address = reinterpret_cast<uint64_t>(host);
  auto after = pinned_.upper_bound(address);
  if (after == pinned_.begin()) return nullptr;
  Allocation& memory = (--after)->second;
  return address + nbytes <= memory.address + memory.size ? &memory : nullptr;
}

bool Queue::IsPinned(const void* host, uint64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  return FindPinned(host, nbytes) != nullptr;
}

uint64_t Queue::StartWrite(const void* from, Buffer* to, uint64_t offset, uint64_t nbytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CheckAlive();
    Allocation* pinned = FindPinned(from, nbytes);
    if (pinned != nullptr) {
      RecordCopy(pinned, reinterpret_cast<uint64_t>(from) - pinned->address, &to->memory, offset, nbytes);
      const uint64_t serial = open_->serial;
      Recorded();
      if (nbytes >= kWorthSubmitting) Submit();
      return serial;
    }
    if (to->memory.host != nullptr && to->memory.last_use <= Completed()) {
      std::memcpy(to->memory.host + offset, from, nbytes);
      return 0;
    }
  }
  StagedWrite(static_cast<const char*>(from), to, offset, nbytes);
  std::lock_guard<std::mutex> lock(mutex_);
  return to->memory.last_use;
}

uint64_t Queue::StartRead(Buffer* from, uint64_t offset, void* to, uint64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  CheckAlive();
  Allocation* pinned = FindPinned(to, nbytes);
  if (pinned == nullptr) Throw(ErrorClass::kDevice, "a copy that is not waited for needs pinned memory");
  RecordCopy(&from->memory, offset, pinned, reinterpret_cast<uint64_t>(to) - pinned->address, nbytes);
  const uint64_t serial = open_->serial;
  Submit();  // the caller will wait for it
  return serial;
}

uint64_t Queue::Mark() {
  std::lock_guard<std::mutex> lock(mutex_);
  CheckAlive();
  Submit();
  return submitted_;
}

void Queue::Await(uint64_t serial) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    serial = SubmitUser(serial);
    submit_at_ = FirstSubmission();
  }
  Wait(serial);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CheckAlive();
    Collect();
  }
  cache_.SaveIfGrown();
}

}  // namespace heterocc::vulkan_plugin
