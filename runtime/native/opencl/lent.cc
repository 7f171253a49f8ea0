#include "lent.h"

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "device_api.h"
#include "error.h"
#include "fault.h"

namespace heterocc::opencl_plugin {
namespace {

namespace ffi = tvm::ffi;

constexpr size_t kAlignment = 64;  // required by the host's kernels
constexpr size_t kProbed = 1 << 16;
constexpr char kMoves[] = "the driver maps memory where the host cannot use it";
constexpr int kGarbage = 0xff;  // a NaN in every floating-point type

}  // namespace

// The events that the host waits for before it accesses memory on its side.
class Maps {
 public:
  Maps(std::shared_ptr<Queue> queue, std::string context) : queue_(std::move(queue)), context_(std::move(context)) {}
  ~Maps() {
    for (cl_event event : events_) RequireDriver().clReleaseEvent(event);
  }
  Maps(const Maps&) = delete;
  Maps& operator=(const Maps&) = delete;

  // Keeps the event of a map.
  void Add(cl_event event) {
    events_.reserve(events_.size() + 1);
    queue_->Check(RequireDriver().clRetainEvent(event), "clRetainEvent", context_);
    events_.push_back(event);
  }

  // Makes the queue start its commands.
  void Start() const {
    if (events_.empty()) return;
    queue_->Check(queue_->Run([](cl_command_queue q) { return RequireDriver().clFlush(q); }), "clFlush", context_);
  }

  void Settle() const {
    if (events_.empty()) return;
    queue_->CheckAlive();
    const Driver& cl = RequireDriver();
    const cl_int code = cl.clWaitForEvents(static_cast<cl_uint>(events_.size()), events_.data());
    for (cl_event event : events_) {
      cl_int status = CL_COMPLETE;
      cl.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
      if (status < 0) queue_->Check(status, "clEnqueueMapBuffer", context_);
    }
    queue_->Check(code, "clWaitForEvents", context_);
  }

