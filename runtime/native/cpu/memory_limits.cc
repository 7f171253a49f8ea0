#include "memory_limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <new>

#include "heap.h"
#include "input_error.h"

namespace heterocc::cpu {
namespace {

constexpr size_t kAny = std::numeric_limits<size_t>::max();

// The number in a file of one number; `otherwise` if there is none, as "max" in a file of a container without a limit.
size_t NumberIn(const char* path, size_t otherwise) {
  std::ifstream file(path);
  size_t number = 0;
  return file >> number ? number : otherwise;
}

// The number after a word in a file of such lines.
size_t NumberAfter(const char* path, const std::string& wanted, size_t otherwise) {
  std::ifstream file(path);
  std::string word;
  size_t number = 0;
  while (file >> word) {
    if (word == wanted && file >> number) return number;
  }
  return otherwise;
}

// The limit of the container's memory, and what it uses, as the two versions of control groups show them in a
// container.
struct Group {
  const char *limit, *used, *details, *cache;
};
constexpr Group kGroups[] = {
    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"},
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"},
};

size_t InstalledMemory() {
  const auto pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  size_t least = pages > 0 && size > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(size) : kAny;
  for (const Group& group : kGroups) least = std::min(least, NumberIn(group.limit, kAny));
  return least;
}

}  // namespace

size_t LargestValue() {
  static const size_t largest = [] {
    const char* const given = std::getenv("HETEROCC_MEMORY_MB");
    const size_t wanted = given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
    return wanted > 0 && wanted < kAny >> 20 ? wanted << 20 : InstalledMemory();
  }();
  return largest;
}

size_t AvailableMemory() {
  const size_t kilobytes = NumberAfter("/proc/meminfo", "MemAvailable:", kAny >> 10);
  size_t least = kilobytes << 10;
  for (const Group& group : kGroups) {
    const size_t limit = NumberIn(group.limit, kAny);
    if (limit >= kAny >> 2) continue;
    const size_t used = NumberIn(group.used, 0);
    const size_t cached = std::min(used, NumberAfter(group.details, group.cache, 0));
    least = std::min(least, limit - std::min(limit, used - cached));
  }
  return least;
}

size_t Times(size_t bytes, int64_t size) {
  size_t product = 0;
  return size < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(size), &product) ? kAny : product;
}

void CheckSize(size_t bytes, const std::string& kernel) {
  if (bytes <= LargestValue()) return;
  const std::string what = kernel.empty() ? "a value" : "the result of kernel '" + kernel + "'";
  ThrowInputError(what + " has " + (bytes > kAny / 2 ? "more than 2**63" : std::to_string(bytes)) +
                  " bytes with these inputs, and the limit is " + std::to_string(LargestValue()));
}

void* TakeForRun(size_t bytes, const std::string& kernel) {
  CheckSize(bytes, kernel);
  void* const block = Heap::Global().Take(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace heterocc::cpu
