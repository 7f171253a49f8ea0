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
      // Lost: nothing uses it any more. The next run on the device gets the error.
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    heap_.Free(buffer->memory, Completed());
  }
  delete buffer;  // may free the queue
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
    chunks_.push_back(TakeStaging(kChunkBytes, lock));
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
  if (from->memory.host == nullptr || !from->memory.cached) {
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
    RecordCopy(chunk, 0, &to->memory, offset + done, size);
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
      RecordCopy(&from->memory, offset + asked, chunk, 0, size);
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

}  // namespace heterocc::vulkan_plugin
