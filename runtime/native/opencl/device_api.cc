#include "device_api.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "error.h"
#include "fault.h"

namespace heterocc::opencl_plugin {
namespace {

namespace ffi = tvm::ffi;
using tvm::Device;

// Enough for the widest vector of any device; PoCL reads whole vectors of a buffer.
constexpr size_t kHostAlignment = 128;

void CL_CALLBACK FreeHostMemory(cl_mem, void* memory) {
  std::free(memory);
}

// Whether a buffer's memory is lent and on the host's side, so that commands must not access it.
bool OnHostSide(const void* data) {
  const auto* buffer = static_cast<const Buffer*>(data);
  return buffer->lent != nullptr && buffer->lent->side() == Side::kHost;
}

// Makes the driver allocate a new buffer's memory now. Most drivers allocate it at the first use, which is too late to
// free idle memory or to load another variant. No wait is needed: uses of the buffer are later in the same queue.
void FindMemory(Queue* queue, cl_mem mem, const std::string& context) {
  const Driver& cl = RequireDriver();
  const cl_int code = queue->Run([&](cl_command_queue q) {
    const cl_int result =
        cl.clEnqueueMigrateMemObjects(q, 1, &mem, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, nullptr, nullptr);
    return Faults::Global().MigrateFails() ? CL_OUT_OF_RESOURCES : result;
  });
  queue->Check(code, "clEnqueueMigrateMemObjects", context);
}

std::unique_ptr<Buffer> Allocate(const std::shared_ptr<Queue>& queue, size_t nbytes, size_t alignment) {
  const Driver& cl = RequireDriver();
  const DeviceInfo& info = queue->info();
  auto buffer = std::make_unique<Buffer>();
  buffer->queue = queue;
  buffer->size = std::max<size_t>(nbytes, 1);
  const std::string context = Bytes(buffer->size) + " on '" + info.name + "'";
  if (info.max_alloc != 0 && buffer->size > info.max_alloc) {
    Check(CL_INVALID_BUFFER_SIZE, "clCreateBuffer",
          context + ", whose limit for one buffer is " + Bytes(info.max_alloc));
  }
  if (Faults::Global().AllocFails()) Check(CL_MEM_OBJECT_ALLOCATION_FAILURE, "clCreateBuffer", context);
  cl_int code = CL_SUCCESS;
  if (!info.shares_host_memory) {
    buffer->mem = cl.clCreateBuffer(queue->context(), CL_MEM_READ_WRITE, buffer->size, nullptr, &code);
    queue->Check(code, "clCreateBuffer", context);
    try {
      FindMemory(queue.get(), buffer->mem, context);
    } catch (...) {
      cl.clReleaseMemObject(buffer->mem);
      throw;
    }
    return buffer;
  }
  const size_t unit = std::max({kHostAlignment, alignment, static_cast<size_t>(info.alignment)});
  void* host = std::aligned_alloc(unit, (buffer->size + unit - 1) / unit * unit);
  if (host == nullptr) Check(CL_OUT_OF_HOST_MEMORY, "aligned_alloc", context);
  buffer->host = host;
  buffer->mem = cl.clCreateBuffer(queue->context(), CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, buffer->size, host, &code);
  if (code == CL_SUCCESS) {
    // The driver calls back when the last command that uses the buffer is done: freeing needs no wait.
    code = cl.clSetMemObjectDestructorCallback(buffer->mem, FreeHostMemory, host);
    if (code == CL_SUCCESS) return buffer;
    cl.clReleaseMemObject(buffer->mem);
  }
  std::free(host);
  Check(code, "clCreateBuffer", context);
  return buffer;
}

}  // namespace

OpenCLDeviceAPI* OpenCLDeviceAPI::Global() {
  static OpenCLDeviceAPI* api = new OpenCLDeviceAPI();  // never destroyed: it outlives tensors and modules
  return api;
}

void OpenCLDeviceAPI::GetOwnAttr(const DeviceInfo& info, tvm::runtime::DeviceAttrKind kind, ffi::Any* result) {
  using namespace tvm::runtime;
  if (kind == kMaxSharedMemoryPerBlock) *result = static_cast<int64_t>(info.local_memory);
  if (kind == kMaxClockRate) *result = static_cast<int64_t>(info.clock_mhz) * 1000;
  if (kind == kMultiProcessorCount) *result = static_cast<int64_t>(info.compute_units);
}

void OpenCLDeviceAPI::GetTargetProperty(Device device, const std::string& property, ffi::Any* result) {
  const DeviceInfo& info = RequireDevice(device.device_id);
  if (property == "max_threads_per_block" || property == "max_num_threads") {
    *result = static_cast<int64_t>(info.max_group);
  } else if (property == "max_shared_memory_per_block") {
    *result = static_cast<int64_t>(info.local_memory);
  } else if (property == "thread_warp_size") {
    *result = static_cast<int64_t>(1);
  }
}

void* OpenCLDeviceAPI::AllocDataSpace(Device device, size_t nbytes, size_t alignment, DLDataType) {
  const std::shared_ptr<Queue> queue = Queue::Of(device.device_id);
  try {
    return Allocate(queue, nbytes, alignment).release();
  } catch (const ffi::Error&) {
    if (Trim() == 0) throw;
  }
  return Allocate(queue, nbytes, alignment).release();
}

void OpenCLDeviceAPI::FreeDataSpace(Device, void* data) {
  std::unique_ptr<Buffer> buffer(static_cast<Buffer*>(data));
  if (buffer == nullptr || buffer->lent != nullptr) return;
  // The owner of borrowed memory may reuse it as soon as we return.
  if (buffer->borrowed) {
    try {
      buffer->queue->Finish();
    } catch (const std::exception&) {
      // Lost, or failed: the next run on the device gets the error.
    }
  }
  RequireDriver().clReleaseMemObject(buffer->mem);
}

size_t OpenCLDeviceAPI::Trim() {
  size_t freed = 0;
  for (const auto& [index, nbytes] : FreeIdleWorkspaces()) {
    freed += nbytes;
    Queue::Of(index)->Finish();  // only then the driver has freed the memory
  }
  return freed;
}

void* OpenCLDeviceAPI::Borrow(int device, void* host, size_t nbytes) {
  const std::shared_ptr<Queue> queue = Queue::Of(device);
  const DeviceInfo& info = queue->info();
  if (!info.shares_host_memory) {
    Throw(ErrorClass::kDevice, "'" + info.name + "' does not share the host's memory: copy instead");
  }
  if (host == nullptr || nbytes == 0) Throw(ErrorClass::kDevice, "there is no memory to share");
  if (reinterpret_cast<uintptr_t>(host) % 64 != 0) {
    Throw(ErrorClass::kDevice, "memory to share with '" + info.name + "' must lie at a 64-byte boundary");
  }
  auto buffer = std::make_unique<Buffer>();
  buffer->queue = queue;
  buffer->host = host;
  buffer->size = nbytes;
  buffer->borrowed = true;
  cl_int code = CL_SUCCESS;
  buffer->mem =
      RequireDriver().clCreateBuffer(queue->context(), CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, nbytes, host, &code);
  Check(code, "clCreateBuffer", Bytes(nbytes) + " of host memory on '" + info.name + "'");
  return buffer.release();
}

void OpenCLDeviceAPI::CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t nbytes,
                                     Device from_device, Device to_device, DLDataType, TVMStreamHandle) {
  if (nbytes == 0) return;
  bool from_opencl = from_device.device_type == kDLOpenCL;
  bool to_opencl = to_device.device_type == kDLOpenCL;
  if (from_opencl && OnHostSide(from)) {
    from = static_cast<const Buffer*>(from)->host;
    from_opencl = false;
  }
  if (to_opencl && OnHostSide(to)) {
    to = static_cast<Buffer*>(to)->host;
    to_opencl = false;
  }
  const Driver& cl = RequireDriver();
  const auto read = [&](void* target) {
    const auto* source = static_cast<const Buffer*>(from);
    Queue& queue = *source->queue;
    queue.CountCopy(nbytes);
    const cl_int code = queue.Run([&](cl_command_queue q) {
      return cl.clEnqueueReadBuffer(q, source->mem, CL_TRUE, from_offset, nbytes, target, 0, nullptr, nullptr);
    });
    queue.Check(code, "clEnqueueReadBuffer", Bytes(nbytes) + " from '" + queue.info().name + "'");
  };
  const auto write = [&](const void* source) {
    auto* target = static_cast<Buffer*>(to);
    Queue& queue = *target->queue;
    queue.CountCopy(nbytes);
    const cl_int code = queue.Run([&](cl_command_queue q) {
      return cl.clEnqueueWriteBuffer(q, target->mem, CL_TRUE, to_offset, nbytes, source, 0, nullptr, nullptr);
    });
    queue.Check(code, "clEnqueueWriteBuffer", Bytes(nbytes) + " to '" + queue.info().name + "'");
  };
  if (from_opencl && to_opencl && static_cast<const Buffer*>(from)->queue == static_cast<Buffer*>(to)->queue) {
    const auto* source = static_cast<const Buffer*>(from);
    auto* target = static_cast<Buffer*>(to);
    Queue& queue = *target->queue;
    queue.CountCopy(nbytes);
    const cl_int code = queue.Run([&](cl_command_queue q) {
      return cl.clEnqueueCopyBuffer(q, source->mem, target->mem, from_offset, to_offset, nbytes, 0, nullptr, nullptr);
    });
    queue.Check(code, "clEnqueueCopyBuffer", Bytes(nbytes) + " on '" + queue.info().name + "'");
  } else if (from_opencl && to_opencl) {
    std::vector<char> staging(nbytes);
    read(staging.data());
    write(staging.data());
  } else if (from_opencl) {
    read(static_cast<char*>(to) + to_offset);
  } else if (to_opencl) {
    write(static_cast<const char*>(from) + from_offset);
  } else {
    std::memcpy(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset, nbytes);
  }
}

}  // namespace heterocc::opencl_plugin
