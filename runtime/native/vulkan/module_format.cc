#include "module_format.h"

#include <tvm/ffi/c_api.h>

#include <algorithm>
#include <cstring>

#include "error.h"
#include "platform.h"

namespace heterocc::vulkan_plugin {
namespace {

constexpr uint32_t kVersion = 1;
constexpr uint32_t kMaxArguments = 1024;      // far over what any device takes
constexpr uint32_t kMaxPushBytes = 64 << 10;  // the same
constexpr size_t kSmallestKernel = 4 * 12;    // bytes of a kernel with nothing in it

[[noreturn]] void Damaged(const std::string& what) {
  Throw(ErrorClass::kModule, "the Vulkan module is damaged: " + what);
}

class Reader {
 public:
  Reader(const char* data, size_t size) : at_(data), end_(data + size) {}

  uint8_t Byte() {
    Need(1);
    return static_cast<uint8_t>(*at_++);
  }

  uint32_t Number() {
    uint32_t value;
    Need(sizeof value);
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string Text() {
    const uint32_t size = Number();
    Need(size);
    std::string text(at_, size);
    at_ += size;
    return text;
  }

  // A count of items of at least `item` bytes each.
  uint32_t Count(size_t item, uint32_t most = UINT32_MAX) {
    const uint32_t count = Number();
    if (count > static_cast<size_t>(end_ - at_) / item || count > most) {
      Damaged("a count of " + std::to_string(count));
    }
    return count;
  }

  std::vector<uint32_t> Words() {
    std::vector<uint32_t> words(Count(sizeof(uint32_t)));
    if (!words.empty()) std::memcpy(words.data(), at_, words.size() * sizeof(uint32_t));
    at_ += words.size() * sizeof(uint32_t);
    return words;
  }

  bool AtEnd() const { return at_ == end_; }

 private:
  void Need(uint64_t size) {
    if (static_cast<uint64_t>(end_ - at_) < size) Throw(ErrorClass::kModule, "the Vulkan module is cut short");
  }

  const char* at_;
  const char* end_;
};

int LaunchTag(const std::string& tag) {
  static constexpr const char* kTags[] = {"blockIdx.x",
                                          "blockIdx.y",
                                          "blockIdx.z",
                                          "threadIdx.x",
                                          "threadIdx.y",
                                          "threadIdx.z",
                                          "tirx.use_dyn_shared_memory"};
  for (int i = 0; i < 7; ++i) {
    if (tag == kTags[i]) return i;
  }
  Damaged("an unknown launch tag");
}

Argument ReadArgument(Reader& in, const KernelSpec& kernel, std::vector<bool>* bound) {
  const uint8_t kind = in.Byte();
  const uint8_t code = in.Byte();
  const uint8_t bits = in.Byte();
  if (in.Byte() != 0 || kind > 1) Damaged("an argument of an unknown kind");
  const Argument argument{kind == 0, code == kDLFloat, bits, in.Number()};
  if (argument.buffer) {
    if (argument.slot >= kernel.buffers || (*bound)[argument.slot]) Damaged("a binding out of range, or given twice");
    (*bound)[argument.slot] = true;
    return argument;
  }
  const bool integer = code == kDLInt || code == kDLUInt || code == kDLBool;
  const bool whole = bits == 8 || bits == 16 || bits == 32 || bits == 64;
  if (!(integer && whole) && !(argument.real && whole && bits != 8)) {
    Throw(ErrorClass::kModule, "a kernel argument has a type that Vulkan kernels cannot take");
  }
  const uint32_t bytes = bits / 8;
  if (argument.slot % bytes != 0 || argument.slot > kernel.push_bytes || kernel.push_bytes - argument.slot < bytes) {
    Damaged("a push constant outside its block");
  }
  return argument;
}

KernelSpec ReadKernel(Reader& in) {
  KernelSpec kernel;
  kernel.buffers = in.Number();
  kernel.push_bytes = in.Number();
  if (kernel.buffers > kMaxArguments || kernel.push_bytes > kMaxPushBytes) Damaged("more arguments than there can be");
  std::vector<bool> bound(kernel.buffers, false);
  for (uint32_t left = in.Count(8, kMaxArguments); left > 0; --left) {
    kernel.arguments.push_back(ReadArgument(in, kernel, &bound));
  }
  if (std::count(bound.begin(), bound.end(), false) != 0) Damaged("a binding without an argument");
  for (uint32_t left = in.Count(4, 7); left > 0; --left) {
    const int tag = LaunchTag(in.Text());
    if (std::count(kernel.launch.begin(), kernel.launch.end(), tag) != 0) Damaged("a launch tag given twice");
    kernel.launch.push_back(tag);
  }
  for (uint32_t& extent : kernel.group) {
    extent = in.Number();
    if (extent == 0 || extent > 1u << 16) Damaged("a work group without work items, or with too many");
  }
  kernel.shared_bytes = in.Number();
  kernel.features = in.Number();
  if ((kernel.features & ~kAllFeatures) != 0) {
    Throw(ErrorClass::kModule, "a kernel needs features that this version does not know");
  }
  kernel.words = in.Words();
  kernel.spirv = ReadSpirv(kernel.words, kernel.buffers);
  kernel.features |= kernel.spirv.features;
  const uint32_t* group = kernel.spirv.group;
  if (group[0] != 0 && !std::equal(group, group + 3, kernel.group)) Damaged("two sizes of one work group");
  return kernel;
}

}  // namespace

std::map<std::string, KernelSpec> ParseModule(const char* data, size_t size) {
  if (size < 4 || std::memcmp(data, "HCVK", 4) != 0) Throw(ErrorClass::kModule, "these bytes are no Vulkan module");
  Reader in(data + 4, size - 4);
  const uint32_t version = in.Number();
  if (version != kVersion) {
    Throw(ErrorClass::kModule, "the Vulkan module is of version " + std::to_string(version) +
                                   ", and this heterocc reads " + std::to_string(kVersion));
  }
  std::map<std::string, KernelSpec> kernels;
  for (uint32_t left = in.Count(kSmallestKernel); left > 0; --left) {
    const std::string name = in.Text();
    if (name.empty()) Damaged("a kernel without a name");
    if (!kernels.emplace(name, ReadKernel(in)).second) Damaged("two kernels have one name");
  }
  if (!in.AtEnd()) Damaged("bytes after its end");
  return kernels;
}

}  // namespace heterocc::vulkan_plugin
