#include "queue.h"

#include <map>
#include <memory>

#include "../common/given_queues.h"
#include "error.h"

namespace heterocc::opencl_plugin {
namespace {

// Events hold driver resources: above this number they are read and released.
constexpr size_t kMaxPendingEvents = 4096;

struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Queue>> queues;  // by device index; null until used
  std::map<std::pair<cl_platform_id, DeviceKind>, std::weak_ptr<Context>> contexts;
  bool profiling = false;
};

Registry& Queues() {
  static Registry* registry = new Registry();
  return *registry;
}

// The context of a device: one for all devices of a kind and platform, so that copies between them do not use the host.
// A GPU and a CPU have separate contexts, because drivers would place every buffer on both. If the driver refuses
// several devices in a context, the device gets a separate one and is not linked to others.
std::shared_ptr<Context> ContextOf(Registry* registry, const DeviceInfo& info) {
  std::weak_ptr<Context>& known = registry->contexts[{info.platform, info.kind}];
  const std::shared_ptr<Context> context = known.lock();
  if (context != nullptr && !context->lost()) return context;
  const Driver& cl = RequireDriver();
  std::vector<cl_device_id> ids;
  for (const DeviceInfo& other : AllDevices()) {
    if (other.platform == info.platform && other.kind == info.kind) ids.push_back(other.id);
  }
  cl_int code = CL_SUCCESS;
  cl_context made = cl.clCreateContext(nullptr, static_cast<cl_uint>(ids.size()), ids.data(), nullptr, nullptr, &code);
  if (code == CL_SUCCESS) {
    auto shared = std::make_shared<Context>(made);
    known = shared;
    return shared;
  }
  if (ids.size() > 1) made = cl.clCreateContext(nullptr, 1, &info.id, nullptr, nullptr, &code);
  Check(code, "clCreateContext", "device '" + info.name + "'");
  return std::make_shared<Context>(made);
}

// Codes that only lost devices return.
bool TellsLoss(cl_int code) {
  constexpr cl_int kIllegalAccess = -9999;  // NVIDIA: a kernel left its buffers, and the context with it
  return code == CL_INVALID_COMMAND_QUEUE || code == CL_INVALID_CONTEXT || code == CL_DEVICE_NOT_AVAILABLE ||
         code == kIllegalAccess;
}

}  // namespace

Queue::Queue(const DeviceInfo& info, std::shared_ptr<Context> context) : info_(info), context_(std::move(context)) {}

Queue::~Queue() {
  const Driver& cl = RequireDriver();
  for (auto& [timed, event] : pending_) cl.clReleaseEvent(event);
  for (cl_command_queue queue : queues_) {
    if (queue != nullptr) cl.clReleaseCommandQueue(queue);
  }
}

void Queue::Begin() {
  CheckAlive();
  GivenQueues<Queue>::OfThread().Note(&info_ - AllDevices().data(), weak_from_this());
}

std::shared_ptr<Queue> Queue::LastUsed(int index) {
  std::shared_ptr<Queue> queue = GivenQueues<Queue>::OfThread().Take(index);
  return queue == nullptr ? Of(index) : queue;
}

void Queue::CheckAlive() {
  if (Lost()) Refuse("'" + info_.name + "' was lost: what was on it is gone; load the bundle again");
}

void Queue::Refuse(const std::string& message) {
  Forget();
  Throw(ErrorClass::kDevice, message);
}

void Queue::Forget() {
  GivenQueues<Queue>::OfThread().Forget(this);
}

void Queue::Check(cl_int code, const char* call, const std::string& context) {
  if (code == CL_SUCCESS) return;
  bool lost = TellsLoss(code);
  if (code == CL_OUT_OF_RESOURCES || code == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    lost = RequireDriver().clFinish(queue_) != CL_SUCCESS;
  }
  if (lost) {
    Lose();
    Forget();
  }
  const char* advice = lost ? "; the device was lost, and what was on it is gone: load the bundle again" : "";
  opencl_plugin::Check(code, call, context + advice);
}

