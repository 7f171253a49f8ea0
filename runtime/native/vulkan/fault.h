// Simulated failures of Vulkan (HETEROCC_VULKAN_FAULT): those of `common/common_faults.h`, and `lost:N` (the Nth
// submission loses the device). Read from the environment only: `integrated` (a CPU is treated as an integrated GPU:
// it lends memory to the host and does not import any), `uncached` (the host reads device memory slower than its own),
// `slow` (submissions count as a million times as long as they are), `no-push` (descriptors are from pools even if they
// could be pushed), `no-nan` (floats do not keep NaN, even if a shader requires it).
#ifndef HETEROCC_VULKAN_FAULT_H_
#define HETEROCC_VULKAN_FAULT_H_

#include "../common/common_faults.h"

namespace heterocc::vulkan_plugin {

class Faults final : public CommonFaults {
 public:
  static Faults& Global();

  bool Integrated() const { return integrated_; }
  bool Uncached() const { return uncached_; }
  bool Slow() const { return slow_; }
  bool NoPush() const { return no_push_; }
  bool NoNan() const { return no_nan_; }
  bool DeviceIsLost() { return lost_.Happens(); }

 private:
  Faults();

  bool integrated_ = false;
  bool uncached_ = false;
  bool slow_ = false;
  bool no_push_ = false;
  bool no_nan_ = false;
  Fault lost_;
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_FAULT_H_
