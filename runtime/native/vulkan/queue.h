// One in-order queue per device, shared by all threads: records commands, submits them when a thread waits or enough
// have come together, and releases what they used when the device is done.
//
// Commands have the serial of their batch; a timeline semaphore counts the batches that the device has finished.
// Barriers are added only between commands that access the same memory.
//
// A queue whose device is lost accepts only calls that free its resources; `Of` then opens the device again for later
// callers.
//
// Ownership: `Of` shares a queue with its tensors and pipelines. The registry is never freed, so that tensors can be
// freed while the process exits. Threading: any thread. Commands of one thread run in its program order.
#ifndef HETEROCC_VULKAN_QUEUE_H_
#define HETEROCC_VULKAN_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "batch.h"
#include "hazards.h"
#include "memory.h"
#include "pipeline_cache.h"

namespace heterocc::vulkan_plugin {

class Queue;

// The target of a Vulkan tensor's data pointer.
struct Buffer {
  std::shared_ptr<Queue> queue;
  Allocation memory;
  uint64_t size = 0;      // bytes
  bool borrowed = false;  // the memory belongs to the caller
};

// A buffer as a command uses it.
struct Access {
  Buffer* buffer;
  bool write;
};

// A kernel that is ready to run, and the last submission that runs it. The layout's sets have `set_layout` as number 0.
struct Pipeline {
  VkPipeline handle = VK_NULL_HANDLE;
  VkPipelineLayout layout = VK_NULL_HANDLE;
  VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;
  bool pushes = false;  // descriptors
  uint64_t last_use = 0;
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // The queue of device `index`; throws `driver` errors for a device that does not exist.
  static std::shared_ptr<Queue> Of(int index);

  // The queue of device `index` to which the calling thread last gave commands, else that of `Of`. It may be lost, even
  // if another thread has opened the device again since: those commands never ran, and waiting for it throws.
  static std::shared_ptr<Queue> LastUsed(int index);

  // Switches timestamps on or off for all devices, those not used yet included. Times that were not taken are dropped.
  static void SetProfiling(bool enabled);

  // Removes and returns the times of the owner's finished kernels, device by device in launch order.
  static std::vector<KernelTime> TakeProfile(int64_t owner);

  // Returns idle memory of all devices to their drivers; the result is its bytes.
  static uint64_t TrimAll();

  explicit Queue(const DeviceInfo& info);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  const DeviceInfo& info() const { return device_.info(); }
  const LogicalDevice& device() const { return device_; }
  PipelineCache& cache() { return cache_; }
  bool Lost() const { return lost_; }

  // ---- memory
  Buffer* Allocate(uint64_t nbytes, uint64_t alignment);
  Buffer* Borrow(void* host, uint64_t nbytes);
  void Free(Buffer* buffer);
  // Waits, then returns free memory to the driver; the result is its bytes.
  uint64_t Trim();

  // ---- commands
  // Runs a kernel: `bindings[i]` is the buffer of binding i, `push` the push constants (`push_size` bytes).
  void Dispatch(Pipeline* pipeline, const std::vector<Access>& bindings, const void* push, uint32_t push_size,
                const uint32_t groups[3]);
  // Copies between two tensors of this queue.
  void Copy(Buffer* from, uint64_t from_offset, Buffer* to, uint64_t to_offset, uint64_t nbytes);
  // Copies from and to host memory, which may be reused when the call returns.
  void Write(const void* from, Buffer* to, uint64_t offset, uint64_t nbytes);
  void Read(Buffer* from, uint64_t offset, void* to, uint64_t nbytes);

  // ---- asynchronous copies; each returns the serial to `Await` before the host accesses the memory again
  // `from` may be reused at once, unless it is pinned.
  uint64_t StartWrite(const void* from, Buffer* to, uint64_t offset, uint64_t nbytes);
  // To pinned memory.
  uint64_t StartRead(Buffer* from, uint64_t offset, void* to, uint64_t nbytes);
  // The serial of all commands given so far.
  uint64_t Mark();
  // Waits until the device has finished this serial. Throws if it is lost.
  void Await(uint64_t serial);

