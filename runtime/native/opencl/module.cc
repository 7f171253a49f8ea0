#include "module.h"

#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <utility>

#include "../common/kernel_arguments.h"
#include "../common/parallel.h"
#include "device_api.h"
#include "error.h"
#include "fault.h"

namespace heterocc::opencl_plugin {
namespace {

namespace ffi = tvm::ffi;

// Drivers need milliseconds for a program of any size, and compile the kernels of one program sequentially.
constexpr size_t kMostPrograms = 4;
constexpr size_t kProgramKernels = 24;  // the number above which another program is faster

// The integer or pointer of an argument as the host code passed it.
cl_int SetArgument(const Driver& cl, cl_kernel kernel, cl_uint index, DLDataType type, const TVMFFIAny& argument) {
  if (type.code == kDLOpaqueHandle) {
    const auto* buffer =
        argument.type_index == ffi::TypeIndex::kTVMFFINone ? nullptr : static_cast<const Buffer*>(argument.v_ptr);
    const cl_mem mem = buffer == nullptr ? nullptr : buffer->mem;
    return cl.clSetKernelArg(kernel, index, sizeof mem, &mem);
  }
  if (type.code == kDLFloat && type.bits == 32) {
    const auto value = static_cast<float>(argument.v_float64);
    return cl.clSetKernelArg(kernel, index, sizeof value, &value);
  }
  // Doubles, and integers of any width: the low bytes of the little-endian slot.
  return cl.clSetKernelArg(kernel, index, type.bits / 8, &argument.v_int64);
}

}  // namespace

std::shared_ptr<Queue> Kernel::QueueOf(const TVMFFIAny* arguments) const {
  std::shared_ptr<Queue> queue;
  for (size_t i = 0; i < spec_.arguments.size(); ++i) {
    const int32_t given = arguments[i].type_index;
    if (spec_.arguments[i].code != kDLOpaqueHandle || given == ffi::TypeIndex::kTVMFFINone) continue;
    const auto place = [&]() { return ArgumentName(name_, i) + " "; };
    if (given != ffi::TypeIndex::kTVMFFIOpaquePtr) Throw(ErrorClass::kModule, place() + "is not a buffer");
    const auto* buffer = static_cast<const Buffer*>(arguments[i].v_ptr);
    if (buffer == nullptr) continue;
    if (buffer->queue->Lost()) {
      buffer->queue->Refuse(place() + "is of a device that was lost: load the bundle again");
    }
    if (queue == nullptr) queue = buffer->queue;
    if (buffer->queue != queue) Throw(ErrorClass::kDevice, place() + "lies on another device than those before");
    if (buffer->lent != nullptr && buffer->lent->side() == Side::kHost) {
      Throw(ErrorClass::kDevice, place() + "is mapped for the host");
    }
  }
  return queue == nullptr ? Queue::Of(OpenCLDeviceAPI::CurrentDevice()) : queue;
}

void Kernel::Launch(const TVMFFIAny* arguments, int32_t count, const Binaries& bundled) {
  RequireArgumentCount(name_, count, spec_.arguments.size() + spec_.launch.size());
  size_t extents[6] = {1, 1, 1, 1, 1, 1};
  for (size_t i = 0; i < spec_.launch.size(); ++i) {
    const int64_t extent = arguments[spec_.arguments.size() + i].v_int64;
    if (extent <= 0) return;  // an empty tensor: nothing to compute
    extents[spec_.launch[i]] = static_cast<size_t>(extent);
  }
  size_t global[3];
  size_t* local = extents + kFirstWorkItems;
  for (int i = 0; i < 3; ++i) {
    if (__builtin_mul_overflow(extents[i], local[i], &global[i])) {
      Throw(ErrorClass::kModule, "kernel '" + name_ + "' was launched with more work items than can be counted");
    }
  }

  const Driver& cl = RequireDriver();
  const std::shared_ptr<Queue> queue = QueueOf(arguments);
  const std::shared_ptr<_cl_kernel> kernel = program_->Get(name_, queue, bundled);
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < spec_.arguments.size(); ++i) {
    const cl_int code = SetArgument(cl, kernel.get(), static_cast<cl_uint>(i), spec_.arguments[i], arguments[i]);
    queue->Check(code, "clSetKernelArg", ArgumentName(name_, i));
  }
  const cl_int code = queue->RunKernel([&](cl_command_queue q, cl_event* event) {
    if (Faults::Global().LaunchFails()) return static_cast<cl_int>(CL_OUT_OF_RESOURCES);
    return cl.clEnqueueNDRangeKernel(q, kernel.get(), spec_.dimensions, nullptr, global, local, 0, nullptr, event);
  });
  if (code == CL_SUCCESS) return;
  size_t limit = 0;
  cl.clGetKernelWorkGroupInfo(kernel.get(), queue->info().id, CL_KERNEL_WORK_GROUP_SIZE, sizeof limit, &limit, nullptr);
  queue->Check(code, "clEnqueueNDRangeKernel",
               "kernel '" + name_ + "' on '" + queue->info().name + "', " + Extent(global, spec_.dimensions) +
                   " work items in groups of " + Extent(local, spec_.dimensions) + "; the kernel's largest group is " +
                   std::to_string(limit));
}