void Queue::Lose() {
  context_->Lose();
  // A lost device returns at once; after a simulated loss, memory must not be freed while it is used.
  Registry& registry = Queues();
  std::lock_guard<std::mutex> registry_lock(registry.mutex);
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue == nullptr || queue->context_ != context_) continue;
    std::unique_lock<std::shared_mutex> lock(queue->mutex_);
    RequireDriver().clFinish(queue->queue_);
  }
}

std::shared_ptr<Queue> Queue::Of(int index) {
  const DeviceInfo& info = RequireDevice(index);
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.queues.resize(AllDevices().size());
  std::shared_ptr<Queue>& queue = registry.queues[index];
  if (queue == nullptr || queue->Lost()) {
    auto made = std::make_shared<Queue>(info, ContextOf(&registry, info));
    made->Switch(registry.profiling);
    queue = std::move(made);
  }
  return queue;
}

void Queue::SetProfiling(bool enabled) {
  Registry& registry = Queues();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.profiling = enabled;
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue == nullptr || queue->Lost()) continue;
    queue->Switch(enabled);
    std::lock_guard<std::mutex> profile_lock(queue->profile_mutex_);
    queue->Settle(0);
    queue->times_.Clear();
  }
}

std::vector<KernelTime> Queue::TakeProfile(int64_t owner) {
  Registry& registry = Queues();
  std::lock_guard<std::mutex> registry_lock(registry.mutex);
  std::vector<KernelTime> all;
  for (const std::shared_ptr<Queue>& queue : registry.queues) {
    if (queue == nullptr || queue->Lost()) continue;
    std::lock_guard<std::mutex> lock(queue->profile_mutex_);
    queue->Settle(owner);
    queue->times_.Take(owner, &all);
  }
  return all;
}

void Queue::Switch(bool profiling) {
  const Driver& cl = RequireDriver();
  std::unique_lock<std::shared_mutex> lock(mutex_);
  cl_command_queue& wanted = queues_[profiling ? 1 : 0];
  if (wanted == nullptr) {
    cl_int code = CL_SUCCESS;
    wanted = cl.clCreateCommandQueue(context_->handle(), info_.id, profiling ? CL_QUEUE_PROFILING_ENABLE : 0, &code);
    opencl_plugin::Check(code, "clCreateCommandQueue", "device '" + info_.name + "'");
  }
  if (queue_ != nullptr && queue_ != wanted) {
    opencl_plugin::Check(cl.clFinish(queue_), "clFinish", "before switching profiling");
  }
  queue_ = wanted;
  profiling_ = profiling;
}

void Queue::Finish() {
  Check(Run([](cl_command_queue queue) { return RequireDriver().clFinish(queue); }), "clFinish",
        "device '" + info_.name + "'");
}

void Queue::Record(const TimedFor& timed, cl_event event) {
  std::lock_guard<std::mutex> lock(profile_mutex_);
  pending_.emplace_back(timed, event);
  if (pending_.size() >= kMaxPendingEvents) Settle(0);
}

void Queue::Settle(int64_t owner) {
  const Driver& cl = RequireDriver();
  std::vector<std::pair<TimedFor, cl_event>> others;
  for (auto& [timed, event] : pending_) {
    if (owner != 0 && timed.owner != owner) {
      others.emplace_back(timed, event);
      continue;
    }
    cl_ulong start = 0;
    cl_ulong end = 0;
    const bool known =
        cl.clWaitForEvents(1, &event) == CL_SUCCESS &&
        cl.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof start, &start, nullptr) == CL_SUCCESS &&
        cl.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr) == CL_SUCCESS &&
        end >= start;
    times_.Add(timed, known ? static_cast<int64_t>(end - start) : -1);
    cl.clReleaseEvent(event);
  }
  pending_ = std::move(others);
}

}  // namespace heterocc::opencl_plugin
