// Errors that the inputs of a run lead to, as against failures of the device.
//
// Ownership and threading: none; a function throws.
#ifndef HETEROCC_CPU_INPUT_ERROR_H_
#define HETEROCC_CPU_INPUT_ERROR_H_

#include <tvm/ffi/error.h>

#include <string>

namespace heterocc::cpu {

// Throws an error that Python code makes an InputValueError of: its prefix is InputValueError.MARK.
[[noreturn]] inline void ThrowInputError(const std::string& message) {
  throw tvm::ffi::Error("ValueError", "heterocc.input: " + message, "");
}

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_INPUT_ERROR_H_
