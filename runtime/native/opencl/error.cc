#include "error.h"

#include <cstring>

namespace heterocc::opencl_plugin {
namespace {

constexpr Meaning<cl_int> kMeanings[] = {
    {CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND", "the platform has no device"},
    {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE", "the device is in use or switched off"},
    {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE", "the driver has no compiler"},
    {CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE", "the device has no memory for the buffer"},
    {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES", "the device has no resources left, or a kernel failed on it"},
    {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY", "the host has no memory left"},
    {CL_PROFILING_INFO_NOT_AVAILABLE, "CL_PROFILING_INFO_NOT_AVAILABLE", "the device gives no timestamps"},
    {CL_MEM_COPY_OVERLAP, "CL_MEM_COPY_OVERLAP", "source and destination of the copy overlap"},
    {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE", "the driver's compiler refused the source"},
    {CL_MAP_FAILURE, "CL_MAP_FAILURE", "the buffer could not be mapped"},
    {CL_MISALIGNED_SUB_BUFFER_OFFSET, "CL_MISALIGNED_SUB_BUFFER_OFFSET", "the offset is not aligned for the device"},
    {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
     "an earlier command failed"},
    {CL_INVALID_VALUE, "CL_INVALID_VALUE", "an argument is out of range"},
    {CL_INVALID_PLATFORM, "CL_INVALID_PLATFORM", "the platform does not exist"},
    {CL_INVALID_DEVICE, "CL_INVALID_DEVICE", "the device does not exist"},
    {CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT", "the context does not exist"},
    {CL_INVALID_QUEUE_PROPERTIES, "CL_INVALID_QUEUE_PROPERTIES", "the device has no queue of this kind"},
    {CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE", "the queue is lost, often because a kernel failed"},
    {CL_INVALID_HOST_PTR, "CL_INVALID_HOST_PTR", "the host pointer is null or not aligned"},
    {CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT", "the buffer does not exist"},
    {CL_INVALID_BINARY, "CL_INVALID_BINARY", "the binary is not for this device"},
    {CL_INVALID_BUILD_OPTIONS, "CL_INVALID_BUILD_OPTIONS", "the driver's compiler does not know an option"},
    {CL_INVALID_PROGRAM, "CL_INVALID_PROGRAM", "the program does not exist"},
    {CL_INVALID_PROGRAM_EXECUTABLE, "CL_INVALID_PROGRAM_EXECUTABLE", "the program is not built for this device"},
    {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME", "the program has no kernel of this name"},
    {CL_INVALID_KERNEL_DEFINITION, "CL_INVALID_KERNEL_DEFINITION", "the kernel differs between devices"},
    {CL_INVALID_KERNEL, "CL_INVALID_KERNEL", "the kernel does not exist"},
    {CL_INVALID_ARG_INDEX, "CL_INVALID_ARG_INDEX", "the kernel has fewer arguments"},
    {CL_INVALID_ARG_VALUE, "CL_INVALID_ARG_VALUE", "a kernel argument has a wrong value"},
    {CL_INVALID_ARG_SIZE, "CL_INVALID_ARG_SIZE", "a kernel argument has a wrong size"},
    {CL_INVALID_KERNEL_ARGS, "CL_INVALID_KERNEL_ARGS", "a kernel argument was not set"},
    {CL_INVALID_WORK_DIMENSION, "CL_INVALID_WORK_DIMENSION", "a launch has one to three dimensions"},
    {CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE", "the device cannot run work groups of this size"},
    {CL_INVALID_WORK_ITEM_SIZE, "CL_INVALID_WORK_ITEM_SIZE", "a work group is too long in one dimension"},
    {CL_INVALID_GLOBAL_OFFSET, "CL_INVALID_GLOBAL_OFFSET", "the launch offset is out of range"},
    {CL_INVALID_EVENT_WAIT_LIST, "CL_INVALID_EVENT_WAIT_LIST", "an event does not exist"},
    {CL_INVALID_EVENT, "CL_INVALID_EVENT", "the event does not exist"},
    {CL_INVALID_OPERATION, "CL_INVALID_OPERATION", "the call is not allowed here"},
    {CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE", "the buffer is empty or over the device's limit"},
    {CL_INVALID_GLOBAL_WORK_SIZE, "CL_INVALID_GLOBAL_WORK_SIZE", "a launch dimension is zero or too large"},
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR", "no OpenCL platform is installed"},
};

ErrorClass ClassOf(cl_int code, const char* call) {
  switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:
      return ErrorClass::kMemory;
    case CL_OUT_OF_RESOURCES: {  // of a launch it usually means that the kernel failed
      const bool allocates =
          std::strcmp(call, "clCreateBuffer") == 0 || std::strcmp(call, "clEnqueueMigrateMemObjects") == 0;
      return allocates ? ErrorClass::kMemory : ErrorClass::kDevice;
    }
    default:
      return ErrorClass::kDevice;
  }
}

}  // namespace

std::string Describe(cl_int code) {
  return Describe(kMeanings, code, "error");
}

void Check(cl_int code, const char* call, const std::string& context) {
  if (code != CL_SUCCESS) ThrowFailed(ClassOf(code, call), call, Describe(code), context);
}

}  // namespace heterocc::opencl_plugin
