// Simulated failures, for tests: HETEROCC_VULKAN_FAULT or `heterocc.vulkan.fault(spec)`.
//
// A spec is a comma-separated list of `alloc:N` (the Nth allocation from now fails), `launch:N`, `build:N`, `lost:N`
// (the Nth submission loses the device), each counted from 1; with a `+` behind it (`alloc:2+`) all later ones fail
// too. Read from the environment only because the driver and the device are opened once: `no-driver`, `discrete` (no
// device shares the host's memory), `integrated` (a CPU passes for an integrated GPU: it lends memory to the host and
// takes none), `no-push` (descriptors come from pools although they could be pushed).
//
// Threading: counting is atomic; setting a spec while kernels run is not meant to be exact.
#ifndef HETEROCC_VULKAN_FAULT_H_
#define HETEROCC_VULKAN_FAULT_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace heterocc::vulkan_plugin {

// One kind of failure, and how many calls away it is.
class Fault {
 public:
  // The `count`th call from now fails, and all later ones where it is `lasting`; 0 disarms.
  void Arm(int64_t count, bool lasting);
  // Counts a call; whether it is one that fails.
  bool Happens();
  // Whether it is armed and has not happened.
  bool Waits() const { return left_ > 0 && !met_; }

 private:
  std::atomic<int64_t> left_{0};
  std::atomic<bool> lasting_{false};
  std::atomic<bool> met_{false};
};

class Faults {
 public:
  static Faults& Global();

  // Replaces all faults and gives the names of those that never happened, separated by commas. Throws a `device` error
  // on a spec it cannot read.
  std::string Set(const std::string& spec);

  bool NoDriver() const { return no_driver_; }
  bool Discrete() const { return discrete_; }
  bool Integrated() const { return integrated_; }
  bool NoPush() const { return no_push_; }
  bool AllocFails() { return alloc_.Happens(); }
  bool LaunchFails() { return launch_.Happens(); }
  bool BuildFails() { return build_.Happens(); }
  bool DeviceIsLost() { return lost_.Happens(); }

 private:
  struct Named {
    const char* name;
    Fault* fault;
  };

  Faults();

  bool no_driver_ = false;
  bool discrete_ = false;
  bool integrated_ = false;
  bool no_push_ = false;
  Fault alloc_;
  Fault launch_;
  Fault build_;
  Fault lost_;
  const Named counted_[4] = {{"alloc", &alloc_}, {"launch", &launch_}, {"build", &build_}, {"lost", &lost_}};
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_FAULT_H_
