// Memory that a device and the host both see, for devices whose memory is the host's own (integrated GPUs).
//
// It is on one side at a time: the host reads and writes it where the driver has mapped it, kernels use it where it is
// not mapped, and mapped for reading both may read it. A turn is a command of the device's queue: kernels that are
// given later come after it, the host must wait for it. Nothing is copied, unless the driver does.
//
// The address must not move from one mapping to the next, which OpenCL promises only for memory that the host has
// allocated, and that is what drivers of GPUs copy. `Lends` tries it; a turn that finds it elsewhere throws, and the
// device lends no more.
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

// Whose memory is.
enum class Side : int64_t {
  kDevice = 0,  // not mapped: kernels
  kBoth = 1,    // mapped for reading: kernels and the host, both to read
  kHost = 2,    // mapped: the host
};

class Maps;

class Lent {
 public:
  // On the host's side when made. Throws `memory` and `device` errors.
  Lent(std::shared_ptr<Queue> queue, size_t nbytes);
  // What the device was given is done with it before it goes.
  ~Lent();
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  cl_mem mem() const { return mem_; }
  char* host() const { return host_; }
  Side side() const { return side_; }

  // Starts to bring it to a side; adds what the host must wait for.
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
  cl_event mapped_ = nullptr;  // of the last mapping, if it still is
};

// Whether a device's memory can be lent: it is the host's own, and the driver maps it where the host can use it.
bool Lends(int64_t device);

// Lent memory as bytes of a tensor of the device's; `host_ptr` gives its address.
tvm::ffi::Tensor Lend(int64_t device, int64_t nbytes);

// Starts to bring tensors of one device in lent memory to sides; gives the function that waits until they are there and
// throws what went wrong. It may be dropped uncalled where the host touches none of them.
tvm::ffi::Function Turn(const tvm::ffi::Array<tvm::ffi::Tensor>& tensors, const tvm::ffi::Array<int64_t>& sides);

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_LENT_H_
