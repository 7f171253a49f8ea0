// Stands in for a header of TVM that its wheel leaves out although tvm/runtime/tensor.h includes it. Only functions
// that read and write tensors in files use the class, and the plug-in calls none of them.
#ifndef TVM_SUPPORT_IO_H_
#define TVM_SUPPORT_IO_H_

#include <cstddef>

namespace tvm::support {

class Stream {
 public:
  template <typename T>
  void Write(const T& value);
  template <typename T>
  bool Read(T* value);
  template <typename T>
  bool WriteArray(const T* values, size_t count);
  template <typename T>
  bool ReadArray(T* values, size_t count);
  size_t Write(const void* bytes, size_t size);
  size_t Read(void* bytes, size_t size);
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_IO_H_
