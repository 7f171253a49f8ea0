// Asynchronous copies, and host memory that devices access directly in copies.
//
// A function that starts a copy returns one that waits for it and throws its error; calling that one is optional.
// Ownership: the caller keeps both tensors until that function has returned. Threading: any thread.
#ifndef HETEROCC_VULKAN_TRANSFER_H_
#define HETEROCC_VULKAN_TRANSFER_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>

namespace heterocc::vulkan_plugin {

// Copies between a tensor of a device and one of the host, or between two of one device. The copy is in order with the
// device's other commands. Host memory that is not pinned is copied via pinned memory.
tvm::ffi::Function StartCopy(const tvm::ffi::Tensor& from, const tvm::ffi::Tensor& to);

// Returns a function that waits for all commands that the calling thread has given to the device.
tvm::ffi::Function Mark(int64_t device);

// Pinned host memory, as bytes of a CPU tensor at a 64-byte boundary; null if the host would read the driver's memory
// for this slower than its own.
tvm::ffi::Optional<tvm::ffi::Tensor> Pin(int64_t device, int64_t nbytes);

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_TRANSFER_H_
