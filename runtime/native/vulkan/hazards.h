// Detection of hazards: records the memory read and written since the last barrier.
//
// Threading: not thread-safe; guarded by the queue's lock.
#ifndef HETEROCC_VULKAN_HAZARDS_H_
#define HETEROCC_VULKAN_HAZARDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heterocc::vulkan_plugin {

// An access to the addresses [begin, end).
struct Span {
  uint64_t begin;
  uint64_t end;
  bool write;
};

class Hazards {
 public:
  // Whether a command with these accesses must wait for an earlier one; if so, the caller adds a barrier before it.
  // Records the accesses in both cases.
  bool NeedsBarrier(const Span* spans, size_t count) {
    bool conflict = seen_.size() + count > kMost;
    for (size_t i = 0; i < count && !conflict; ++i) {
      for (const Span& old : seen_) {
        if ((old.write || spans[i].write) && old.begin < spans[i].end && spans[i].begin < old.end) {
          conflict = true;
          break;
        }
      }
    }
    if (conflict) seen_.clear();
    seen_.insert(seen_.end(), spans, spans + count);
    return conflict;
  }

  void Clear() { seen_.clear(); }

 private:
  static constexpr size_t kMost = 64;  // above this number a barrier is faster than the search
  std::vector<Span> seen_;
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_HAZARDS_H_
