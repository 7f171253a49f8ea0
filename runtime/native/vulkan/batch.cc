#include "batch.h"

#include "error.h"

namespace heterocc::vulkan_plugin {
namespace {

constexpr uint32_t kSetsPerPool = 128;
constexpr uint32_t kBuffersPerPool = 1024;
constexpr VkPipelineStageFlags kWorkStages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
constexpr VkAccessFlags kWrites = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;

}  // namespace

void RecordBarrier(const DeviceFunctions& vk, VkCommandBuffer commands) {
  VkMemoryBarrier barrier{};
  barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  barrier.srcAccessMask = kWrites;
  barrier.dstAccessMask = kWrites | VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT;
  vk.vkCmdPipelineBarrier(commands, kWorkStages, kWorkStages, 0, 1, &barrier, 0, nullptr, 0, nullptr);
}

Batch::Batch(const LogicalDevice& device) : device_(device) {
  const DeviceFunctions& vk = device.vk();
  VkCommandPoolCreateInfo pool{};
  pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  pool.flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT;
  pool.queueFamilyIndex = device.info().queue_family;
  Check(vk.vkCreateCommandPool(device.handle(), &pool, nullptr, &pool_), "vkCreateCommandPool");
  VkCommandBufferAllocateInfo allocate{};
  allocate.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  allocate.commandPool = pool_;
  allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  allocate.commandBufferCount = 1;
  const VkResult result = vk.vkAllocateCommandBuffers(device.handle(), &allocate, &commands_);
  if (result != VK_SUCCESS) vk.vkDestroyCommandPool(device.handle(), pool_, nullptr);
  Check(result, "vkAllocateCommandBuffers");
}

Batch::~Batch() {
  const DeviceFunctions& vk = device_.vk();
  vk.vkDestroyCommandPool(device_.handle(), pool_, nullptr);
  for (VkDescriptorPool pool : descriptor_pools_) vk.vkDestroyDescriptorPool(device_.handle(), pool, nullptr);
  vk.vkDestroyQueryPool(device_.handle(), queries_, nullptr);
}

void Batch::Begin(bool timestamps) {
  const DeviceFunctions& vk = device_.vk();
  Check(vk.vkResetCommandPool(device_.handle(), pool_, 0), "vkResetCommandPool");
  for (VkDescriptorPool pool : descriptor_pools_) vk.vkResetDescriptorPool(device_.handle(), pool, 0);
  open_pool_ = 0;
  count = 0;
  timed_.clear();
  timestamps_ = timestamps && device_.info().timestamp_period > 0;
  if (timestamps_ && queries_ == VK_NULL_HANDLE) {
    VkQueryPoolCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = 2 * kMostCommands;
    Check(vk.vkCreateQueryPool(device_.handle(), &info, nullptr, &queries_), "vkCreateQueryPool");
  }
  VkCommandBufferBeginInfo begin{};
  begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  Check(vk.vkBeginCommandBuffer(commands_, &begin), "vkBeginCommandBuffer");
  if (timestamps_) vk.vkCmdResetQueryPool(commands_, queries_, 0, 2 * kMostCommands);
}

VkResult Batch::End() {
  const DeviceFunctions& vk = device_.vk();
  VkMemoryBarrier barrier{};
  barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  barrier.srcAccessMask = kWrites;
  barrier.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
  vk.vkCmdPipelineBarrier(commands_, kWorkStages, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, nullptr, 0, nullptr);
  return vk.vkEndCommandBuffer(commands_);
}

VkDescriptorSet Batch::NewSet(VkDescriptorSetLayout layout) {
  const DeviceFunctions& vk = device_.vk();
  for (;; ++open_pool_) {
    const bool fresh = open_pool_ == descriptor_pools_.size();
    if (fresh) {
      const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kBuffersPerPool};
      VkDescriptorPoolCreateInfo info{};
      info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
      info.maxSets = kSetsPerPool;
      info.poolSizeCount = 1;
      info.pPoolSizes = &size;
      VkDescriptorPool pool = VK_NULL_HANDLE;
      Check(vk.vkCreateDescriptorPool(device_.handle(), &info, nullptr, &pool), "vkCreateDescriptorPool");
      descriptor_pools_.push_back(pool);
    }
    VkDescriptorSetAllocateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO;
    info.descriptorPool = descriptor_pools_[open_pool_];
    info.descriptorSetCount = 1;
    info.pSetLayouts = &layout;
    VkDescriptorSet set = VK_NULL_HANDLE;
    const VkResult result = vk.vkAllocateDescriptorSets(device_.handle(), &info, &set);
    if (result == VK_SUCCESS) return set;
    const bool full = result == VK_ERROR_OUT_OF_POOL_MEMORY || result == VK_ERROR_FRAGMENTED_POOL;
    if (fresh || !full) Check(result, "vkAllocateDescriptorSets");
  }
}

void Batch::StartTimer(const TimedFor& timed) {
  if (!timestamps_ || timed.owner == 0) return;
  const auto query = static_cast<uint32_t>(2 * timed_.size());
  device_.vk().vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, queries_, query);
}

void Batch::StopTimer(const TimedFor& timed) {
  if (!timestamps_ || timed.owner == 0) return;
  const auto query = static_cast<uint32_t>(2 * timed_.size() + 1);
  device_.vk().vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, queries_, query);
  timed_.push_back(timed);
}

void Batch::TakeTimes(KernelTimes* times) {
  if (timed_.empty()) return;
  const DeviceInfo& info = device_.info();
  std::vector<uint64_t> ticks(2 * timed_.size());
  const VkResult result = device_.vk().vkGetQueryPoolResults(
      device_.handle(), queries_, 0, static_cast<uint32_t>(ticks.size()), ticks.size() * sizeof(uint64_t), ticks.data(),
      sizeof(uint64_t), VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
  for (size_t i = 0; i < timed_.size(); ++i) {
    const uint64_t took = (ticks[2 * i + 1] - ticks[2 * i]) & info.timestamp_mask;
    const auto nanoseconds = static_cast<int64_t>(static_cast<double>(took) * info.timestamp_period);
    times->Add(timed_[i], result == VK_SUCCESS ? nanoseconds : -1);
  }
  timed_.clear();
}

}  // namespace heterocc::vulkan_plugin
