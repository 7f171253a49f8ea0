// Simulated failures, for tests: the environment's HETEROCC_NAME_FAULT or `heterocc.NAME.fault(spec)`.
//
// A spec is a comma-separated list of `alloc:N` (the Nth allocation from now fails), `launch:N`, `build:N`, each
// counted from 1; with a `+` behind it (`alloc:2+`) all later ones fail too. Read from the environment only, because
// the driver is opened once: `no-driver`, `discrete` (no device shares the host's memory). Plug-ins add their own.
//
// A process that finds the variable set warns of it on stderr.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
//
// Threading: counting is atomic; setting a spec while kernels run is not meant to be exact.
#ifndef HETEROCC_COMMON_COMMON_FAULTS_H_
#define HETEROCC_COMMON_COMMON_FAULTS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace heterocc::HETEROCC_PLUGIN {

// One kind of failure, and the number of calls until it occurs.
class Fault {
 public:
  // The `count`th call from now fails, and all later ones if `lasting`; 0 disarms.
  void Arm(int64_t count, bool lasting);
  // Counts a call; returns whether it is to fail.
  bool Happens();
  // Whether it is armed and has not occurred yet.
  bool Waits() const { return left_ > 0 && !met_; }

 private:
  std::atomic<int64_t> left_{0};
  std::atomic<bool> lasting_{false};
  std::atomic<bool> met_{false};
};

class CommonFaults {
 public:
  // Replaces all faults and returns the names of those that did not occur, separated by commas. Throws a `device` error
  // on a spec it cannot read.
  std::string Set(const std::string& spec);

  bool NoDriver() const { return no_driver_; }
  bool Discrete() const { return discrete_; }
  bool AllocFails() { return alloc_.Happens(); }
  bool LaunchFails() { return launch_.Happens(); }
  bool BuildFails() { return build_.Happens(); }

 protected:
  CommonFaults() = default;
  ~CommonFaults() = default;

  void Add(const char* name, Fault* fault) { counted_.emplace_back(name, fault); }
  void Add(const char* name, bool* flag) { flags_.emplace_back(name, flag); }
  // Sets the failures that the environment's variable names, and warns on stderr that it does, or that it cannot read
  // them. To be called once in a process.
  void ReadEnvironment(const char* variable);

 private:
  Fault alloc_;
  Fault launch_;
  Fault build_;
  bool no_driver_ = false;
  bool discrete_ = false;
  std::vector<std::pair<std::string, Fault*>> counted_{{"alloc", &alloc_}, {"launch", &launch_}, {"build", &build_}};
  std::vector<std::pair<std::string, bool*>> flags_{{"no-driver", &no_driver_}, {"discrete", &discrete_}};
};

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_COMMON_FAULTS_H_
