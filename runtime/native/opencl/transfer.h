// Asynchronous copies, and host memory that devices access directly in copies.
//
// A function that starts a copy returns one that waits for it and throws its error; calling that one is optional.
// Ownership: the caller keeps both tensors until that function has returned. Threading: any thread.
#ifndef HETEROCC_OPENCL_TRANSFER_H_
#define HETEROCC_OPENCL_TRANSFER_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace heterocc::opencl_plugin {

// Copies between a tensor of a device and one of the host, or between linked devices. The copy is in order with the
// device's other commands. A second device that the copy reads from is waited for by the first, not by the host.
tvm::ffi::Function StartCopy(const tvm::ffi::Tensor& from, const tvm::ffi::Tensor& to);

// Returns a function that waits for all commands that the device has been given.
tvm::ffi::Function Mark(int64_t device);

// Whether two devices copy to each other without the host: they have one platform and kind, and share a context.
bool Linked(int64_t one, int64_t other);

// Host memory, as bytes of a CPU tensor at a 64-byte boundary, that the driver has pinned for a device's copies.
tvm::ffi::Tensor Pin(int64_t device, int64_t nbytes);

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_TRANSFER_H_