 private:
  const std::shared_ptr<Queue> queue_;
  std::vector<cl_event> events_;
  const std::string context_;
};

namespace {

class LentData {
 public:
  void AllocData(DLTensor* tensor) {
    auto buffer = std::make_unique<Buffer>();
    const size_t size = ffi::GetDataSize(*tensor);
    buffer->queue = Queue::Of(tensor->device.device_id);
    try {
      buffer->lent = std::make_unique<Lent>(buffer->queue, size);
    } catch (const ffi::Error&) {
      if (OpenCLDeviceAPI::Global()->Trim() == 0) throw;
      buffer->lent = std::make_unique<Lent>(buffer->queue, size);
    }
    buffer->mem = buffer->lent->mem();
    buffer->host = buffer->lent->host();
    buffer->size = size;
    tensor->data = buffer.release();
  }
  void FreeData(DLTensor* tensor) { OpenCLDeviceAPI::Global()->FreeDataSpace(tensor->device, tensor->data); }
};

Buffer* LentBuffer(const ffi::Tensor& tensor) {
  const bool ours = tensor.device().device_type == kDLOpenCL;
  auto* buffer = ours ? static_cast<Buffer*>(tensor.data_ptr()) : nullptr;
  if (buffer == nullptr || buffer->lent == nullptr) Throw(ErrorClass::kDevice, "the tensor is not in lent memory");
  return buffer;
}

}  // namespace

Lent::Lent(std::shared_ptr<Queue> queue, size_t nbytes)
    : queue_(std::move(queue)),
      size_(nbytes),
      context_(Bytes(nbytes) + " lent to the host by '" + queue_->info().name + "'") {
  const Driver& cl = RequireDriver();
  if (Faults::Global().AllocFails()) Check(CL_MEM_OBJECT_ALLOCATION_FAILURE, "clCreateBuffer", context_);
  const bool apart = Faults::Global().Incoherent();
  const cl_mem_flags flags = CL_MEM_READ_WRITE | (apart ? 0 : CL_MEM_ALLOC_HOST_PTR);
  cl_int code = CL_SUCCESS;
  mem_ = cl.clCreateBuffer(queue_->context(), flags, size_, nullptr, &code);
  Check(code, "clCreateBuffer", context_);
  try {
    if (apart) {
      const size_t whole = (size_ + kAlignment - 1) / kAlignment * kAlignment;
      host_ = static_cast<char*>(std::aligned_alloc(kAlignment, whole));
      if (host_ == nullptr) Check(CL_OUT_OF_HOST_MEMORY, "aligned_alloc", context_);
    }
    Maps maps(queue_, context_);
    Turn(Side::kHost, &maps);
    maps.Start();
    maps.Settle();
    if (reinterpret_cast<uintptr_t>(host_) % kAlignment != 0) {
      Throw(ErrorClass::kDevice, std::string(kMoves) + ": at an odd address; " + context_);
    }
  } catch (...) {
    Free();
    throw;
  }
}

Lent::~Lent() {
  Free();
}

void Lent::Free() {
  const Driver& cl = RequireDriver();
  try {
    Unmap();
  } catch (const std::exception&) {
    // The device failed; the memory is freed all the same.
  }
  cl.clReleaseMemObject(mem_);
  if (!Faults::Global().Incoherent()) return;
  try {
    queue_->Finish();
  } catch (const std::exception&) {
    // Lost: nothing uses it any more.
  }
  std::free(host_);
}

void Lent::ReleaseEvent() {
  if (mapped_ != nullptr) RequireDriver().clReleaseEvent(mapped_);
  mapped_ = nullptr;
}

void Lent::Unmap() {
  if (side_ == Side::kDevice) return;
  const Driver& cl = RequireDriver();
  const Side side = side_;
  side_ = Side::kDevice;
  ReleaseEvent();
  const cl_int code = queue_->Run([&](cl_command_queue q) -> cl_int {
    if (!Faults::Global().Incoherent()) return cl.clEnqueueUnmapMemObject(q, mem_, host_, 0, nullptr, nullptr);
    if (side == Side::kBoth) return cl.clFinish(q);
    return cl.clEnqueueWriteBuffer(q, mem_, CL_TRUE, 0, size_, host_, 0, nullptr, nullptr);
  });
  if (Faults::Global().Incoherent()) std::memset(host_, kGarbage, size_);
  queue_->Check(code, "clEnqueueUnmapMemObject", context_);
}

void Lent::Map(Side side) {
  const Driver& cl = RequireDriver();
  const cl_map_flags flags = side == Side::kBoth ? CL_MAP_READ : CL_MAP_READ | CL_MAP_WRITE;
  char* const known = host_;
  const cl_int code = queue_->Run([&](cl_command_queue q) -> cl_int {
    if (Faults::Global().MapFails()) return CL_MAP_FAILURE;
    if (Faults::Global().Incoherent()) {
      return cl.clEnqueueReadBuffer(q, mem_, CL_FALSE, 0, size_, host_, 0, nullptr, &mapped_);
    }
    cl_int result = CL_SUCCESS;
    void* place = cl.clEnqueueMapBuffer(q, mem_, CL_FALSE, flags, 0, size_, 0, nullptr, &mapped_, &result);
    if (result == CL_SUCCESS) host_ = static_cast<char*>(place);
    return result;
  });
  queue_->Check(code, "clEnqueueMapBuffer", context_);
  queue_->CountMap();
  side_ = side;
  if (known == nullptr || (known == host_ && !Faults::Global().MapMoves())) return;
  Unmap();
  host_ = known;
  queue_->NoteMoves();
  Throw(ErrorClass::kDevice, std::string(kMoves) + ": at another address than before; load the bundle again, then " +
                                 "values are copied; " + context_);
}

void Lent::Turn(Side side, Maps* maps) {
  if (side != side_) {
    Unmap();
    if (side != Side::kDevice) Map(side);
  }
  if (mapped_ != nullptr) maps->Add(mapped_);
}

bool Lends(int64_t device) {
  const std::shared_ptr<Queue> queue = Queue::Of(static_cast<int>(device));
  if (!queue->info().unified || queue->info().shares_host_memory || queue->Moves()) return false;
  try {
    Lent probe(queue, kProbed);
    Maps maps(queue, "");
    for (Side side : {Side::kDevice, Side::kBoth, Side::kHost}) probe.Turn(side, &maps);
    maps.Start();
    maps.Settle();
    return true;
  } catch (const ffi::Error& error) {
    if (std::string(error.what()).find(kMoves) == std::string::npos) throw;
    return false;
  }
}

ffi::Tensor Lend(int64_t device, int64_t nbytes) {
  const int64_t extent[] = {nbytes};
  return ffi::Tensor::FromNDAlloc(LentData(), ffi::Shape(extent, extent + 1), DLDataType{kDLUInt, 8, 1},
                                  DLDevice{kDLOpenCL, static_cast<int32_t>(device)});
}

ffi::Function Turn(const ffi::Array<ffi::Tensor>& tensors, const ffi::Array<int64_t>& sides) {
  if (tensors.empty()) return ffi::Function::FromTyped([]() {});
  auto maps = std::make_shared<Maps>(LentBuffer(tensors[0])->queue, "memory lent to the host");
  size_t place = 0;
  for (const ffi::Tensor& tensor : tensors) {
    LentBuffer(tensor)->lent->Turn(static_cast<Side>(sides[place++]), maps.get());
  }
  maps->Start();
  return ffi::Function::FromTyped([maps]() { maps->Settle(); });
}

}  // namespace heterocc::opencl_plugin
