// One in-order command queue per device, shared by all threads, and the timestamps of the kernels that ran on it.
//
// A queue whose device is lost accepts only calls that free its resources; `Of` then opens the device again for later
// callers. Devices of one context are lost together.
//
// Ownership: `Of` shares a queue with its tensors and programs. The registry is never freed, so that tensors can be
// freed while the process exits. Threading: any thread. Commands of one thread run in its program order. Switching
// profiling waits for all commands given before, so that the order holds across the switch.
#ifndef HETEROCC_OPENCL_QUEUE_H_
#define HETEROCC_OPENCL_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "../common/kernel_times.h"
#include "fault.h"
#include "platform.h"

namespace heterocc::opencl_plugin {

// State that a context's devices share, such as whether they are lost.
class Context {
 public:
  explicit Context(cl_context handle) : handle_(handle) {}
  ~Context() { RequireDriver().clReleaseContext(handle_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cl_context handle() const { return handle_; }
  bool lost() const { return lost_; }
  void Lose() { lost_ = true; }

 private:
  const cl_context handle_;
  std::atomic<bool> lost_{false};
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // The queue of device `index`; throws `driver` errors for a device that does not exist.
  static std::shared_ptr<Queue> Of(int index);

  // The queue of device `index` to which the calling thread last gave commands, which may be lost; else that of `Of`.
  static std::shared_ptr<Queue> LastUsed(int index);

  // Switches timestamps on or off for all devices, those not used yet included. Times that were not taken are dropped.
  static void SetProfiling(bool enabled);

  // Waits for the owner's kernels, and removes and returns their times, device by device in launch order.
  static std::vector<KernelTime> TakeProfile(int64_t owner);

  Queue(const DeviceInfo& info, std::shared_ptr<Context> context);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  const DeviceInfo& info() const { return info_; }
  cl_context context() const { return context_->handle(); }
  bool Lost() const { return context_->lost(); }

  // Calls `enqueue(cl_command_queue)`, which returns an error code, while profiling cannot be switched. Throws if
  // the device is lost.
  template <typename Enqueue>
  cl_int Run(Enqueue enqueue) {
    Begin();
    std::shared_lock<std::shared_mutex> lock(mutex_);
    if (Faults::Global().DeviceIsLost()) return CL_INVALID_COMMAND_QUEUE;
    return enqueue(queue_);
  }

  // The same for a kernel: `enqueue(cl_command_queue, cl_event*)`, with an event to fill if the thread's kernels are
  // timed and profiling is on.
  template <typename Enqueue>
  cl_int RunKernel(Enqueue enqueue) {
    Begin();
    std::shared_lock<std::shared_mutex> lock(mutex_);
    if (Faults::Global().DeviceIsLost()) return CL_INVALID_COMMAND_QUEUE;
    const TimedFor timed = TimedFor::OfThread();
    if (!profiling_ || timed.owner == 0) return enqueue(queue_, nullptr);
    cl_event event = nullptr;
    const cl_int code = enqueue(queue_, &event);
    if (code == CL_SUCCESS) Record(timed, event);
    return code;
  }

  // Throws for a code other than CL_SUCCESS, and determines whether the device is lost: the code means it, or the
  // driver cannot finish its commands.
  void Check(cl_int code, const char* call, const std::string& context);

  // Throws if the device is lost.
  void CheckAlive();

  // Throws: the calling thread learns that the device is lost.
  [[noreturn]] void Refuse(const std::string& message);

  // Waits until every command given so far is done.
  void Finish();

  // Counts a copy or a map.
  void CountCopy(size_t nbytes) {
    ++copies_;
    copied_bytes_ += nbytes;
  }
  void CountMap() { ++maps_; }

  // Records that the driver moves memory between maps; whether this was recorded.
  void NoteMoves() { moves_ = true; }
  bool Moves() const { return moves_; }

  // So far: copies, their bytes, maps of lent memory.
  std::vector<uint64_t> Statistics() const { return {copies_, copied_bytes_, maps_}; }

 private:
  // Before a command: throws if the device is lost, and records that the calling thread uses this queue.
  void Begin();
  // Records that the calling thread knows the result of its commands.
  void Forget();
  // Marks the devices of the context as lost.
  void Lose();
  void Switch(bool profiling);
  void Record(const TimedFor& timed, cl_event event);
  // Reads the times of an owner's kernels, 0 for all, and waits for those that are not done. Called with
  // `profile_mutex_` held.
  void Settle(int64_t owner);

  const DeviceInfo& info_;
  const std::shared_ptr<Context> context_;  // of all devices of this kind and platform
  std::shared_mutex mutex_;
  cl_command_queue queues_[2] = {nullptr, nullptr};  // without and with timestamps
  cl_command_queue queue_ = nullptr;
  bool profiling_ = false;
  std::atomic<uint64_t> copies_{0};
  std::atomic<uint64_t> copied_bytes_{0};
  std::atomic<uint64_t> maps_{0};
  std::atomic<bool> moves_{false};
  std::mutex profile_mutex_;
  std::vector<std::pair<TimedFor, cl_event>> pending_;
  KernelTimes times_;
};

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_QUEUE_H_
