#include "queue.h"

#include <algorithm>

#include "error.h"
#include "fault.h"

namespace heterocc::vulkan_plugin {
namespace {

// Submissions grow up to this many commands.
constexpr size_t kLargestSubmission = 64;

// The time limit of a submission. Drivers consider a device hung if it needs more than a few seconds (Linux: amdgpu 2
// to 10, xe 5), and end everything on it.
constexpr std::chrono::milliseconds kLongestSubmission{100};

// The limit on submitted batches; above it the caller waits.
constexpr size_t kMostFlying = 16;

}  // namespace

Queue::Queue(const DeviceInfo& info)
    : device_(info),
      cache_(device_),
      submit_at_(kFirstSubmission),
      most_at_once_(kFirstSubmission),
      heap_(device_, Placement::kDevice),
      staging_heap_(device_, Placement::kStaging) {
  VkSemaphoreTypeCreateInfo type{};
  type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
  type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
  VkSemaphoreCreateInfo create{};
  create.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
  create.pNext = &type;
  Check(device_.vk().vkCreateSemaphore(device_.handle(), &create, nullptr, &timeline_), "vkCreateSemaphore");
}

// Reached only by a lost queue, when its last tensor and kernel are freed.
Queue::~Queue() {
  for (const Pipeline& pipeline : retired_) DestroyPipeline(pipeline);
  device_.vk().vkDestroySemaphore(device_.handle(), timeline_, nullptr);
}

void Queue::CheckAlive() const {
  if (!lost_) return;
  Throw(ErrorClass::kDevice, "'" + info().name + "' was lost: what was on it is gone; load the bundle again");
}

void Queue::Lose(VkResult result, const char* call) {
  if (!lost_) {
    lost_ = true;
    // A lost device returns at once; after a simulated loss, memory must not be freed while it is used.
    VkSemaphoreWaitInfo wait{};
    wait.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
    wait.semaphoreCount = 1;
    wait.pSemaphores = &timeline_;
    wait.pValues = &submitted_;
    device_.vk().vkWaitSemaphores(device_.handle(), &wait, UINT64_MAX);
    open_.reset();
    flying_.clear();
    Collect();
  }
  Check(result, call, "device '" + info().name + "'; what was on it is gone: load the bundle again");
  CheckAlive();
  std::abort();  // not reached: one of the two throws
}

void Queue::CheckOrLose(VkResult result, const char* call) {
  if (result != VK_SUCCESS) Lose(result, call);
}

uint64_t Queue::Completed() {
  if (lost_) return UINT64_MAX;
  uint64_t value = 0;
  if (completed_ < submitted_ &&
      device_.vk().vkGetSemaphoreCounterValue(device_.handle(), timeline_, &value) == VK_SUCCESS) {
    completed_ = std::max(completed_, value);
  }
  return completed_;
}

VkCommandBuffer Queue::Record(const Span* spans, size_t count) {
  CheckAlive();
  GivenTo();
  if (open_ == nullptr) {
    if (flying_.size() >= kMostFlying) {
      const uint64_t oldest = flying_.front()->serial;
      Wait(oldest);
      Collect();
    }
    std::unique_ptr<Batch> batch;
    if (idle_.empty()) {
      batch = std::make_unique<Batch>(device_);
    } else {
      batch = std::move(idle_.back());
      idle_.pop_back();
    }
    batch->serial = submitted_ + 1;
    batch->Begin(profiling_);
    open_ = std::move(batch);
  }
  // A timed kernel runs alone, so that its time does not include other kernels.
  if (hazards_.NeedsBarrier(spans, count) || profiling_) {
    RecordBarrier(device_.vk(), open_->commands());
    ++barriers_;
  }
  return open_->commands();
}

void Queue::Recorded() {
  ++open_->count;
  if (open_->count < submit_at_ && !open_->Full()) return;
  Collect();
  submit_at_ = std::min(2 * submit_at_, most_at_once_);
  Submit();
}

void Queue::Submit() {
  if (open_ == nullptr) return;
  CheckOrLose(open_->End(), "vkEndCommandBuffer");
  VkTimelineSemaphoreSubmitInfo timeline{};
  timeline.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
  timeline.signalSemaphoreValueCount = 1;
  timeline.pSignalSemaphoreValues = &open_->serial;
  const VkCommandBuffer commands = open_->commands();
  VkSubmitInfo submit{};
  submit.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  submit.pNext = &timeline;
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &commands;
  submit.signalSemaphoreCount = 1;
  submit.pSignalSemaphores = &timeline_;
  // The batch has commands of other threads too, so a failed submission is treated as a lost device.
  const VkResult result = Faults::Global().DeviceIsLost()
                              ? VK_ERROR_DEVICE_LOST
                              : device_.vk().vkQueueSubmit(device_.queue(), 1, &submit, VK_NULL_HANDLE);
  CheckOrLose(result, "vkQueueSubmit");
  submitted_ = open_->serial;
  open_->submitted = std::chrono::steady_clock::now();
  flying_.push_back(std::move(open_));
}

void Queue::Wait(uint64_t serial) {
  if (serial == 0) return;
  VkSemaphoreWaitInfo wait{};
  wait.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
  wait.semaphoreCount = 1;
  wait.pSemaphores = &timeline_;
  wait.pValues = &serial;
  const VkResult result = device_.vk().vkWaitSemaphores(device_.handle(), &wait, UINT64_MAX);
  if (result != VK_SUCCESS) lost_ = true;
  Check(result, "vkWaitSemaphores", "device '" + info().name + "'");
}

void Queue::Finish() {
  uint64_t serial = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CheckAlive();
    Submit();
    submit_at_ = FirstSubmission();
    serial = Completed() < submitted_ ? submitted_ : 0;
  }
  Wait(serial);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CheckAlive();  // another thread may have lost it since
    Collect();
  }
  cache_.SaveIfGrown();
}

