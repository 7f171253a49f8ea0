// Owners of kernels' times, and the times until their owner takes them.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
#ifndef HETEROCC_COMMON_KERNEL_TIMES_H_
#define HETEROCC_COMMON_KERNEL_TIMES_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace heterocc::HETEROCC_PLUGIN {

// The owner of a kernel's time, and the owner's label for the kernel. Owner 0 means none.
struct TimedFor {
  int64_t owner = 0;
  int64_t label = 0;

  // The owner and label of the kernels that the calling thread launches.
  static TimedFor& OfThread() {
    thread_local TimedFor timed;
    return timed;
  }
};

// A kernel's label and its time in nanoseconds by the device's clock; -1 if the driver reports none.
using KernelTime = std::pair<int64_t, int64_t>;

// Times by owner, each owner's in launch order. Threading: not thread-safe.
class KernelTimes {
 public:
  void Add(const TimedFor& timed, int64_t nanoseconds) { held_[timed.owner].emplace_back(timed.label, nanoseconds); }

  // Moves the owner's times to the end of `taken`.
  void Take(int64_t owner, std::vector<KernelTime>* taken) {
    const auto found = held_.find(owner);
    if (found == held_.end()) return;
    taken->insert(taken->end(), found->second.begin(), found->second.end());
    held_.erase(found);
  }

  void Clear() { held_.clear(); }

 private:
  std::map<int64_t, std::vector<KernelTime>> held_;
};

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_KERNEL_TIMES_H_
