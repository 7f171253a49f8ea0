// Memory that a device and the host share, for devices that use the host's memory (integrated GPUs).
//
// It is on one side at a time: the host accesses it while it is mapped, kernels while it is not, and both may read it
// while it is mapped for reading. A turn is a command of the device's queue: later kernels run after it, and the host
// must wait for it. Nothing is copied, unless the driver copies.
//
// The address must be the same in every mapping. OpenCL guarantees this only for memory that the host has allocated,
// which GPU drivers copy. `Lends` tests it; a turn with another address throws, and ends lending on the device.
//
// Threading: one thread at a time for one piece of memory.
#ifndef HETEROCC_OPENCL_LENT_H_
#define HETEROCC_OPENCL_LENT_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <memory>
#include <string>

#include "queue.h"

namespace heterocc::opencl_plugin {

// The side that may access the memory.
enum class Side : int64_t {
  kDevice = 0,  // not mapped: kernels
  kBoth = 1,    // mapped for reading: kernels and the host, both to read
  kHost = 2,    // mapped: the host
};

class Maps;

class Lent {
 public:
  // Initially on the host's side. Throws `memory` and `device` errors.
  Lent(std::shared_ptr<Queue> queue, size_t nbytes);
  // Waits for the device's commands that use it.
  ~Lent();
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  cl_mem mem() const { return mem_; }
  char* host() const { return host_; }
  Side side() const { return side_; }

  // Starts a turn to a side; adds the events that the host must wait for.
  void Turn(Side side, Maps* maps);

 private:
  void Map(Side side);
  void Unmap();
  void ReleaseEvent();
  void Free();

  const std::shared_ptr<Queue> queue_;
  const size_t size_;
  const std::string context_;
  cl_mem mem_ = nullptr;
  char* host_ = nullptr;
  Side side_ = Side::kDevice;
  cl_event mapped_ = nullptr;  // of the last mapping, if it is still mapped
};

// Whether a device's memory can be lent: the device uses the host's memory, and the driver maps it without a copy.
bool Lends(int64_t device);

// Lent memory as bytes of a tensor of the device; `host_ptr` gives its address.
tvm::ffi::Tensor Lend(int64_t device, int64_t nbytes);

// Starts turns of tensors in lent memory of one device; returns the function that waits for them and throws their
// errors. Calling it is optional if the host does not access them.
tvm::ffi::Function Turn(const tvm::ffi::Array<tvm::ffi::Tensor>& tensors, const tvm::ffi::Array<int64_t>& sides);

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_LENT_H_
