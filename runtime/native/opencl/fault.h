// Simulated failures, for tests: HETEROCC_OPENCL_FAULT or `heterocc.opencl.fault(spec)`.
//
// A spec is a comma-separated list of `alloc:N` (the Nth allocation from now fails), `launch:N`, `build:N` (counted
// from 1) and `no-driver` (from the environment only: the driver is opened once).
// Threading: counting is atomic; setting a spec while kernels run is not meant to be exact.
#ifndef HETEROCC_OPENCL_FAULT_H_
#define HETEROCC_OPENCL_FAULT_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace heterocc::opencl_plugin {

class Faults {
 public:
  static Faults& Global();

  // Replaces all faults; throws a `device` error on a spec it cannot read.
  void Set(const std::string& spec);

  bool NoDriver() const { return no_driver_; }
  bool AllocFails() { return Count(&alloc_); }
  bool LaunchFails() { return Count(&launch_); }
  bool BuildFails() { return Count(&build_); }

 private:
  Faults();
  static bool Count(std::atomic<int64_t>* left);

  bool no_driver_ = false;
  std::atomic<int64_t> alloc_{0};
  std::atomic<int64_t> launch_{0};
  std::atomic<int64_t> build_{0};
};

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_FAULT_H_
