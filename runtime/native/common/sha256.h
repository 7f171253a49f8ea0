// SHA-256 (FIPS 180-4). Threading: stateless.
#ifndef HETEROCC_COMMON_SHA256_H_
#define HETEROCC_COMMON_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace heterocc::common {

using Digest = std::array<uint8_t, 32>;

Digest Sha256(const void* data, size_t size);

// 64 lower-case hexadecimal digits.
std::string Hex(const Digest& digest);

}  // namespace heterocc::common

#endif  // HETEROCC_COMMON_SHA256_H_