  // Host-visible memory that copies use directly, 64-byte aligned.
  Allocation Pin(uint64_t nbytes);
  void Unpin(const Allocation& memory);
  bool IsPinned(const void* host, uint64_t nbytes);

  // Waits until every command given so far is done.
  void Finish();

  void Profile(bool enabled);
  void TakeTimes(int64_t owner, std::vector<KernelTime>* times);

  // So far: submissions, kernels, copies, barriers; then the bytes of memory held and those of them in use.
  std::vector<uint64_t> Statistics();

  // Destroys a pipeline, when the device is done with it.
  void Retire(Pipeline* pipeline);

 private:
  // Records that the calling thread gives commands to this queue, for `LastUsed`.
  void GivenTo();

  // The following are called with `mutex_` held, except Wait, WaitForUser and Staged*.
  void CheckAlive() const;
  [[noreturn]] void Lose(VkResult result, const char* call);
  void CheckOrLose(VkResult result, const char* call);
  VkCommandBuffer Record(const Span* spans, size_t count);
  void Recorded();
  void Submit();
  uint64_t Completed();
  void Collect();
  // Adjusts the size of submissions to the time that these took, which are now done.
  void LearnPace(std::chrono::steady_clock::time_point submitted, size_t commands);
  void DestroyPipeline(const Pipeline& pipeline);
  // Submits the commands that use memory last used at `last_use`; returns the serial to wait for before the host
  // accesses it, or 0.
  uint64_t SubmitUser(uint64_t last_use);
  // A piece of staging memory that the device no longer uses; releases the lock while it waits.
  Allocation* NextChunk(std::unique_lock<std::mutex>* lock);

  void Wait(uint64_t serial);
  void WaitForUser(Buffer* buffer);
  void StagedWrite(const char* from, Buffer* to, uint64_t offset, uint64_t nbytes);
  // The pinned memory that contains the range, or null.
  Allocation* FindPinned(const void* host, uint64_t nbytes);
  // A piece of the staging heap that no command uses; may release the lock.
  Allocation TakeStaging(uint64_t nbytes, std::unique_lock<std::mutex>* lock);
  void RecordCopy(Allocation* from, uint64_t from_offset, Allocation* to, uint64_t to_offset, uint64_t nbytes);
  void StagedRead(Buffer* from, uint64_t offset, char* to, uint64_t nbytes);

  // The first submissions are small, so that the device starts early; later ones cost less a command.
  static constexpr size_t kFirstSubmission = 8;

  size_t FirstSubmission() const { return std::min(kFirstSubmission, most_at_once_); }

  LogicalDevice device_;
  PipelineCache cache_;
  std::mutex mutex_;
  std::atomic<bool> lost_{false};
  VkSemaphore timeline_ = VK_NULL_HANDLE;
  uint64_t submitted_ = 0;                           // serial of the last submission; the open batch has the next one
  uint64_t completed_ = 0;                           // the largest serial known to be done
  size_t submit_at_;                                 // commands in the open batch at which it is submitted
  size_t most_at_once_;                              // commands that one submission may have
  std::chrono::steady_clock::time_point seen_done_;  // when submissions were last seen to be done
  std::unique_ptr<Batch> open_;
  std::deque<std::unique_ptr<Batch>> flying_;
  std::vector<std::unique_ptr<Batch>> idle_;
  Hazards hazards_;
  std::vector<Span> spans_;  // scratch of the command being recorded
  std::vector<VkDescriptorBufferInfo> infos_;
  std::vector<VkWriteDescriptorSet> writes_;
  std::vector<Pipeline> retired_;
  Heap heap_;
  Heap staging_heap_;
  std::mutex staging_mutex_;               // one staged copy at a time; taken before `mutex_`
  std::deque<Allocation> chunks_;          // running copies point to its elements, whose addresses are stable
  std::map<uint64_t, Allocation> pinned_;  // by host address
  size_t next_chunk_ = 0;
  bool profiling_ = false;
  KernelTimes times_;
  uint64_t kernels_ = 0;
  uint64_t copies_ = 0;
  uint64_t barriers_ = 0;
};

}  // namespace heterocc::vulkan_plugin

#endif  // HETEROCC_VULKAN_QUEUE_H_
