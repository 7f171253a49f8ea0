// Commands that are submitted together: a command buffer, the descriptor sets and the timestamps of its kernels.
//
// Ownership: owns its Vulkan objects. Threading: not thread-safe; guarded by the queue's lock.
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

  // The semaphore value that the device signals when the batch is done.
  uint64_t serial = 0;
  // Kernels and copies recorded.
  size_t count = 0;
  // The time of submission.
  std::chrono::steady_clock::time_point submitted;

  // Starts recording; the device must have finished the batch's earlier use.
  void Begin(bool timestamps);
  // Ends recording, and makes the results visible to the host.
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
  // Drops them.
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

// A barrier: earlier kernels and copies are done, and their results visible, before later ones start.
void RecordBarrier(const DeviceFunctions& vk, VkCommandBuffer commands);

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_BATCH_H_
