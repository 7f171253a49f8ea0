// Helpers of copies: addresses and sizes of tensors, and tensors over memory that is pinned for copies.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
//
// Threading: stateless.
#ifndef HETEROCC_COMMON_COPIES_H_
#define HETEROCC_COMMON_COPIES_H_

#include <tvm/ffi/container/tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "device_api.h"
#include "error.h"

namespace heterocc::HETEROCC_PLUGIN {

inline bool OnDevice(const tvm::ffi::Tensor& tensor) {
  return tensor.device().device_type == kPluginDevice;
}

// The first byte of a tensor in host memory.
inline char* HostAddress(const tvm::ffi::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

// Bytes of a copy; throws a `device` error unless both tensors have as many.
inline size_t CopySize(const tvm::ffi::Tensor& from, const tvm::ffi::Tensor& to) {
  const size_t nbytes = tvm::ffi::GetDataSize(*from.GetDLTensorPtr());
  if (nbytes != tvm::ffi::GetDataSize(*to.GetDLTensorPtr())) {
    Throw(ErrorClass::kDevice, "a copy needs two tensors of one size");
  }
  return nbytes;
}

// A CPU tensor of bytes over memory that `data` allocates and frees.
template <typename Data>
tvm::ffi::Tensor HostBytes(Data data, int64_t nbytes) {
  const int64_t extent[] = {nbytes};
  return tvm::ffi::Tensor::FromNDAlloc(std::move(data), tvm::ffi::Shape(extent, extent + 1), DLDataType{kDLUInt, 8, 1},
                                       DLDevice{kDLCPU, 0});
}

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_COPIES_H_