void Queue::LearnPace(std::chrono::steady_clock::time_point submitted, size_t commands) {
  // If seen late, they seem slower than they were; submissions are then too small for a while, which costs only time.
  const auto now = std::chrono::steady_clock::now();
  const auto took = (now - std::max(submitted, seen_done_)) * (Faults::Global().Slow() ? 1000000 : 1);
  seen_done_ = now;
  const double fitting = static_cast<double>(commands) * (kLongestSubmission / std::chrono::duration<double>(took));
  const auto most = static_cast<double>(std::min(2 * most_at_once_, kLargestSubmission));
  most_at_once_ = static_cast<size_t>(std::clamp(fitting, 1.0, most));
}

void Queue::Collect() {
  const uint64_t completed = Completed();
  if (!flying_.empty() && flying_.front()->serial <= completed) {
    const auto first = flying_.front()->submitted;
    size_t commands = 0;
    for (const std::unique_ptr<Batch>& batch : flying_) commands += batch->serial <= completed ? batch->count : 0;
    LearnPace(first, commands);
  }
  while (!flying_.empty() && flying_.front()->serial <= completed) {
    flying_.front()->TakeTimes(&times_);
    idle_.push_back(std::move(flying_.front()));
    flying_.pop_front();
  }
  const auto done = [&](const Pipeline& pipeline) {
    if (pipeline.last_use > completed) return false;
    DestroyPipeline(pipeline);
    return true;
  };
  retired_.erase(std::remove_if(retired_.begin(), retired_.end(), done), retired_.end());
  heap_.Collect(completed, lost_);
}

void Queue::DestroyPipeline(const Pipeline& pipeline) {
  const DeviceFunctions& vk = device_.vk();
  vk.vkDestroyPipeline(device_.handle(), pipeline.handle, nullptr);
  vk.vkDestroyPipelineLayout(device_.handle(), pipeline.layout, nullptr);
  vk.vkDestroyDescriptorSetLayout(device_.handle(), pipeline.set_layout, nullptr);
}

void Queue::Retire(Pipeline* pipeline) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (pipeline->last_use <= Completed()) {
    DestroyPipeline(*pipeline);
  } else {
    retired_.push_back(*pipeline);
  }
}

void Queue::Dispatch(Pipeline* pipeline, const std::vector<Access>& bindings, const void* push, uint32_t push_size,
                     const uint32_t groups[3]) {
  const DeviceFunctions& vk = device_.vk();
  std::lock_guard<std::mutex> lock(mutex_);
  spans_.clear();
  infos_.clear();
  writes_.clear();
  for (const Access& access : bindings) {
    const Allocation& memory = access.buffer->memory;
    spans_.push_back(Span{memory.address, memory.address + memory.size, access.write});
    infos_.push_back(VkDescriptorBufferInfo{memory.buffer, memory.offset, std::min(memory.size, info().storage_range)});
  }
  const VkCommandBuffer commands = Record(spans_.data(), spans_.size());
  VkDescriptorSet set = pipeline->pushes || bindings.empty() ? VK_NULL_HANDLE : open_->NewSet(pipeline->set_layout);
  for (size_t i = 0; i < infos_.size(); ++i) {
    VkWriteDescriptorSet write{};
    write.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
    write.dstSet = set;
    write.dstBinding = static_cast<uint32_t>(i);
    write.descriptorCount = 1;
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = &infos_[i];
    writes_.push_back(write);
  }
  const auto count = static_cast<uint32_t>(writes_.size());
  vk.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->handle);
  if (set != VK_NULL_HANDLE) {
    vk.vkUpdateDescriptorSets(device_.handle(), count, writes_.data(), 0, nullptr);
    vk.vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->layout, 0, 1, &set, 0, nullptr);
  } else if (count != 0) {
    vk.vkCmdPushDescriptorSetKHR(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->layout, 0, count, writes_.data());
  }
  if (push_size != 0) {
    vk.vkCmdPushConstants(commands, pipeline->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push_size, push);
  }
  const TimedFor timed = TimedFor::OfThread();
  open_->StartTimer(timed);
  vk.vkCmdDispatch(commands, groups[0], groups[1], groups[2]);
  open_->StopTimer(timed);
  ++kernels_;
  pipeline->last_use = open_->serial;
  for (const Access& access : bindings) access.buffer->memory.last_use = open_->serial;
  Recorded();
}

void Queue::Copy(Buffer* from, uint64_t from_offset, Buffer* to, uint64_t to_offset, uint64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  RecordCopy(&from->memory, from_offset, &to->memory, to_offset, nbytes);
  Recorded();
}

std::vector<uint64_t> Queue::Statistics() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {submitted_, kernels_, copies_, barriers_, heap_.Held(), heap_.Used()};
}

void Queue::Profile(bool enabled) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (enabled == profiling_ || lost_) return;
  Submit();
  profiling_ = enabled;
  for (const std::unique_ptr<Batch>& batch : flying_) batch->DropTimes();
  times_.Clear();
}

void Queue::TakeTimes(int64_t owner, std::vector<KernelTime>* times) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lost_) return;
  Collect();
  times_.Take(owner, times);
}

}  // namespace heterocc::vulkan_plugin
