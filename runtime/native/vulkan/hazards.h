// Commands that may run concurrently: remembers the memory read and written since the last barrier.
//
// Threading: none of its own; the queue's lock guards it.
#ifndef HETEROCC_VULKAN_HAZARDS_H_
#define HETEROCC_VULKAN_HAZARDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heterocc::vulkan_plugin {

// An access to the addresses from `begin` to `end`, the latter excluded.
struct Span {
  uint64_t begin;
  uint64_t end;
  bool write;
};

class Hazards {
 public:
  // Whether a command with these accesses must wait for an earlier one; if so the caller puts a barrier before it.
  // Notes the accesses either way.
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
  static constexpr size_t kMost = 64;  // beyond it a barrier costs less than the search
  std::vector<Span> seen_;
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_HAZARDS_H_
