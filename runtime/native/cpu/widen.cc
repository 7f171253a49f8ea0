#include <algorithm>
#include <cstring>

#include "arrange.h"
#include "thread_pool.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace heterocc::cpu {
namespace {

// Numbers that are worth a task.
constexpr int64_t kTask = 1 << 15;

float FromBits(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

// A number of 11 bits and an exponent of 5 (IEEE 754 binary16).
float FromHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  if (rest >= 0x7c00) return FromBits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return FromBits(sign | ((rest << 13) + (112u << 23)));
  const float small = static_cast<float>(rest) * 0x1p-24f;  // zero or subnormal
  return sign != 0 ? -small : small;
}

using Converter = void (*)(const uint16_t*, float*, int64_t);

void WidenHalf(const uint16_t* source, float* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = FromHalf(source[i]);
}

void WidenBfloat(const uint16_t* source, float* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = FromBits(static_cast<uint32_t>(source[i]) << 16);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx,f16c"))) void WidenHalfF16c(const uint16_t* source, float* result, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(result + i, _mm256_cvtph_ps(halves));
  }
  WidenHalf(source + i, result + i, count - i);
}

Converter HalfConverter() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has ? WidenHalfF16c : WidenHalf;
}
#else
Converter HalfConverter() {
  return WidenHalf;
}
#endif

struct Work {
  const uint16_t* source;
  float* result;
  int64_t count;
  Converter convert;
};

int RunTask(int number, RegionSize* size, void* closure) {
  const Work& work = *static_cast<const Work*>(closure);
  const int64_t first = work.count * number / size->tasks, last = work.count * (number + 1) / size->tasks;
  work.convert(work.source + first, work.result + first, last - first);
  return 0;
}

}  // namespace

void Widen(const uint16_t* source, float* result, int64_t count, Format format, int threads) {
  Work work{source, result, count, format == Format::kBfloat16 ? WidenBfloat : HalfConverter()};
  const auto tasks = static_cast<int>(std::min<int64_t>(std::max<int64_t>(count / kTask, 1), int64_t{16} * threads));
  RunRegion(RunTask, &work, tasks, threads);
}

}  // namespace heterocc::cpu
