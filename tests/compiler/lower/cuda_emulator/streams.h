// Streams that do nothing until somebody waits: see streams.cc. For the files of the stand-in alone.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace emulated {

/// What has gone wrong for good (an error number of CUDA), 0 while all is well: every call gives it from then on.
int sticky();
/// A kernel has made an illegal access.
void fail_for_good(int error);

/// A line of the log.
void note(const std::string& line);
int number(const char* name, int otherwise);

/// The device whose primary context is current on this thread, 0 if none is.
int current_device();
/// Make a device's primary context current.
void use_device(int device);

/// Put work at the end of a stream; `what` is its line in the log, before the stream's name. Null is the stream of the
/// current device that every such launch shares. Gives CUDA_ERROR_INVALID_HANDLE for a stream of another device.
int enqueue(void* stream, const std::string& what, std::function<void()> work);
/// Do all that the streams were given.
void drain_all();

/// Memory of a device, or page-locked memory of the host, filled with NaN; null if there is not enough memory.
void* allocate(size_t bytes, bool on_device);
void release(void* place);

}  // namespace emulated

extern "C" {
int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void* stream);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamDestroy_v2(void* stream);
int cuStreamSynchronize(void* stream);
}
