// Simulated failures, for tests: HETEROCC_VULKAN_FAULT or `heterocc.vulkan.fault(spec)`.
//
// A spec is a comma-separated list of `alloc:N` (the Nth allocation from now fails), `launch:N`, `build:N`, `lost:N`
// (the Nth submission loses the device), each counted from 1, and, read from the environment only because the driver
// and the device are opened once: `no-driver`, `discrete` (no device shares the host's memory), `no-push` (descriptors
// come from pools although they could be pushed).
// Threading: counting is atomic; setting a spec while kernels run is not meant to be exact.
#ifndef HETEROCC_VULKAN_FAULT_H_
#define HETEROCC_VULKAN_FAULT_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace heterocc::vulkan_plugin {

class Faults {
 public:
  static Faults& Global();

  // Replaces all faults; throws a `device` error on a spec it cannot read.
  void Set(const std::string& spec);

  bool NoDriver() const { return no_driver_; }
  bool Discrete() const { return discrete_; }
  bool NoPush() const { return no_push_; }
  bool AllocFails() { return Count(&alloc_); }
  bool LaunchFails() { return Count(&launch_); }
  bool BuildFails() { return Count(&build_); }
  bool DeviceIsLost() { return Count(&lost_); }

 private:
  Faults();
  static bool Count(std::atomic<int64_t>* left);

  bool no_driver_ = false;
  bool discrete_ = false;
  bool no_push_ = false;
  std::atomic<int64_t> alloc_{0};
  std::atomic<int64_t> launch_{0};
  std::atomic<int64_t> build_{0};
  std::atomic<int64_t> lost_{0};
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_FAULT_H_
