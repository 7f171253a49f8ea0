// Errors of a plug-in: every one starts with `heterocc.NAME[CLASS]: ` so that Python can distinguish the classes.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
//
// Threading: stateless.
#ifndef HETEROCC_COMMON_ERROR_H_
#define HETEROCC_COMMON_ERROR_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace heterocc::HETEROCC_PLUGIN {

enum class ErrorClass {
  kMemory,  // out of memory, or above the limit of one buffer
  kDevice,  // a call that failed for another reason, a lost device included
  kBuild,   // the driver refused a kernel, or the device lacks a feature that it needs
  kDriver,  // no driver, or no device
  kModule,  // bytes that are not a module of the plug-in's
};

// Throws a tvm::ffi::Error with the class's prefix.
[[noreturn]] void Throw(ErrorClass error_class, const std::string& message);

// The same for a failed call of the API, with its reason and its purpose (may be empty).
[[noreturn]] void ThrowFailed(ErrorClass error_class, const char* call, const std::string& reason,
                              const std::string& context);

// `123 bytes`.
std::string Bytes(uint64_t count);

// `8x4x1` for three sizes.
template <typename Size>
std::string Extent(const Size* sizes, int dimensions) {
  std::string text = std::to_string(sizes[0]);
  for (int i = 1; i < dimensions; ++i) text += "x" + std::to_string(sizes[i]);
  return text;
}

// A code that calls of the API fail with.
template <typename Code>
struct Meaning {
  Code code;
  const char* name;
  const char* text;
};

// `CL_OUT_OF_RESOURCES (-5): the device has no resources left`; `unknown` and the number for a code not listed.
template <typename Code, size_t kCount>
std::string Describe(const Meaning<Code> (&meanings)[kCount], Code code, const char* unknown) {
  for (const Meaning<Code>& meaning : meanings) {
    if (meaning.code == code) return std::string(meaning.name) + " (" + std::to_string(code) + "): " + meaning.text;
  }
  return std::string(unknown) + " " + std::to_string(code);
}

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_ERROR_H_
