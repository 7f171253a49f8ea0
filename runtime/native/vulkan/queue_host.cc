// The queue's memory, and copies between it and the host's.
#include <algorithm>
#include <cstring>

#include "error.h"
#include "queue.h"

namespace heterocc::vulkan_plugin {
namespace {

// Staging memory: the host fills one chunk while the device empties the others.
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
constexpr size_t kChunks = 4;

}  // namespace

Buffer* Queue::Allocate(uint64_t nbytes, uint64_t alignment) {
  auto buffer = std::make_unique<Buffer>();
  buffer->size = nbytes;
  buffer->queue = shared_from_this();
  std::lock_guard<std::mutex> lock(mutex_);
  CheckAlive();
  buffer->memory = heap_.Allocate(nbytes, alignment);
  return buffer.release();
}

Buffer* Queue::Borrow(void* host, uint64_t nbytes) {
  auto buffer = std::make_unique<Buffer>();
  buffer->size = nbytes;
  buffer->borrowed = true;
  buffer->queue = shared_from_this();
  std::lock_guard<std::mutex> lock(mutex_);
  CheckAlive();
  buffer->memory = heap_.Import(host, nbytes);
  return buffer.release();
}

void Queue::Free(Buffer* buffer) {
  if (buffer->borrowed) {
    try {
      WaitForUser(buffer);  // the owner may reuse the memory as soon as we return
    } catch (const std::exception&) {
      // Lost: nothing uses it any more. Whoever runs next on the device is told.
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    heap_.Free(buffer->memory, Completed());
  }
  delete buffer;  // with it the queue may go
}

uint64_t Queue::Trim() {
  Finish();
  std::lock_guard<std::mutex> lock(mutex_);
  return heap_.Collect(Completed(), true);
}

uint64_t Queue::SubmitUser(uint64_t last_use) {
  CheckAlive();
  if (open_ != nullptr && last_use == open_->serial) Submit();
  return last_use > Completed() ? last_use : 0;
}

void Queue::WaitForUser(Buffer* buffer) {
  uint64_t serial = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    serial = SubmitUser(buffer->memory.last_use);
  }
  if (serial == 0) return;
  Wait(serial);
  std::lock_guard<std::mutex> lock(mutex_);
  Collect();
}

Allocation* Queue::NextChunk(std::unique_lock<std::mutex>* lock) {
  if (chunks_.size() < kChunks) {
    chunks_.push_back(staging_heap_.Allocate(kChunkBytes, 1));
    return &chunks_.back();
  }
  Allocation* chunk = &chunks_[next_chunk_];
  next_chunk_ = (next_chunk_ + 1) % kChunks;
  const uint64_t serial = SubmitUser(chunk->last_use);
  if (serial != 0) {
    lock->unlock();
    Wait(serial);
    lock->lock();
    CheckAlive();
    Collect();
  }
  return chunk;
}

void Queue::Write(const void* from, Buffer* to, uint64_t offset, uint64_t nbytes) {
  if (to->memory.host == nullptr) {
    StagedWrite(static_cast<const char*>(from), to, offset, nbytes);
    return;
  }
  WaitForUser(to);
  std::memcpy(to->memory.host + offset, from, nbytes);
}

void Queue::Read(Buffer* from, uint64_t offset, void* to, uint64_t nbytes) {
  if (from->memory.host == nullptr) {
    StagedRead(from, offset, static_cast<char*>(to), nbytes);
  } else {
    WaitForUser(from);
    std::memcpy(to, from->memory.host + offset, nbytes);
  }
  cache_.SaveIfGrown();
}

void Queue::StagedWrite(const char* from, Buffer* to, uint64_t offset, uint64_t nbytes) {
  std::lock_guard<std::mutex> alone(staging_mutex_);
  for (uint64_t done = 0; done < nbytes;) {
    const uint64_t size = std::min(kChunkBytes, nbytes - done);
    std::unique_lock<std::mutex> lock(mutex_);
    CheckAlive();
    Allocation* chunk = NextChunk(&lock);
    lock.unlock();
    std::memcpy(chunk->host, from + done, size);
    lock.lock();
    const uint64_t target = to->memory.address + offset + done;
    const Span spans[] = {{chunk->address, chunk->address + size, false}, {target, target + size, true}};
    const VkCommandBuffer commands = Record(spans, 2);
    const VkBufferCopy region{chunk->offset, to->memory.offset + offset + done, size};
    device_.vk().vkCmdCopyBuffer(commands, chunk->buffer, to->memory.buffer, 1, &region);
    ++copies_;
    chunk->last_use = to->memory.last_use = open_->serial;
    done += size;
    Recorded();
    if (done < nbytes) Submit();
  }
}

void Queue::StagedRead(Buffer* from, uint64_t offset, char* to, uint64_t nbytes) {
  struct Piece {
    Allocation* chunk;
    uint64_t serial;
    uint64_t at;
    uint64_t size;
  };
  std::lock_guard<std::mutex> alone(staging_mutex_);
  std::deque<Piece> flying;
  for (uint64_t asked = 0, done = 0; done < nbytes;) {
    while (asked < nbytes && flying.size() < kChunks) {
      const uint64_t size = std::min(kChunkBytes, nbytes - asked);
      std::unique_lock<std::mutex> lock(mutex_);
      CheckAlive();
      Allocation* chunk = NextChunk(&lock);
      const uint64_t source = from->memory.address + offset + asked;
      const Span spans[] = {{source, source + size, false}, {chunk->address, chunk->address + size, true}};
      const VkCommandBuffer commands = Record(spans, 2);
      const VkBufferCopy region{from->memory.offset + offset + asked, chunk->offset, size};
      device_.vk().vkCmdCopyBuffer(commands, from->memory.buffer, chunk->buffer, 1, &region);
      ++copies_;
      chunk->last_use = from->memory.last_use = open_->serial;
      ++open_->count;
      Submit();
      flying.push_back(Piece{chunk, chunk->last_use, asked, size});
      asked += size;
    }
    const Piece piece = flying.front();
    flying.pop_front();
    Wait(piece.serial);
    std::memcpy(to + piece.at, piece.chunk->host, piece.size);
    done += piece.size;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  CheckAlive();
  Collect();
}

std::vector<uint64_t> Queue::Statistics() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {submitted_, kernels_, copies_, barriers_, heap_.Held(), heap_.Used()};
}

void Queue::Profile(bool enabled) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (enabled == profiling_ || lost_) return;
  Submit();
  profiling_ = enabled;
}

