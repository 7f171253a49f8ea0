#include "binary_package.h"

#include "../common/reader.h"

namespace heterocc::opencl_plugin {
namespace {

constexpr char kMagic[] = "HCLB";
constexpr uint32_t kVersion = 1;

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

Binaries ParseBinaries(const char* data, size_t size) {
  Reader<uint64_t> in("the package of OpenCL binaries", data, size);
  in.Header(kMagic, kVersion);
  Binaries binaries;
  for (auto left = in.Number<uint32_t>(); left > 0; --left) {
    common::Digest key;
    in.Copy(key.data(), key.size());
    if (!binaries.emplace(key, in.Text()).second) in.Damaged("two for one program");
  }
  in.End();
  return binaries;
}

std::string PackBinaries(const Binaries& binaries) {
  std::string out(kMagic);
  Put(&out, kVersion);
  Put(&out, static_cast<uint32_t>(binaries.size()));
  for (const auto& [key, binary] : binaries) {
    out.append(reinterpret_cast<const char*>(key.data()), key.size());
    Put(&out, static_cast<uint64_t>(binary.size()));
    out += binary;
  }
  return out;
}

}  // namespace heterocc::opencl_plugin
