// Copies that the host does not wait for, and host memory that devices copy from and to without a stop in between.
//
// A function that starts a copy gives one that waits for it and throws its error; that may be dropped uncalled.
// Ownership: the caller keeps both tensors until that function has returned. Threading: any thread.
#ifndef HETEROCC_VULKAN_TRANSFER_H_
#define HETEROCC_VULKAN_TRANSFER_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>

namespace heterocc::vulkan_plugin {

// Copies between a tensor of a device and one of the host, or between two of one device. The device goes on in order:
// what it is given later comes after the copy. Host memory that is not pinned goes by way of memory that is.
tvm::ffi::Function StartCopy(const tvm::ffi::Tensor& from, const tvm::ffi::Tensor& to);

// Gives the function that waits for what the calling thread gave to the device until now.
tvm::ffi::Function Mark(int64_t device);

// Host memory, as bytes of a CPU tensor at a 64-byte boundary, that the device copies from and to; null where the host
// would read what the driver has for that slower than its own.
tvm::ffi::Optional<tvm::ffi::Tensor> Pin(int64_t device, int64_t nbytes);

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_TRANSFER_H_
