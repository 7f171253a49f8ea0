#include "spirv.h"

#include <unordered_map>
#include <unordered_set>

#include "error.h"
#include "platform.h"

namespace heterocc::vulkan_plugin {
namespace {

constexpr uint32_t kMagic = 0x07230203;
constexpr size_t kHeaderWords = 5;
constexpr uint32_t kMostIds = 4194303;  // a universal limit of SPIR-V; drivers allocate memory for each id

// Numbers of the SPIR-V specification.
enum Op : uint32_t {
  kOpEntryPoint = 15,
  kOpExecutionMode = 16,
  kOpCapability = 17,
  kOpTypePointer = 32,
  kOpFunction = 54,
  kOpFunctionEnd = 56,
  kOpVariable = 59,
  kOpDecorate = 71,
  kOpMemberDecorate = 72,
};
enum Number : uint32_t {
  kModelGlCompute = 5,
  kModeLocalSize = 17,
  kModeSignedZeroInfNanPreserve = 4461,
  kDecorationNonWritable = 24,
  kDecorationBinding = 33,
  kDecorationDescriptorSet = 34,
  kStorageBufferClass = 12,
};

[[noreturn]] void Damaged(const std::string& what) {
  Throw(ErrorClass::kModule, "the kernel's SPIR-V is damaged: " + what);
}

void AddCapability(uint32_t capability, SpirvInfo* info) {
  switch (capability) {
    case 0:     // Matrix
    case 1:     // Shader
    case 61:    // GroupNonUniform
    case 4466:  // SignedZeroInfNanPreserve; the execution mode has the width
      return;
    case 9:
      info->features |= kFloat16;
      return;
    case 10:
      info->features |= kFloat64;
      return;
    case 11:
      info->features |= kInt64;
      return;
    case 22:
      info->features |= kInt16;
      return;
    case 39:
      info->features |= kInt8;
      return;
    case 63:  // GroupNonUniformArithmetic, Shuffle, ShuffleRelative
    case 65:
    case 66:
      info->features |= kSubgroups;
      return;
    case 4433:
      info->features |= kStorage16;
      return;
    case 4448:
      info->features |= kStorage8;
      return;
    default:
      Throw(ErrorClass::kModule,
            "the kernel needs SPIR-V capability " + std::to_string(capability) + ", which is not supported");
  }
}

Feature NanFeature(uint32_t bits) {
  switch (bits) {
    case 16:
      return kNan16;
    case 32:
      return kNan32;
    case 64:
      return kNan64;
    default:
      Damaged("floats of " + std::to_string(bits) + " bits");
  }
}

class ModuleScan {
 public:
  ModuleScan(const std::vector<uint32_t>& words, uint32_t bindings, SpirvInfo* info)
      : words_(words), bindings_(bindings), info_(info) {}

  void Read() {
    if (words_.size() < kHeaderWords || words_[0] != kMagic) Damaged("it does not begin as SPIR-V does");
    if (words_[3] == 0 || words_[3] > kMostIds) Damaged(std::to_string(words_[3]) + " ids");
    bool inside = false;  // a function
    for (size_t at = kHeaderWords; at < words_.size();) {
      const uint32_t length = words_[at] >> 16;
      const uint32_t op = words_[at] & 0xffff;
      if (length == 0 || length > words_.size() - at) Damaged("an instruction that is longer than the module");
      const uint32_t* operands = &words_[at] + 1;
      if (op == kOpFunction) {
        if (inside || length != 5) Damaged("a function that does not begin as one");
        if (operands[1] >= words_[3] || !functions_.insert(operands[1]).second) Damaged("a function's id");
        inside = true;
      } else if (op == kOpFunctionEnd) {
        if (!inside) Damaged("an end without a function");
        inside = false;
      } else if (functions_.empty()) {
        Instruction(op, operands, length - 1);
      }
      at += length;
    }
    if (inside) Damaged("a function without an end");
    if (entries_ != 1) Damaged("it has not exactly one compute shader");
    if (functions_.count(entry_) == 0) Damaged("an entry point that is not a function");
    MarkWritable();
  }

