// Kernels that the driver compiles together, and the origin of their machine code.
//
// For each device, the first of: the bundle's binary for exactly this driver and device; one kept on disk; the compiled
// source. Binaries that the driver refuses are ignored.
//
// Ownership: a program owns its builds. Threading: any thread; one at a time builds a program.
#ifndef HETEROCC_OPENCL_PROGRAM_H_
#define HETEROCC_OPENCL_PROGRAM_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "binary_package.h"
#include "queue.h"

namespace heterocc::opencl_plugin {

// The key of a program's binary: the hash of device, driver, platform, build options and source.
common::Digest ProgramKey(const DeviceInfo& info, const std::string& source);

// Counts of programs by origin, and of binaries that were refused.
struct Origins {
  int64_t bundle = 0;
  int64_t disk = 0;
  int64_t source = 0;
  int64_t refused = 0;
};

class Program {
 public:
  using Source = std::pair<std::string, std::string>;  // a kernel's name and its text

  explicit Program(std::vector<Source> kernels);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // A kernel of it on a queue's device, built if necessary. `bundled` are the bundle's binaries.
  std::shared_ptr<_cl_kernel> Get(const std::string& name, const std::shared_ptr<Queue>& queue,
                                  const Binaries& bundled);

  // Builds it for a device, unless it is built already.
  void Build(int device, const Binaries& bundled);

  // Adds the origin of the code for a device, if it was built.
  void Count(int device, Origins* origins);

  // Adds the binary for a device, if it was built and the driver gives one. May take as long as building.
  void Collect(int device, Binaries* binaries);

 private:
  struct Built {
    std::shared_ptr<Queue> queue;
    std::vector<cl_program> programs;  // one, or one per kernel if they do not compile together
    std::map<std::string, cl_kernel> kernels;
    Origins origins;
    ~Built();
  };

  std::shared_ptr<Built> BuildLocked(const std::shared_ptr<Queue>& queue, const Binaries& bundled);
  bool FromBinary(const DeviceInfo& info, cl_context context, const std::string& binary, Built* built) const;
  void FromSource(const DeviceInfo& info, cl_context context, Built* built) const;

  const std::vector<Source> sources_;
  std::string source_;  // of all kernels
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Built>> built_;  // by device; built again after the loss of a device
};

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_PROGRAM_H_
