#include "denormals.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace heterocc::cpu {
namespace {

#if defined(__x86_64__)
constexpr FloatMode kZeros = 0x8040;  // MXCSR: results (FTZ) and operands (DAZ)
#elif defined(__aarch64__)
constexpr FloatMode kZeros = FloatMode{1} << 24;  // FPCR.FZ: both
#else
constexpr FloatMode kZeros = 0;
#endif

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

// See cpu_api.with_denormals.
Function WithDenormalsInCalls(const Function& function, bool kept) {
  return Function::FromPacked([function, kept](PackedArgs arguments, Any* result) {
    const DenormalsInBlock mode(kept);
    function.CallPacked(arguments, result);
  });
}

}  // namespace

FloatMode CurrentMode() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

void SetMode(FloatMode mode) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(mode));
#else
  (void)mode;
#endif
}

FloatMode WithDenormals(FloatMode mode, bool kept) {
  return kept ? mode & ~kZeros : mode | kZeros;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("heterocc.cpu.with_denormals", WithDenormalsInCalls);
}

}  // namespace heterocc::cpu