 private:
  void Instruction(uint32_t op, const uint32_t* operands, uint32_t count) {
    switch (op) {
      case kOpCapability:
        if (count == 1) AddCapability(operands[0], info_);
        break;
      case kOpEntryPoint:
        if (count < 3) Damaged("an entry point without a name");
        ++entries_;
        if (operands[0] != kModelGlCompute) Damaged("a shader that does not compute");
        entry_ = operands[1];
        info_->entry = Text(operands + 2, count - 2);
        break;
      case kOpExecutionMode:
        if (count == 5 && operands[1] == kModeLocalSize) {
          for (int i = 0; i < 3; ++i) info_->group[i] = operands[2 + i];
        }
        if (count == 3 && operands[1] == kModeSignedZeroInfNanPreserve) info_->features |= NanFeature(operands[2]);
        break;
      case kOpTypePointer:
        if (count == 3) pointee_[operands[0]] = operands[2];
        break;
      case kOpVariable:
        if (count >= 3 && operands[2] == kStorageBufferClass) type_of_buffer_[operands[1]] = operands[0];
        break;
      case kOpDecorate:
        if (count >= 2) Decorate(operands, count);
        break;
      case kOpMemberDecorate:
        if (count == 3 && operands[1] == 0 && operands[2] == kDecorationNonWritable) read_only_.insert(operands[0]);
        break;
      default:
        break;
    }
  }

  void Decorate(const uint32_t* operands, uint32_t count) {
    if (operands[1] == kDecorationNonWritable) read_only_.insert(operands[0]);
    if (count < 3) return;
    if (operands[1] == kDecorationBinding) binding_[operands[0]] = operands[2];
    if (operands[1] == kDecorationDescriptorSet && operands[2] != 0) Damaged("a buffer outside descriptor set 0");
  }

  // A literal string: UTF-8, four bytes a word, the last one zero.
  static std::string Text(const uint32_t* words, uint32_t count) {
    std::string text;
    for (uint32_t i = 0; i < count; ++i) {
      for (int byte = 0; byte < 4; ++byte) {
        const char c = static_cast<char>(words[i] >> (8 * byte) & 0xff);
        if (c == '\0') return text;
        text += c;
      }
    }
    Damaged("a name without an end");
  }

  void MarkWritable() {
    info_->writable.assign(bindings_, false);
    for (const auto& [variable, type] : type_of_buffer_) {
      const auto binding = binding_.find(variable);
      if (binding == binding_.end() || binding->second >= bindings_) {
        Damaged("a buffer that the host code does not pass");
      }
      const auto structure = pointee_.find(type);
      const bool reads =
          read_only_.count(variable) != 0 || (structure != pointee_.end() && read_only_.count(structure->second) != 0);
      if (!reads) info_->writable[binding->second] = true;
    }
  }

  const std::vector<uint32_t>& words_;
  const uint32_t bindings_;
  SpirvInfo* const info_;
  int entries_ = 0;
  uint32_t entry_ = 0;  // the entry point's function
  std::unordered_set<uint32_t> functions_;
  std::unordered_map<uint32_t, uint32_t> pointee_;         // pointer type → type
  std::unordered_map<uint32_t, uint32_t> type_of_buffer_;  // variable → pointer type
  std::unordered_map<uint32_t, uint32_t> binding_;         // variable → binding
  std::unordered_set<uint32_t> read_only_;                 // variables and structures
};

}  // namespace

SpirvInfo ReadSpirv(const std::vector<uint32_t>& words, uint32_t bindings) {
  SpirvInfo info;
  ModuleScan(words, bindings, &info).Read();
  return info;
}

}  // namespace heterocc::vulkan_plugin
