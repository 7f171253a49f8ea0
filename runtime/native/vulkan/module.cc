#include "module.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "../common/kernel_arguments.h"
#include "../common/parallel.h"
#include "device_api.h"
#include "error.h"
#include "fault.h"

namespace heterocc::vulkan_plugin {
namespace {

namespace ffi = tvm::ffi;

constexpr char kBuildFunction[] = "heterocc_build";
constexpr size_t kMostBuilders = 8;  // threads

// The nearest half-precision number, ties to even; the bits of IEEE 754 binary16.
uint16_t HalfOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;                           // NaN
  if (bits >= 0x477ff000) return sign | 0x7c00;                          // 65520 and more round to infinity
  if (bits < 0x38800000) {                                               // below the smallest normal number
    const float steps = std::nearbyint(std::fabs(value) * 16777216.0f);  // of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(steps));
  }
  const uint32_t rounded = bits + 0xfff + (bits >> 13 & 1) - (uint32_t{112} << 23);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

// Writes a scalar, which the host code passes as an integer or a double, to its push constant.
void PutScalar(const Argument& argument, const TVMFFIAny& value, char* push) {
  if (!argument.real) {
    std::memcpy(push + argument.slot, &value.v_int64, argument.bits / 8);  // the low bytes
    return;
  }
  const double number =
      value.type_index == ffi::TypeIndex::kTVMFFIFloat ? value.v_float64 : static_cast<double>(value.v_int64);
  const auto single = static_cast<float>(number);
  const uint16_t half = HalfOf(single);
  const void* source = argument.bits == 64   ? static_cast<const void*>(&number)
                       : argument.bits == 32 ? static_cast<const void*>(&single)
                                             : static_cast<const void*>(&half);
  std::memcpy(push + argument.slot, source, argument.bits / 8);
}

}  // namespace

void Kernel::Build(int device) {
  Get(device);
}

std::shared_ptr<Kernel::Built> Kernel::Get(int device) {
  std::shared_ptr<Queue> queue = Queue::Of(device);
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Built>& found = built_[device];
  if (found != nullptr && found->queue == queue) return found;
  CheckDevice(queue->info());
  auto built = std::make_shared<Built>(queue);
  MakePipeline(*queue, &built->pipeline);
  found = std::move(built);  // replaces that of a lost device
  return found;
}

void Kernel::CheckDevice(const DeviceInfo& info) const {
  const auto lacks = [&](const std::string& what) {
    Throw(ErrorClass::kBuild, "kernel '" + name_ + "' cannot run on '" + info.name + "': " + what);
  };
  const auto over = [&](const char* what, uint64_t needs, uint64_t limit) {
    if (needs > limit) {
      lacks("it needs " + std::to_string(needs) + " " + what + ", the device has " + std::to_string(limit));
    }
  };
  const uint32_t missing = spec_.features & ~info.features;
  if ((missing & kNanFeatures) != 0) lacks("the device does not keep NaN and infinity");
  if (missing != 0) lacks("the device lacks " + FeatureNames(missing));
  over("storage buffers", spec_.buffers, info.storage_buffers);
  over("bytes of push constants", spec_.push_bytes, info.push_constants);
  over("bytes of shared memory", spec_.shared_bytes, info.shared_memory);
  over("work items in a group", uint64_t{spec_.group[0]} * spec_.group[1] * spec_.group[2], info.max_group);
  for (int i = 0; i < 3; ++i) over("work items in a row of a group", spec_.group[i], info.max_group_sizes[i]);
}

void Kernel::MakePipeline(Queue& queue, Pipeline* pipeline) const {
  const DeviceFunctions& vk = queue.device().vk();
  const VkDevice device = queue.device().handle();
  const std::string context = "kernel '" + name_ + "' on '" + queue.info().name + "'";
  pipeline->pushes = spec_.buffers <= queue.info().push_descriptors;
  std::vector<VkDescriptorSetLayoutBinding> bindings(spec_.buffers);
  for (uint32_t i = 0; i < spec_.buffers; ++i) {
    bindings[i].binding = i;
    bindings[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    bindings[i].descriptorCount = 1;
    bindings[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
  }
  VkDescriptorSetLayoutCreateInfo set{};
  set.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
  set.flags = pipeline->pushes ? VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR : 0;
  set.bindingCount = spec_.buffers;
  set.pBindings = bindings.data();
  Check(vk.vkCreateDescriptorSetLayout(device, &set, nullptr, &pipeline->set_layout), "vkCreateDescriptorSetLayout",
        context);
  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, (spec_.push_bytes + 3) / 4 * 4};
  VkPipelineLayoutCreateInfo layout{};
  layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  layout.setLayoutCount = 1;
  layout.pSetLayouts = &pipeline->set_layout;
  layout.pushConstantRangeCount = range.size == 0 ? 0 : 1;
  layout.pPushConstantRanges = &range;
  Check(vk.vkCreatePipelineLayout(device, &layout, nullptr, &pipeline->layout), "vkCreatePipelineLayout", context);

  VkShaderModuleCreateInfo code{};
  code.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  code.codeSize = spec_.words.size() * sizeof(uint32_t);
  code.pCode = spec_.words.data();
  VkComputePipelineCreateInfo create{};
  create.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  create.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  create.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  create.stage.pName = spec_.spirv.entry.c_str();
  create.layout = pipeline->layout;
  VkResult result = Faults::Global().BuildFails()
                        ? VK_ERROR_INVALID_SHADER_NV
                        : vk.vkCreateShaderModule(device, &code, nullptr, &create.stage.module);
  const char* call = "vkCreateShaderModule";
  if (result == VK_SUCCESS) {
    call = "vkCreateComputePipelines";
    result = vk.vkCreateComputePipelines(device, queue.cache().handle(), 1, &create, nullptr, &pipeline->handle);
    vk.vkDestroyShaderModule(device, create.stage.module, nullptr);
  }
  const bool memory = result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY;
  if (memory || result == VK_SUCCESS) {
    Check(result, call, context);
    queue.cache().Grown();
    return;
  }
  Throw(ErrorClass::kBuild, context + " does not build: " + call + " gave " + Describe(result));
}

Buffer* Kernel::BufferOf(const TVMFFIAny& argument, size_t place, const Queue& queue) const {
  if (argument.type_index != ffi::TypeIndex::kTVMFFIOpaquePtr || argument.v_ptr == nullptr) {
    Throw(ErrorClass::kModule, ArgumentName(name_, place) + " is not a buffer");
  }
  auto* buffer = static_cast<Buffer*>(argument.v_ptr);
  if (buffer->queue.get() != &queue) {
    const std::string whose = buffer->queue->Lost() ? "is of a device that was lost: load the bundle again"
                                                    : "is on '" + buffer->queue->info().name + "'";
    Throw(ErrorClass::kDevice, ArgumentName(name_, place) + " " + whose);
  }
  return buffer;
}

void Kernel::Launch(const TVMFFIAny* arguments, int32_t count) {
  RequireArgumentCount(name_, count, spec_.arguments.size() + spec_.launch.size());
  int64_t extents[kLaunchTags] = {1, 1, 1, 1, 1, 1, 0};
  for (size_t i = 0; i < spec_.launch.size(); ++i) {
    extents[spec_.launch[i]] = arguments[spec_.arguments.size() + i].v_int64;
  }
  const std::shared_ptr<Built> built = Get(VulkanDeviceAPI::CurrentDevice());
  Queue& queue = *built->queue;
  uint32_t groups[3];
  for (int i = 0; i < 3; ++i) {
    if (extents[i] <= 0) return;  // an empty tensor: nothing to compute
    const auto limit = static_cast<int64_t>(queue.info().max_group_counts[i]);
    if (extents[i] > limit) {
      Throw(ErrorClass::kDevice, "kernel '" + name_ + "' wants " + std::to_string(extents[i]) +
                                     " work groups in dimension " + std::to_string(i) + ", and '" + queue.info().name +
                                     "' takes " + std::to_string(limit));
    }
    groups[i] = static_cast<uint32_t>(extents[i]);
  }
  for (const int tag : spec_.launch) {
    const bool items = tag >= kFirstWorkItems && tag < kDynamicShared;
    if (items && extents[tag] != static_cast<int64_t>(spec_.group[tag - kFirstWorkItems])) {
      Throw(ErrorClass::kModule, "kernel '" + name_ + "' is for work groups of " + Extent(spec_.group, 3) +
                                     " and was launched with another size");
    }
  }
  if (extents[kDynamicShared] > static_cast<int64_t>(spec_.shared_bytes)) {
    Throw(ErrorClass::kModule, "kernel '" + name_ + "' was launched with more shared memory than it has");
  }
  // Scratch, so that a launch allocates nothing.
  thread_local std::vector<Access> bindings;
  thread_local std::vector<char> push;
  bindings.assign(spec_.buffers, Access{nullptr, true});
  push.assign((spec_.push_bytes + 3) / 4 * 4, '\0');
  for (size_t i = 0; i < spec_.arguments.size(); ++i) {
    const Argument& argument = spec_.arguments[i];
    if (argument.buffer) {
      bindings[argument.slot] = Access{BufferOf(arguments[i], i, queue), spec_.spirv.writable[argument.slot]};
    } else {
      PutScalar(argument, arguments[i], push.data());
    }
  }
  if (Faults::Global().LaunchFails()) Check(VK_ERROR_UNKNOWN, "vkCmdDispatch", "kernel '" + name_ + "'");
  queue.Dispatch(&built->pipeline, bindings, push.data(), static_cast<uint32_t>(push.size()), groups);
}

VulkanModule::VulkanModule(ffi::Bytes bytes) : bytes_(std::move(bytes)) {
  for (auto& [name, spec] : ParseModule(bytes_.data(), bytes_.size())) {
    kernels_.emplace(name, std::make_unique<Kernel>(name, std::move(spec)));
  }
}

ffi::String VulkanModule::InspectSource(const ffi::String&) const {
  std::string text;
  for (const auto& [name, kernel] : kernels_) {
    const KernelSpec& spec = kernel->spec();
    text += name + ": " + std::to_string(spec.buffers) + " buffers, " + std::to_string(spec.push_bytes) +
            " bytes of push constants, groups of " + Extent(spec.group, 3) + ", " + std::to_string(spec.shared_bytes) +
            " bytes shared, needs " + (spec.features == 0 ? "nothing" : FeatureNames(spec.features)) + ", " +
            std::to_string(spec.words.size()) + " words of SPIR-V\n";
  }
  return text;
}

int64_t VulkanModule::BuildAll(int device) {
  std::vector<Kernel*> kernels;
  for (auto& [name, kernel] : kernels_) kernels.push_back(kernel.get());
  // Drivers take milliseconds per kernel, on one core.
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  InParallel(kernels.size(), std::min(cores, kMostBuilders), [&](size_t i) { kernels[i]->Build(device); });
  Queue::Of(device)->cache().SaveIfGrown();
  return static_cast<int64_t>(kernels_.size());
}

ffi::Optional<ffi::Function> VulkanModule::GetFunction(const ffi::String& name) {
  auto self = ffi::GetObjectPtr<ffi::Object>(this);
  if (std::string(name) == kBuildFunction) {
    return ffi::Function::FromTyped([this, self](int64_t device) { return BuildAll(static_cast<int>(device)); });
  }
  const auto found = kernels_.find(std::string(name));
  if (found == kernels_.end()) return std::nullopt;
  Kernel* kernel = found->second.get();
  return ffi::Function::FromPacked([kernel, self](const ffi::AnyView* arguments, int32_t count, ffi::Any*) {
    kernel->Launch(reinterpret_cast<const TVMFFIAny*>(arguments), count);
  });
}

}  // namespace heterocc::vulkan_plugin
