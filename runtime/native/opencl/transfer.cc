#include "transfer.h"

#include <memory>
#include <string>
#include <utility>

#include "../common/copies.h"
#include "device_api.h"
#include "error.h"
#include "fault.h"

namespace heterocc::opencl_plugin {
namespace {

namespace ffi = tvm::ffi;

constexpr uint64_t kAlignment = 64;

cl_mem Memory(const ffi::Tensor& tensor) {
  return static_cast<Buffer*>(tensor.data_ptr())->mem;
}

const std::shared_ptr<Queue>& QueueOf(const ffi::Tensor& tensor) {
  return static_cast<Buffer*>(tensor.data_ptr())->queue;
}

// A command that was given to a queue; `Settle` waits for it and throws its error.
class Command {
 public:
  Command(std::shared_ptr<Queue> queue, cl_event event, const char* call, std::string context, bool fails)
      : queue_(std::move(queue)), event_(event), call_(call), context_(std::move(context)), fails_(fails) {}
  ~Command() { RequireDriver().clReleaseEvent(event_); }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  void Settle() const {
    queue_->CheckAlive();
    const Driver& cl = RequireDriver();
    const cl_int code = cl.clWaitForEvents(1, &event_);
    cl_int status = CL_COMPLETE;
    cl.clGetEventInfo(event_, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
    if (status < 0) queue_->Check(status, call_, context_);
    queue_->Check(code, "clWaitForEvents", context_);
    if (fails_) queue_->Check(CL_OUT_OF_RESOURCES, call_, context_);
  }

 private:
  const std::shared_ptr<Queue> queue_;
  cl_event event_;
  const char* call_;
  const std::string context_;
  const bool fails_;  // simulated
};

ffi::Function Settler(std::shared_ptr<Queue> queue, cl_event event, const char* call, std::string context,
                      bool fails = false) {
  auto command = std::make_shared<Command>(std::move(queue), event, call, std::move(context), fails);
  return ffi::Function::FromTyped([command]() { command->Settle(); });
}

// An event after all commands that a queue has been given.
cl_event MarkQueue(Queue& queue) {
  cl_event event = nullptr;
  const cl_int code = queue.Run([&](cl_command_queue q) {
    const cl_int result = RequireDriver().clEnqueueMarkerWithWaitList(q, 0, nullptr, &event);
    return result == CL_SUCCESS ? RequireDriver().clFlush(q) : result;
  });
  queue.Check(code, "clEnqueueMarkerWithWaitList", "'" + queue.info().name + "'");
  return event;
}

// Pinned memory is a buffer that stays mapped; OpenCL has no other interface for it.
class PinnedData {
 public:
  PinnedData(int device, size_t nbytes) : queue_(Queue::Of(device)) {
    const Driver& cl = RequireDriver();
    const std::string context = Bytes(nbytes) + " of pinned host memory for '" + queue_->info().name + "'";
    if (Faults::Global().AllocFails()) Check(CL_MEM_OBJECT_ALLOCATION_FAILURE, "clCreateBuffer", context);
    cl_int code = CL_SUCCESS;
    const size_t size = nbytes + kAlignment;
    mem_ = cl.clCreateBuffer(queue_->context(), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, size, nullptr, &code);
    queue_->Check(code, "clCreateBuffer", context);
    code = queue_->Run([&](cl_command_queue q) {
      mapped_ =
          cl.clEnqueueMapBuffer(q, mem_, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, size, 0, nullptr, nullptr, &code);
      if (code != CL_SUCCESS) cl.clReleaseMemObject(mem_);
      return code;
    });
    queue_->Check(code, "clEnqueueMapBuffer", context);
  }

  void AllocData(DLTensor* tensor) {
    const auto address = reinterpret_cast<uint64_t>(mapped_);
    tensor->data = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

  void FreeData(DLTensor*) {
    const Driver& cl = RequireDriver();
    if (!queue_->Lost()) {
      queue_->Run(
          [&](cl_command_queue q) { return cl.clEnqueueUnmapMemObject(q, mem_, mapped_, 0, nullptr, nullptr); });
    }
    cl.clReleaseMemObject(mem_);
  }

 private:
  std::shared_ptr<Queue> queue_;
  cl_mem mem_ = nullptr;
  void* mapped_ = nullptr;
};

}  // namespace

ffi::Function StartCopy(const ffi::Tensor& from, const ffi::Tensor& to) {
  const Driver& cl = RequireDriver();
  const size_t nbytes = CopySize(from, to);
  if (nbytes == 0) return ffi::Function::FromTyped([]() {});
  const std::shared_ptr<Queue> queue = QueueOf(OnDevice(to) ? to : from);
  const std::string place = "'" + queue->info().name + "'";
  queue->CountCopy(nbytes);
  cl_event event = nullptr;
  const auto start = [&](const char* call, const std::string& context, auto enqueue) {
    const cl_int code = queue->Run([&](cl_command_queue q) {
      const cl_int result = enqueue(q);
      return result == CL_SUCCESS ? cl.clFlush(q) : result;
    });
    queue->Check(code, call, context);
    return Settler(queue, event, call, context, Faults::Global().CopyFails());
  };
  if (!OnDevice(from)) {
    return start("clEnqueueWriteBuffer", Bytes(nbytes) + " to " + place, [&](cl_command_queue q) {
      return cl.clEnqueueWriteBuffer(q, Memory(to), CL_FALSE, to.byte_offset(), nbytes, HostAddress(from), 0, nullptr,
                                     &event);
    });
  }
  if (!OnDevice(to)) {
    return start("clEnqueueReadBuffer", Bytes(nbytes) + " from " + place, [&](cl_command_queue q) {
      return cl.clEnqueueReadBuffer(q, Memory(from), CL_FALSE, from.byte_offset(), nbytes, HostAddress(to), 0, nullptr,
                                    &event);
    });
  }
  const std::shared_ptr<Queue>& source = QueueOf(from);
  if (source->context() != queue->context()) {
    Throw(ErrorClass::kDevice, "the two devices share no context: copy through the host");
  }
  cl_event before = source == queue ? nullptr : MarkQueue(*source);
  const std::unique_ptr<Command> owner(before == nullptr ? nullptr : new Command(source, before, "", "", false));
  return start("clEnqueueCopyBuffer", Bytes(nbytes) + " to " + place, [&](cl_command_queue q) {
    return cl.clEnqueueCopyBuffer(q, Memory(from), Memory(to), from.byte_offset(), to.byte_offset(), nbytes,
                                  before == nullptr ? 0 : 1, before == nullptr ? nullptr : &before, &event);
  });
}

ffi::Function Mark(int64_t device) {
  const std::shared_ptr<Queue> queue = Queue::LastUsed(static_cast<int>(device));
  return Settler(queue, MarkQueue(*queue), "clEnqueueMarkerWithWaitList", "'" + queue->info().name + "'");
}

bool Linked(int64_t one, int64_t other) {
  return Queue::Of(static_cast<int>(one))->context() == Queue::Of(static_cast<int>(other))->context();
}

ffi::Tensor Pin(int64_t device, int64_t nbytes) {
  return HostBytes(PinnedData(static_cast<int>(device), static_cast<size_t>(nbytes)), nbytes);
}

}  // namespace heterocc::opencl_plugin
