// Simulated failures, for tests: HETEROCC_OPENCL_FAULT or `heterocc.opencl.fault(spec)`.
//
// A spec is a comma-separated list of `alloc:N` (the Nth allocation from now fails), `launch:N`, `build:N`, `copy:N`
// (the Nth copy that is started and not waited for fails, which shows when somebody waits), each counted from 1; with a
// `+` behind it (`alloc:2+`) all later ones fail too. Read from the environment only, because the driver is opened
// once: `no-driver`, `discrete` (no device shares the host's memory).
//
// Threading: counting is atomic; setting a spec while kernels run is not meant to be exact.
#ifndef HETEROCC_OPENCL_FAULT_H_
#define HETEROCC_OPENCL_FAULT_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace heterocc::opencl_plugin {

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
  bool AllocFails() { return alloc_.Happens(); }
  bool LaunchFails() { return launch_.Happens(); }
  bool BuildFails() { return build_.Happens(); }
  bool CopyFails() { return copy_.Happens(); }

 private:
  struct Named {
    const char* name;
    Fault* fault;
  };

  Faults();

  bool no_driver_ = false;
  bool discrete_ = false;
  Fault alloc_;
  Fault launch_;
  Fault build_;
  Fault copy_;
  const Named counted_[4] = {{"alloc", &alloc_}, {"launch", &launch_}, {"build", &build_}, {"copy", &copy_}};
};

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_FAULT_H_
