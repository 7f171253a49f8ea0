// A stand-in for libcuda.so.1: devices whose kernels are host functions, in the library that the machine code names, or
// EMULATED_KERNELS if it names none.
//
// Enough of the driver's interface for TVM's CUDA runtime. What it is asked for is written to the file that
// EMULATED_LOG names. Threads of a block are fibers, so that barriers work; blocks run one after another, when their
// stream is waited for (see streams.cc).
#include <dlfcn.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "streams.h"

using emulated::note;
using emulated::number;

namespace {

struct Dim {
  unsigned x, y, z;
};

struct LaunchConfig {  // CUlaunchConfig of cuda.h
  Dim grid, block;
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

struct Kernel {
  std::string name;
  void (*call)(void**);
  const size_t* sizes;  // of its arguments, after their number
};

constexpr size_t kStack = 64 * 1024;
ucontext_t scheduler;
std::vector<ucontext_t> fibers;
std::vector<std::vector<char>> stacks;
std::vector<bool> done;
std::vector<int> places;  // the lines of the barriers that threads wait at, 0 of those that are done
size_t current;
void (*kernel)(void**);
void** arguments;

void fiber() {
  kernel(arguments);
  done[current] = true;
  places[current] = 0;
}

}  // namespace

extern "C" {
Dim emulated_thread, emulated_block, emulated_block_size, emulated_grid_size;
}

namespace {

/// The limits of compute capability 9.0. Source: CUDA C++ Programming Guide, "Technical Specifications".
bool is_allowed(const LaunchConfig& config) {
  const auto& [grid, block] = std::pair(config.grid, config.block);
  return grid.x && grid.y && grid.z && block.x && block.y && block.z && grid.x <= 0x7fffffff && grid.y <= 65535 &&
         grid.z <= 65535 && size_t{block.x} * block.y * block.z <= 1024 && block.z <= 64 &&
         config.shared_bytes <= 48 * 1024;
}

/// All threads of a block must come to the same barrier, or a GPU hangs or continues with incomplete writes.
void run_blocks(const Kernel& found, const LaunchConfig& config, void** parameters) {
  kernel = found.call;
  arguments = parameters;
  emulated_block_size = config.block;
  emulated_grid_size = config.grid;
  size_t count = size_t{config.block.x} * config.block.y * config.block.z;
  fibers.resize(count);
  stacks.resize(count);
  for (auto& stack : stacks) stack.resize(kStack);
  Dim& at = emulated_block;
  for (at.z = 0; at.z < config.grid.z; ++at.z)
    for (at.y = 0; at.y < config.grid.y; ++at.y)
      for (at.x = 0; at.x < config.grid.x; ++at.x) {
        done.assign(count, false);
        places.assign(count, 0);
        for (size_t i = 0; i < count; ++i) {
          getcontext(&fibers[i]);
          fibers[i].uc_stack.ss_sp = stacks[i].data();
          fibers[i].uc_stack.ss_size = kStack;
          fibers[i].uc_link = &scheduler;
          makecontext(&fibers[i], fiber, 0);
        }
        // Backwards in every other block: what reads or writes too early, without a barrier, is wrong in one of them.
        bool backwards = (at.x + at.y + at.z) % 2;
        for (size_t left = count; left;) {
          for (size_t turn = 0; turn < count; ++turn) {
            current = backwards ? count - 1 - turn : turn;
            unsigned i = static_cast<unsigned>(current);
            emulated_thread = {i % config.block.x, i / config.block.x % config.block.y,
                               i / (config.block.x * config.block.y)};
            swapcontext(&scheduler, &fibers[current]);
          }
          left = std::count(done.begin(), done.end(), false);
          if (!std::all_of(places.begin(), places.end(), [](int place) { return place == places[0]; }))
            return note("the threads of a block part at a barrier of " + found.name), emulated::fail_for_good(719);
        }
      }
}

}  // namespace

extern "C" {

void emulated_barrier(int place) {
  places[current] = place;
  swapcontext(&fibers[current], &scheduler);
}

int cuInit(unsigned) {
  return number("EMULATED_INIT", 0);
}
int cuDriverGetVersion(int* version) {
  return *version = number("EMULATED_VERSION", 13000), 0;
}
int cuDeviceGetCount(int* count) {
  return *count = number("EMULATED_COUNT", 1), 0;
}
int cuDeviceGet(int* device, int index) {
  return *device = index, 0;
}
int cuDeviceGetName(char* name, int size, int) {
  return snprintf(name, size, "Emulated GPU"), 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  return *bytes = size_t{1} << 30, 0;
}
int cuGetErrorString(int error, const char** text) {
  return *text = error == 700 ? "an illegal memory access was encountered" : "emulated failure", 0;
}
int cuGetErrorName(int error, const char** text) {
  return *text = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "EMULATED_FAILURE", 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 1:
      return *value = 1024, 0;
    case 8:
      return *value = 48 * 1024, 0;
    case 13:
      return *value = 1500000, 0;
    case 16:
      return *value = 8, 0;
    case 36:
      return *value = 2000000, 0;
    case 37:
      return *value = 256, 0;
    case 75:
      return *value = number("EMULATED_MAJOR", 9), 0;
    case 76:
      return *value = number("EMULATED_MINOR", 0), 0;
    default:
      return *value = 0, 0;
  }
}

int cuModuleLoadData(void** module, const void* image) {
  auto bytes = static_cast<const unsigned char*>(image);
  uint32_t flags;
  memcpy(&flags, bytes + 48, 4);
  char line[80];
  snprintf(line, sizeof line, "load elf=%d arch=%u",
           !memcmp(bytes,
                   "\x7f"
                   "ELF",
                   4),
           (flags >> 8) & 0xff);
  note(line);
  const char* named = reinterpret_cast<const char*>(bytes) + 64;  // after the head
  const char* path = *named ? named : getenv("EMULATED_KERNELS");
  *module = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!*module) note(std::string("no kernels: ") + (path ? dlerror() : "EMULATED_KERNELS is not set"));
  return *module ? 0 : 209;  // CUDA_ERROR_NO_BINARY_FOR_GPU
}

