// The OpenCL driver, opened at run time: on a machine without one, the plug-in loads and reports the reason.
//
// Ownership: the library is opened once and never closed; the table lives as long as the process.
// Threading: every function here may be called from any thread; the first call does the work.
#ifndef HETEROCC_OPENCL_DRIVER_H_
#define HETEROCC_OPENCL_DRIVER_H_

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <string>

namespace heterocc::opencl_plugin {

#define HETEROCC_CL_FUNCTIONS(X)      \
  X(clGetPlatformIDs)                 \
  X(clGetPlatformInfo)                \
  X(clGetDeviceIDs)                   \
  X(clGetDeviceInfo)                  \
  X(clCreateContext)                  \
  X(clReleaseContext)                 \
  X(clCreateCommandQueue)             \
  X(clReleaseCommandQueue)            \
  X(clCreateBuffer)                   \
  X(clReleaseMemObject)               \
  X(clSetMemObjectDestructorCallback) \
  X(clCreateProgramWithSource)        \
  X(clCreateProgramWithBinary)        \
  X(clBuildProgram)                   \
  X(clGetProgramInfo)                 \
  X(clGetProgramBuildInfo)            \
  X(clReleaseProgram)                 \
  X(clCreateKernel)                   \
  X(clReleaseKernel)                  \
  X(clSetKernelArg)                   \
  X(clGetKernelWorkGroupInfo)         \
  X(clEnqueueNDRangeKernel)           \
  X(clEnqueueReadBuffer)              \
  X(clEnqueueWriteBuffer)             \
  X(clEnqueueCopyBuffer)              \
  X(clEnqueueMapBuffer)               \
  X(clEnqueueUnmapMemObject)          \
  X(clEnqueueMigrateMemObjects)       \
  X(clEnqueueMarkerWithWaitList)      \
  X(clFlush)                          \
  X(clWaitForEvents)                  \
  X(clGetEventInfo)                   \
  X(clGetEventProfilingInfo)          \
  X(clRetainEvent)                    \
  X(clReleaseEvent)                   \
  X(clFinish)

// The OpenCL 1.2 functions that the plug-in calls, each resolved from the driver's loader.
struct Driver {
#define HETEROCC_CL_MEMBER(name) decltype(&::name) name = nullptr;
  HETEROCC_CL_FUNCTIONS(HETEROCC_CL_MEMBER)
#undef HETEROCC_CL_MEMBER
};

// The driver, or null if it cannot be opened (`WhyNoDriver` gives the reason).
const Driver* FindDriver();

// The reason why `FindDriver` returns null; empty if it does not.
const std::string& WhyNoDriver();

// The driver; throws a `driver` error if there is none.
const Driver& RequireDriver();

}  // namespace heterocc::opencl_plugin

#endif  // HETEROCC_OPENCL_DRIVER_H_
