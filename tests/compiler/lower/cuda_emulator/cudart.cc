// A stand-in for libcudart.so.13, over that for libcuda.so.1.
#include <cstdlib>
#include <cstring>

#include "streams.h"

using emulated::sticky;

extern "C" {

int cudaSetDevice(int device) {
  return emulated::use_device(device), sticky();
}
int cudaGetDevice(int* device) {
  return *device = emulated::current_device(), sticky();
}
int cudaGetDeviceCount(int* count) {
  return *count = emulated::number("EMULATED_COUNT", 1), 0;
}
int cudaGetDeviceProperties(void*, int) {
  return 801;
}
int cudaGetLastError() {
  return sticky();
}
int cudaPeekAtLastError() {
  return sticky();
}
const char* cudaGetErrorName(int error) {
  return error == 700 ? "cudaErrorIllegalAddress" : error == 2 ? "cudaErrorMemoryAllocation" : "cudaErrorEmulated";
}
const char* cudaGetErrorString(int error) {
  return error == 700 ? "an illegal memory access was encountered" : error == 2 ? "out of memory" : "emulated failure";
}

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  if (attribute == 75) return *value = 9, 0;   // compute capability, major
  if (attribute == 10) return *value = 32, 0;  // warp size
  return *value = 0, 0;
}

int cudaMalloc(void** place, size_t bytes) {
  const char* limit = getenv("EMULATED_MEMORY");
  if (sticky() || (limit && bytes > strtoull(limit, nullptr, 10))) return sticky() ? sticky() : 2;
  return *place = emulated::allocate(bytes, true), *place ? 0 : 2;
}
int cudaMallocHost(void** place, size_t bytes) {
  if (sticky()) return sticky();
  return *place = emulated::allocate(bytes, false), *place ? 0 : 2;
}
int cudaFree(void* place) {
  return sticky() ? sticky() : (emulated::release(place), sticky());
}
int cudaFreeHost(void* place) {
  return sticky() ? sticky() : (emulated::release(place), sticky());
}
int cudaMemGetInfo(size_t* unused, size_t* total) {
  return *unused = *total = size_t{1} << 30, sticky();
}

int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  return cuMemcpyAsync(reinterpret_cast<size_t>(to), reinterpret_cast<size_t>(from), bytes, stream);
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
  return cuMemcpyAsync(reinterpret_cast<size_t>(to), reinterpret_cast<size_t>(from), bytes, stream);
}

int cudaDeviceSynchronize() {
  return emulated::drain_all(), sticky();
}
int cudaStreamCreate(void** stream) {
  return cuStreamCreate(stream, 0);
}
int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  return cuStreamCreate(stream, flags);
}
int cudaStreamDestroy(void* stream) {
  return cuStreamDestroy_v2(stream);
}
int cudaStreamSynchronize(void* stream) {
  return cuStreamSynchronize(stream);
}
int cudaStreamWaitEvent(void*, void*, unsigned) {
  return 801;
}
int cudaStreamBeginCapture(void*, int) {
  return 801;
}
int cudaStreamEndCapture(void*, void**) {
  return 801;
}
int cudaEventCreate(void**) {
  return 801;
}
int cudaEventDestroy(void*) {
  return 801;
}
int cudaEventElapsedTime(float*, void*, void*) {
  return 801;
}
int cudaEventRecord(void*, void*) {
  return 801;
}
int cudaEventSynchronize(void*) {
  return 801;
}
int cudaGraphDestroy(void*) {
  return 0;
}
int cudaGraphExecDestroy(void*) {
  return 0;
}
int cudaGraphInstantiate(void**, void*, unsigned long long) {
  return 801;
}
int cudaGraphLaunch(void*, void*) {
  return 801;
}

}  // extern "C"