int cuModuleUnload(void*) {
  return 0;
}
int cuFuncSetAttribute(void*, int, int) {
  return 0;
}
int cuTensorMapEncodeTiled() {
  return 801;
}  // CUDA_ERROR_NOT_SUPPORTED

int cuModuleGetFunction(void** function, void* module, const char* name) {
  auto call = reinterpret_cast<void (*)(void**)>(dlsym(module, (std::string("call_") + name).c_str()));
  auto sizes = static_cast<const size_t*>(dlsym(module, (std::string("sizes_") + name).c_str()));
  *function = call && sizes ? new Kernel{name, call, sizes} : nullptr;
  return *function ? 0 : 500;  // CUDA_ERROR_NOT_FOUND
}

int cuLaunchKernelEx(const LaunchConfig* given, void* function, void** parameters, void**) {
  if (!is_allowed(*given)) return 1;  // CUDA_ERROR_INVALID_VALUE
  auto found = static_cast<const Kernel*>(function);
  std::vector<std::vector<char>> values;  // a launch copies its arguments
  for (size_t i = 0; i < found->sizes[0]; ++i) {
    auto bytes = static_cast<const char*>(parameters[i]);
    values.emplace_back(bytes, bytes + found->sizes[i + 1]);
  }
  return emulated::enqueue(given->stream, "launch", [found, values, config = *given]() mutable {
    if (const char* bad = getenv("EMULATED_ILLEGAL"); bad && found->name.find(bad) != std::string::npos)
      return emulated::fail_for_good(700);  // CUDA_ERROR_ILLEGAL_ADDRESS
    std::vector<void*> places;
    for (auto& value : values) places.push_back(value.data());
    run_blocks(*found, config, places.data());
  });
}

}  // extern "C"