void Queue::TakeTimes(std::vector<KernelTime>* times) {
  if (lost_) return;
  Finish();
  std::lock_guard<std::mutex> lock(mutex_);
  times->insert(times->end(), times_.begin(), times_.end());
  times_.clear();
}

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Queue>> queues;  // by device index; null until used
  bool profiling = false;
};

Registry& Queues() {
  static Registry* registry = new Registry();
  return *registry;
}

// By device: the queue that the calling thread has given commands to since it last waited.
std::vector<std::weak_ptr<Queue>>& Given() {
  thread_local std::vector<std::weak_ptr<Queue>> given;
  return given;
}

}  // namespace

void Queue::GivenTo() {
  std::vector<std::weak_ptr<Queue>>& given = Given();
  const auto index = static_cast<size_t>(&info() - AllDevices().data());
  if (given.size() <= index) given.resize(index + 1);
  given[index] = weak_from_this();
}

void Queue::FinishFor(int index) {
  std::vector<std::weak_ptr<Queue>>& given = Given();
  std::shared_ptr<Queue> queue;
  if (index >= 0 && static_cast<size_t>(index) < given.size()) {
    queue = given[index].lock();
    given[index].reset();
  }
  if (queue == nullptr) queue = Of(index);
  queue->Finish();
}

std::shared_ptr<Queue> Queue::Of(int index) {
  const DeviceInfo& info = RequireDevice(index);
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.queues.resize(AllDevices().size());
  std::shared_ptr<Queue>& queue = registry.queues[index];
  if (queue == nullptr || queue->Lost()) {
    auto made = std::make_shared<Queue>(info);
    made->Profile(registry.profiling);
    queue = std::move(made);
  }
  return queue;
}

void Queue::SetProfiling(bool enabled) {
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.profiling = enabled;
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue != nullptr) queue->Profile(enabled);
  }
}

uint64_t Queue::TrimAll() {
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  uint64_t freed = 0;
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue != nullptr && !queue->Lost()) freed += queue->Trim();
  }
  return freed;
}

std::vector<KernelTime> Queue::TakeProfile() {
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  std::vector<KernelTime> all;
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue != nullptr) queue->TakeTimes(&all);
  }
  return all;
}

}  // namespace heterocc::vulkan_plugin
