#include "processor.h"

#include <cstdint>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace heterocc::cpu {
namespace {

#if defined(__x86_64__)

// The parts of a processor's state that the system must keep for a flag: bits of the register XCR0.
constexpr uint64_t kVectors = 0x6, kWideVectors = 0xe6, kMatrices = 0x60000;

enum Register { kEax, kEbx, kEcx, kEdx };

struct Flag {
  uint32_t leaf, subleaf;
  Register where;
  int bit;
  const char* name;
  uint64_t state = 0;
};

// Sources: Intel's Software Developer's Manual, volume 2, CPUID; AMD's manual, volume 3, appendix E. Linux's names.
constexpr Flag kFlags[] = {
    {1, 0, kEdx, 8, "cx8"},
    {1, 0, kEdx, 15, "cmov"},
    {1, 0, kEdx, 23, "mmx"},
    {1, 0, kEdx, 24, "fxsr"},
    {1, 0, kEdx, 25, "sse"},
    {1, 0, kEdx, 26, "sse2"},
    {1, 0, kEcx, 0, "pni"},
    {1, 0, kEcx, 1, "pclmulqdq"},
    {1, 0, kEcx, 9, "ssse3"},
    {1, 0, kEcx, 12, "fma", kVectors},
    {1, 0, kEcx, 13, "cx16"},
    {1, 0, kEcx, 19, "sse4_1"},
    {1, 0, kEcx, 20, "sse4_2"},
    {1, 0, kEcx, 22, "movbe"},
    {1, 0, kEcx, 23, "popcnt"},
    {1, 0, kEcx, 25, "aes"},
    {1, 0, kEcx, 26, "xsave"},
    {1, 0, kEcx, 28, "avx", kVectors},
    {1, 0, kEcx, 29, "f16c", kVectors},
    {1, 0, kEcx, 30, "rdrand"},
    {7, 0, kEbx, 0, "fsgsbase"},
    {7, 0, kEbx, 3, "bmi1"},
    {7, 0, kEbx, 5, "avx2", kVectors},
    {7, 0, kEbx, 8, "bmi2"},
    {7, 0, kEbx, 16, "avx512f", kWideVectors},
    {7, 0, kEbx, 17, "avx512dq", kWideVectors},
    {7, 0, kEbx, 18, "rdseed"},
    {7, 0, kEbx, 19, "adx"},
    {7, 0, kEbx, 21, "avx512ifma", kWideVectors},
    {7, 0, kEbx, 23, "clflushopt"},
    {7, 0, kEbx, 24, "clwb"},
    {7, 0, kEbx, 28, "avx512cd", kWideVectors},
    {7, 0, kEbx, 29, "sha_ni"},
    {7, 0, kEbx, 30, "avx512bw", kWideVectors},
    {7, 0, kEbx, 31, "avx512vl", kWideVectors},
    {7, 0, kEcx, 1, "avx512vbmi", kWideVectors},
    {7, 0, kEcx, 5, "waitpkg"},
    {7, 0, kEcx, 6, "avx512_vbmi2", kWideVectors},
    {7, 0, kEcx, 8, "gfni"},
    {7, 0, kEcx, 9, "vaes", kVectors},
    {7, 0, kEcx, 10, "vpclmulqdq", kVectors},
    {7, 0, kEcx, 11, "avx512_vnni", kWideVectors},
    {7, 0, kEcx, 12, "avx512_bitalg", kWideVectors},
    {7, 0, kEcx, 14, "avx512_vpopcntdq", kWideVectors},
    {7, 0, kEcx, 22, "rdpid"},
    {7, 0, kEcx, 27, "movdiri"},
    {7, 0, kEcx, 28, "movdir64b"},
    {7, 0, kEdx, 8, "avx512_vp2intersect", kWideVectors},
    {7, 0, kEdx, 14, "serialize"},
    {7, 0, kEdx, 22, "amx_bf16", kMatrices},
    {7, 0, kEdx, 23, "avx512_fp16", kWideVectors},
    {7, 0, kEdx, 24, "amx_tile", kMatrices},
    {7, 0, kEdx, 25, "amx_int8", kMatrices},
    {7, 1, kEax, 4, "avx_vnni", kVectors},
    {7, 1, kEax, 5, "avx512_bf16", kWideVectors},
    {7, 1, kEax, 21, "amx_fp16", kMatrices},
    {7, 1, kEax, 23, "avx_ifma", kVectors},
    {7, 1, kEdx, 4, "avx_vnni_int8", kVectors},
    {7, 1, kEdx, 5, "avx_ne_convert", kVectors},
    {7, 1, kEdx, 8, "amx_complex", kMatrices},
    {7, 1, kEdx, 10, "avx_vnni_int16", kVectors},
    {7, 1, kEdx, 19, "avx10", kWideVectors},
    {13, 1, kEax, 0, "xsaveopt"},
    {13, 1, kEax, 1, "xsavec"},
    {0x80000001, 0, kEcx, 0, "lahf_lm"},
    {0x80000001, 0, kEcx, 5, "abm"},
    {0x80000001, 0, kEcx, 6, "sse4a"},
    {0x80000001, 0, kEcx, 8, "3dnowprefetch"},
    {0x80000001, 0, kEcx, 11, "xop", kVectors},
    {0x80000001, 0, kEcx, 16, "fma4", kVectors},
    {0x80000001, 0, kEcx, 21, "tbm"},
};

struct Answer {
  uint32_t registers[4] = {0, 0, 0, 0};
};

// What the processor says of itself; zeros for a leaf that it does not have.
Answer Ask(uint32_t leaf, uint32_t subleaf) {
  Answer answer;
  uint32_t* const r = answer.registers;
  if (subleaf > 0 && leaf == 7) {
    __get_cpuid_count(7, 0, &r[kEax], &r[kEbx], &r[kEcx], &r[kEdx]);
    if (r[kEax] < subleaf) return Answer();
  }
  if (!__get_cpuid_count(leaf, subleaf, &r[kEax], &r[kEbx], &r[kEcx], &r[kEdx])) return Answer();
  return answer;
}

// The state that the system keeps between the turns of a thread.
uint64_t KeptState() {
  if (!(Ask(1, 0).registers[kEcx] >> 27 & 1)) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

std::string Text(const uint32_t* words, int count) {
  const std::string text(reinterpret_cast<const char*>(words), 4 * static_cast<size_t>(count));
  const size_t first = text.find_first_not_of(' ');
  const std::string found = first == std::string::npos ? "" : text.substr(first).c_str();
  return found.substr(0, found.find_last_not_of(' ') + 1);
}

std::string Describe() {
  const Answer vendor = Ask(0, 0), version = Ask(1, 0);
  const uint32_t letters[] = {vendor.registers[kEbx], vendor.registers[kEdx], vendor.registers[kEcx]};
  const uint32_t base = version.registers[kEax] >> 8 & 0xf, more = version.registers[kEax] >> 20 & 0xff;
  uint32_t name[12] = {};
  for (uint32_t part = 0; part < 3; ++part) {
    std::memcpy(name + 4 * part, Ask(0x80000002 + part, 0).registers, 16);
  }
  const uint64_t kept = KeptState();
  std::string flags;
  for (const Flag& flag : kFlags) {
    const bool has = Ask(flag.leaf, flag.subleaf).registers[flag.where] >> flag.bit & 1;
    if (has && (kept & flag.state) == flag.state) flags += std::string(" ") + flag.name;
  }
  return "vendor_id : " + Text(letters, 3) + "\ncpu family : " + std::to_string(base == 15 ? base + more : base) +
         "\nmodel name : " + Text(name, 12) + "\nflags :" + flags + "\n";
}

#elif defined(__aarch64__)

// Linux, arch/arm64/include/uapi/asm/hwcap.h: the names of the bits of AT_HWCAP and AT_HWCAP2, in order.
constexpr const char* kFirst[] = {"fp",      "asimd", "evtstrm", "aes",   "pmull",    "sha1",   "sha2", "crc32",
                                  "atomics", "fphp",  "asimdhp", "cpuid", "asimdrdm", "jscvt",  "fcma", "lrcpc",
                                  "dcpop",   "sha3",  "sm3",     "sm4",   "asimddp",  "sha512", "sve",  "asimdfhm",
                                  "dit",     "uscat", "ilrcpc",  "flagm", "ssbs",     "sb",     "paca", "pacg"};
constexpr const char* kSecond[] = {
    "dcpodp",    "sve2",      "sveaes",   "svepmull",  "svebitperm", "svesha3",   "svesm4",  "flagm2",
    "frint",     "svei8mm",   "svef32mm", "svef64mm",  "svebf16",    "i8mm",      "bf16",    "dgh",
    "rng",       "bti",       "mte",      "ecv",       "afp",        "rpres",     "mte3",    "sme",
    "smei16i64", "smef64f64", "smei8i32", "smef16f32", "smeb16f32",  "smef32f32", "smefa64", "wfxt",
    "ebf16",     "sveebf16",  "cssc",     "rprfm",     "sve2p1",     "sme2"};

std::string Describe() {
  std::string flags;
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  int bit = 0;
  for (const char* name : kFirst) {
    if (first >> bit++ & 1) flags += std::string(" ") + name;
  }
  bit = 0;
  for (const char* name : kSecond) {
    if (second >> bit++ & 1) flags += std::string(" ") + name;
  }
  return "Features :" + flags + "\n";
}

#else

std::string Describe() {
  return "";
}

#endif

}  // namespace

const std::string& Processor() {
  static const std::string text = Describe();
  return text;
}

}  // namespace heterocc::cpu
