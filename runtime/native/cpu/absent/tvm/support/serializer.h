// See io.h.
#ifndef TVM_SUPPORT_SERIALIZER_H_
#define TVM_SUPPORT_SERIALIZER_H_

namespace tvm::support {

template <typename T>
struct Serializer;

}  // namespace tvm::support

#endif  // TVM_SUPPORT_SERIALIZER_H_
