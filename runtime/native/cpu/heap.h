// Memory of tensors whose sizes are known only at run time: what a run allocates and frees while it goes on.
//
// A block is the first gap that is large enough, in the order of addresses, so that tensors after each other lie in the
// same memory, which the caches have, whatever their sizes. Neighbouring gaps are joined. TVM's pool keeps each freed
// block for requests of the same number of pages, so that it grows with every new size.
//
// Memory comes from the system in regions, each as large as all before it together. Regions that nothing uses go back
// when another one is needed, so that the heap has at most a few times what was in use at once.
//
// For tests: if the environment variable HETEROCC_GUARD_PAGES is set, each block is filled with a pattern and lies
// between two pages without access, at the second one, so that an access outside of it ends the process.
//
// Threading: all functions may be called from any thread. A forked child gets a copy that works.
#ifndef HETEROCC_CPU_HEAP_H_
#define HETEROCC_CPU_HEAP_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

namespace heterocc::cpu {

class Heap {
 public:
  // The address of a block is a multiple of this.
  static constexpr size_t kAlignment = 64;

  // The heap of the process, which is never destroyed.
  static Heap& Global();

  // A block of at least `size` bytes with any content, until `Give` takes it back; null if the system has no memory.
  void* Take(size_t size);

  // Takes back a block of `Take`.
  void Give(void* block);

  // Returns the regions that nothing uses to the system.
  void Trim();

  // Bytes of the blocks that are in use.
  size_t used() const;

  // Bytes of all regions; pages that were never written take no memory.
  size_t reserved() const;

 private:
  Heap() = default;

  char* FirstFit(size_t size);
  bool Grow(size_t size);
  void AddGap(char* start, size_t size);
  void ReleaseIdle();

  mutable std::mutex mutex_;
  // By first address: sizes of regions, of gaps, and of blocks in use. No gap is beside another one of its region.
  std::map<char*, size_t> regions_;
  std::map<char*, size_t> gaps_;
  std::unordered_map<char*, size_t> blocks_;
  size_t used_ = 0;
  size_t reserved_ = 0;
};

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_HEAP_H_