OpenCLModule::OpenCLModule(ffi::Bytes bytes) : bytes_(std::move(bytes)) {
  auto specs = ParseModule(bytes_.data(), bytes_.size());
  // The same on every machine, because the key of a program's binary includes its source.
  const size_t count = std::min(kMostPrograms, (specs.size() + kProgramKernels - 1) / kProgramKernels);
  std::vector<std::vector<Program::Source>> groups(count);
  size_t place = 0;
  for (const auto& [name, spec] : specs) groups[place++ * count / specs.size()].emplace_back(name, spec.source);
  for (auto& group : groups) {
    Program* program = programs_.emplace_back(std::make_unique<Program>(group)).get();
    for (const auto& [name, source] : group) {
      kernels_.emplace(name, std::make_unique<Kernel>(name, std::move(specs.at(name)), program));
    }
  }
}

ffi::String OpenCLModule::InspectSource(const ffi::String&) const {
  std::string source;
  for (const auto& [name, kernel] : kernels_) source += "// Function: " + name + kernel->spec().source;
  return source;
}

void OpenCLModule::BuildAll(int device) {
  InParallel(programs_.size(), programs_.size(), [&](size_t i) { programs_[i]->Build(device, bundled_); });
}

Origins OpenCLModule::CountOrigins(int device) {
  Origins origins;
  for (const auto& program : programs_) program->Count(device, &origins);
  return origins;
}

std::string OpenCLModule::CollectBinaries(int device) {
  Binaries binaries;
  for (const auto& program : programs_) program->Collect(device, &binaries);
  return PackBinaries(binaries);
}

ffi::Optional<ffi::Function> OpenCLModule::GetFunction(const ffi::String& name) {
  auto self = ffi::GetObjectPtr<ffi::Object>(this);
  const std::string text = name;
  if (text == "heterocc_offer") {
    return ffi::Function::FromTyped(
        [this, self](const ffi::Bytes& bytes) { bundled_ = ParseBinaries(bytes.data(), bytes.size()); });
  }
  if (text == "heterocc_build") {
    return ffi::Function::FromTyped([this, self](int64_t device) {
      BuildAll(static_cast<int>(device));
      return static_cast<int64_t>(kernels_.size());
    });
  }
  if (text == "heterocc_origins") {
    return ffi::Function::FromTyped([this, self](int64_t device) {
      const Origins origins = CountOrigins(static_cast<int>(device));
      return ffi::Array<int64_t>{origins.bundle, origins.disk, origins.source, origins.refused};
    });
  }
  if (text == "heterocc_binaries") {
    return ffi::Function::FromTyped(
        [this, self](int64_t device) { return ffi::Bytes(CollectBinaries(static_cast<int>(device))); });
  }
  const auto found = kernels_.find(text);
  if (found == kernels_.end()) return std::nullopt;
  Kernel* kernel = found->second.get();
  return ffi::Function::FromPacked([this, kernel, self](const ffi::AnyView* arguments, int32_t count, ffi::Any*) {
    kernel->Launch(reinterpret_cast<const TVMFFIAny*>(arguments), count, bundled_);
  });
}

}  // namespace heterocc::opencl_plugin
