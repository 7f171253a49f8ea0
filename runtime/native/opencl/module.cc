#include "module.h"

#include <algorithm>
#include <utility>

#include "device_api.h"
#include "error.h"
#include "fault.h"

namespace heterocc::opencl_plugin {
namespace {

namespace ffi = tvm::ffi;

constexpr char kBuildFunction[] = "heterocc_build";
constexpr size_t kMaxBuildLog = 4000;

std::string BuildLog(const Driver& cl, cl_program program, cl_device_id device) {
  size_t size = 0;
  cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
  std::string log(size, '\0');
  if (size != 0) cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  log.resize(std::min({log.find('\0'), log.size(), kMaxBuildLog}));
  return log;
}

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

std::string Extent(const size_t* sizes, int dimensions) {
  std::string text = std::to_string(sizes[0]);
  for (int i = 1; i < dimensions; ++i) text += "x" + std::to_string(sizes[i]);
  return text;
}

}  // namespace

Kernel::~Kernel() {
  for (auto& [device, kernel] : built_) RequireDriver().clReleaseKernel(kernel);
}

void Kernel::Build(int device) {
  Queue& queue = Queue::Of(device);
  std::lock_guard<std::mutex> lock(mutex_);
  BuildLocked(device, queue);
}

cl_kernel Kernel::BuildLocked(int device, Queue& queue) {
  const auto found = built_.find(device);
  if (found != built_.end()) return found->second;
  const Driver& cl = RequireDriver();
  const DeviceInfo& info = queue.info();
  const char* source = spec_.source.c_str();
  const size_t size = spec_.source.size();
  cl_int code = CL_SUCCESS;
  cl_program program = cl.clCreateProgramWithSource(queue.context(), 1, &source, &size, &code);
  Check(code, "clCreateProgramWithSource", "kernel '" + name_ + "'");
  code = Faults::Global().BuildFails() ? CL_BUILD_PROGRAM_FAILURE
                                       : cl.clBuildProgram(program, 1, &info.id, "", nullptr, nullptr);
  if (code != CL_SUCCESS) {
    const std::string log = BuildLog(cl, program, info.id);
    cl.clReleaseProgram(program);
    Throw(ErrorClass::kBuild, "kernel '" + name_ + "' does not build on '" + info.name + "': clBuildProgram gave " +
                                  Describe(code) + (log.empty() ? "" : "\n" + log));
  }
  cl_kernel kernel = cl.clCreateKernel(program, name_.c_str(), &code);
  cl.clReleaseProgram(program);  // the kernel keeps it
  Check(code, "clCreateKernel", "kernel '" + name_ + "'");
  built_.emplace(device, kernel);
  return kernel;
}

void Kernel::Launch(const TVMFFIAny* arguments, int32_t count) {
  const size_t expected = spec_.arguments.size() + spec_.launch_axes.size();
  if (count < 0 || static_cast<size_t>(count) != expected) {
    Throw(ErrorClass::kModule, "kernel '" + name_ + "' was called with " + std::to_string(count) + " arguments, not " +
                                   std::to_string(expected));
  }
  size_t extents[6] = {1, 1, 1, 1, 1, 1};
  for (size_t i = 0; i < spec_.launch_axes.size(); ++i) {
    const int64_t extent = arguments[spec_.arguments.size() + i].v_int64;
    if (extent <= 0) return;  // an empty tensor: nothing to compute
    extents[spec_.launch_axes[i]] = static_cast<size_t>(extent);
  }
  size_t global[3];
  size_t* local = extents + 3;
  for (int i = 0; i < 3; ++i) global[i] = extents[i] * local[i];

  const Driver& cl = RequireDriver();
  const int device = OpenCLDeviceAPI::CurrentDevice();
  Queue& queue = Queue::Of(device);
  std::lock_guard<std::mutex> lock(mutex_);
  cl_kernel kernel = BuildLocked(device, queue);
  for (size_t i = 0; i < spec_.arguments.size(); ++i) {
    const int32_t given = arguments[i].type_index;
    if (spec_.arguments[i].code == kDLOpaqueHandle && given != ffi::TypeIndex::kTVMFFIOpaquePtr &&
        given != ffi::TypeIndex::kTVMFFINone) {
      Throw(ErrorClass::kModule, "argument " + std::to_string(i) + " of kernel '" + name_ + "' is no buffer");
    }
    const cl_int code = SetArgument(cl, kernel, static_cast<cl_uint>(i), spec_.arguments[i], arguments[i]);
    Check(code, "clSetKernelArg", "argument " + std::to_string(i) + " of kernel '" + name_ + "'");
  }
  const cl_int code = queue.RunKernel(name_, [&](cl_command_queue q, cl_event* event) {
    if (Faults::Global().LaunchFails()) return static_cast<cl_int>(CL_OUT_OF_RESOURCES);
    return cl.clEnqueueNDRangeKernel(q, kernel, spec_.dimensions, nullptr, global, local, 0, nullptr, event);
  });
  if (code == CL_SUCCESS) return;
  size_t limit = 0;
  cl.clGetKernelWorkGroupInfo(kernel, queue.info().id, CL_KERNEL_WORK_GROUP_SIZE, sizeof limit, &limit, nullptr);
  Check(code, "clEnqueueNDRangeKernel",
        "kernel '" + name_ + "' on '" + queue.info().name + "', " + Extent(global, spec_.dimensions) +
            " work items in groups of " + Extent(local, spec_.dimensions) + "; the kernel's largest group is " +
            std::to_string(limit));
}

OpenCLModule::OpenCLModule(ffi::Bytes bytes) : bytes_(std::move(bytes)) {
  for (auto& [name, spec] : ParseModule(bytes_.data(), bytes_.size())) {
    kernels_.emplace(name, std::make_unique<Kernel>(name, spec));
  }
}

ffi::String OpenCLModule::InspectSource(const ffi::String&) const {
  std::string source;
  for (const auto& [name, kernel] : kernels_) source += "// Function: " + name + kernel->spec().source;
  return source;
}

ffi::Optional<ffi::Function> OpenCLModule::GetFunction(const ffi::String& name) {
  auto self = ffi::GetObjectPtr<ffi::Object>(this);
  if (std::string(name) == kBuildFunction) {
    return ffi::Function::FromTyped([this, self](int64_t device) {
      for (auto& [symbol, kernel] : kernels_) kernel->Build(static_cast<int>(device));
      return static_cast<int64_t>(kernels_.size());
    });
  }
  const auto found = kernels_.find(std::string(name));
  if (found == kernels_.end()) return std::nullopt;
  Kernel* kernel = found->second.get();
  return ffi::Function::FromPacked([kernel, self](const ffi::AnyView* arguments, int32_t count, ffi::Any*) {
    kernel->Launch(reinterpret_cast<const TVMFFIAny*>(arguments), count);
  });
}

}  // namespace heterocc::opencl_plugin
