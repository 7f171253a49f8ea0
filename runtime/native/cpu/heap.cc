#include "heap.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "memory_limits.h"

namespace heterocc::cpu {
namespace {

// The least size of a region: smaller ones would be many.
constexpr size_t kLeastRegion = size_t{1} << 20;
constexpr size_t kPage = 4096;

// Regions from this size on are compared with the memory that is left: looking takes tens of microseconds.
constexpr size_t kLarge = size_t{64} << 20;

// A pattern that stands out in a result, as a number of any type and as an index, and how many bytes of a block get it.
constexpr int kPattern = 0xCB;
constexpr size_t kFilled = size_t{1} << 24;

const bool guarded = std::getenv("HETEROCC_GUARD_PAGES") != nullptr;

size_t RoundedUp(size_t size, size_t step) {
  return (size + step - 1) / step * step;
}

char* Map(size_t size) {
  if (size >= kLarge && size > AvailableMemory()) return nullptr;
  void* found = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : static_cast<char*>(found);
}

// A block with a page without access before and behind it.
char* MapGuarded(size_t size) {
  const size_t inside = RoundedUp(size, kPage);
  char* const start = Map(inside + 2 * kPage);
  if (start == nullptr) return nullptr;
  char* const end = start + kPage + inside;
  if (mprotect(start, kPage, PROT_NONE) != 0 || mprotect(end, kPage, PROT_NONE) != 0) {
    munmap(start, inside + 2 * kPage);
    return nullptr;
  }
  std::memset(end - size, kPattern, std::min(size, kFilled));
  return end - size;
}

void UnmapGuarded(char* block, size_t size) {
  const size_t inside = RoundedUp(size, kPage);
  munmap(block + size - inside - kPage, inside + 2 * kPage);
}

}  // namespace

Heap& Heap::Global() {
  static Heap* const heap = [] {
    auto* const made = new Heap;  // tensors outlive static objects
    static Heap* const known = made;
    pthread_atfork([] { known->mutex_.lock(); }, [] { known->mutex_.unlock(); }, [] { known->mutex_.unlock(); });
    return made;
  }();
  return *heap;
}

void* Heap::Take(size_t size) {
  if (size > SIZE_MAX / 4) return nullptr;
  size = RoundedUp(std::max<size_t>(size, 1), kAlignment);
  const std::lock_guard<std::mutex> lock(mutex_);
  char* found = guarded ? MapGuarded(size) : FirstFit(size);
  if (found == nullptr && !guarded && Grow(size)) found = FirstFit(size);
  if (found == nullptr) return nullptr;
  blocks_.emplace(found, size);
  used_ += size;
  return found;
}

void Heap::Give(void* block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(static_cast<char*>(block));
  if (found == blocks_.end()) return;
  const auto [start, size] = *found;
  blocks_.erase(found);
  used_ -= size;
  if (guarded) {
    UnmapGuarded(start, size);
  } else {
    AddGap(start, size);
  }
}

void Heap::Trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ReleaseIdle();
}

size_t Heap::used() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

size_t Heap::reserved() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reserved_;
}

char* Heap::FirstFit(size_t size) {
  const auto found = std::find_if(gaps_.begin(), gaps_.end(), [size](const auto& gap) { return gap.second >= size; });
  if (found == gaps_.end()) return nullptr;
  const auto [start, room] = *found;
  const auto next = gaps_.erase(found);
  if (room > size) gaps_.emplace_hint(next, start + size, room - size);
  return start;
}

bool Heap::Grow(size_t size) {
  const size_t before = reserved_;
  ReleaseIdle();
  const size_t least = RoundedUp(size, kPage);
  size_t wanted = std::max({least, RoundedUp(before, kPage), kLeastRegion});
  char* start = Map(wanted);
  if (start == nullptr && wanted > least) {
    wanted = least;
    start = Map(wanted);
  }
  if (start == nullptr) return false;
  regions_.emplace(start, wanted);
  gaps_.emplace(start, wanted);
  reserved_ += wanted;
  return true;
}

void Heap::AddGap(char* start, size_t size) {
  auto next = gaps_.lower_bound(start);
  // Regions may lie beside each other; a gap over their border could not be returned with either.
  if (next != gaps_.end() && next->first == start + size && regions_.count(next->first) == 0) {
    size += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin() && regions_.count(start) == 0) {
    const auto last = std::prev(next);
    if (last->first + last->second == start) {
      last->second += size;
      return;
    }
  }
  gaps_.emplace_hint(next, start, size);
}

void Heap::ReleaseIdle() {
  for (auto region = regions_.begin(); region != regions_.end();) {
    const auto [start, size] = *region;
    const auto gap = gaps_.find(start);
    if (gap == gaps_.end() || gap->second != size) {
      ++region;
      continue;
    }
    munmap(start, size);
    reserved_ -= size;
    gaps_.erase(gap);
    region = regions_.erase(region);
  }
}

}  // namespace heterocc::cpu
