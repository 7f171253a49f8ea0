// Commands that are submitted together: a command buffer, the descriptor sets and the timestamps of its kernels.
//
// Ownership: owns its Vulkan objects. Threading: none of its own; the queue's lock guards it.
#ifndef HETEROCC_VULKAN_BATCH_H_
#define HETEROCC_VULKAN_BATCH_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../common/kernel_times.h"
#include "logical_device.h"

namespace heterocc::vulkan_plugin {

class Batch {
 public:
  // Throws `memory` or `device` errors.
  explicit Batch(const LogicalDevice& device);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  VkCommandBuffer commands() const { return commands_; }

  // What the batch signals when the device is done with it.
  uint64_t serial = 0;
  // Kernels and copies recorded.
  size_t count = 0;
  // When the device was given the batch.
  std::chrono::steady_clock::time_point submitted;

  // Starts recording; everything of an earlier use must have been finished by the device.
  void Begin(bool timestamps);
  // Ends recording, with the results made visible to the host.
  VkResult End();

  // Whether no further kernel fits.
  bool Full() const { return count >= kMostCommands; }

  // A descriptor set of the layout, valid until the next `Begin`.
  VkDescriptorSet NewSet(VkDescriptorSetLayout layout);

  // Call before and after the command that runs a kernel. Kernels without an owner are not timed.
  void StartTimer(const TimedFor& timed);
  void StopTimer(const TimedFor& timed);

  // Adds the kernels' times; the device must be done with the batch.
  void TakeTimes(KernelTimes* times);
  // Forgets them.
  void DropTimes() { timed_.clear(); }

 private:
  static constexpr size_t kMostCommands = 256;

  const LogicalDevice& device_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  std::vector<VkDescriptorPool> descriptor_pools_;
  size_t open_pool_ = 0;  // index of the descriptor pool that sets come from
  VkQueryPool queries_ = VK_NULL_HANDLE;
  bool timestamps_ = false;
  std::vector<TimedFor> timed_;
};

// All earlier kernels and copies are done, and visible, before later ones start.
void RecordBarrier(const DeviceFunctions& vk, VkCommandBuffer commands);

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_BATCH_H_
