// What generated CUDA source needs to be compiled for the host: see driver.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

struct EmulatedDim {
  unsigned x, y, z;
};
extern "C" {
extern EmulatedDim emulated_thread, emulated_block, emulated_block_size, emulated_grid_size;
void emulated_barrier(int place);
}

#define threadIdx emulated_thread
#define blockIdx emulated_block
#define blockDim emulated_block_size
#define gridDim emulated_grid_size
#define __syncthreads() emulated_barrier(__LINE__)
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)
#define __align__(bytes) alignas(bytes)
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF static_cast<double>(INFINITY)
#define CUDART_NAN static_cast<double>(NAN)

#define VECTORS(type, name)                                       \
  struct alignas(2 * sizeof(type)) name##2 {                      \
    type x, y;                                                    \
  };                                                              \
  struct alignas(4 * sizeof(type)) name##4 {                      \
    type x, y, z, w;                                              \
  };                                                              \
  inline name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                \
  }                                                               \
  inline name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                          \
  }
VECTORS(float, float)
VECTORS(int, int)
VECTORS(unsigned, uint)
VECTORS(double, double)

using std::max;
using std::min;
// CUDA's return the operand that is not NaN, in either position.
inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline double max(double a, double b) {
  return std::fmax(a, b);
}
inline double min(double a, double b) {
  return std::fmin(a, b);
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}
template <typename To, typename From>
inline To SameBits(From from) {
  static_assert(sizeof(To) == sizeof(From), "numbers of different sizes");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __int_as_float(int32_t bits) {
  return SameBits<float>(bits);
}
inline double __longlong_as_double(int64_t bits) {
  return SameBits<double>(bits);
}
inline int32_t __float_as_int(float number) {
  return SameBits<int32_t>(number);
}
inline uint32_t __float_as_uint(float number) {
  return SameBits<uint32_t>(number);
}
inline int64_t __double_as_longlong(double number) {
  return SameBits<int64_t>(number);
}
// nvcc takes `__shared__ alignas(64)`; a host compiler does not take `static alignas(64)`.
#define alignas(bytes) __attribute__((aligned(bytes)))
