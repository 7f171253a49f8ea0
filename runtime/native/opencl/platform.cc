#include "platform.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "error.h"
#include "fault.h"

namespace heterocc::opencl_plugin {
namespace {

template <typename T>
T Number(const Driver& cl, cl_device_id id, cl_device_info what) {
  T value{};
  cl.clGetDeviceInfo(id, what, sizeof(T), &value, nullptr);
  return value;
}

// Calls a query of the form (size, value, size_ret) twice: for the length, then for the text.
template <typename Query>
std::string Text(Query query) {
  size_t size = 0;
  if (query(0, nullptr, &size) != CL_SUCCESS || size == 0) return "";
  std::string text(size, '\0');
  if (query(size, text.data(), nullptr) != CL_SUCCESS) return "";
  text.resize(std::min(text.find('\0'), text.size()));
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::string DeviceText(const Driver& cl, cl_device_id id, cl_device_info what) {
  return Text([&](size_t size, void* value, size_t* ret) { return cl.clGetDeviceInfo(id, what, size, value, ret); });
}

bool NamesSoftware(const DeviceInfo& info) {
  std::string text = info.name + " " + info.platform_name;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* word : {"llvmpipe", "softpipe", "swiftshader", "lavapipe", "oclgrind"}) {
    if (text.find(word) != std::string::npos) return true;
  }
  return false;
}

DeviceInfo Inspect(const Driver& cl, cl_platform_id platform, cl_device_id id) {
  DeviceInfo info;
  info.platform = platform;
  info.id = id;
  info.name = DeviceText(cl, id, CL_DEVICE_NAME);
  info.vendor = DeviceText(cl, id, CL_DEVICE_VENDOR);
  info.version = DeviceText(cl, id, CL_DEVICE_VERSION);
  info.driver = DeviceText(cl, id, CL_DRIVER_VERSION);
  const auto platform_text = [&](cl_platform_info what) {
    return Text(
        [&](size_t size, void* value, size_t* ret) { return cl.clGetPlatformInfo(platform, what, size, value, ret); });
  };
  const Faults& faults = Faults::Global();
  info.platform_name = faults.Foreign() ? "Another Platform" : platform_text(CL_PLATFORM_NAME);
  info.platform_version = platform_text(CL_PLATFORM_VERSION);
  std::istringstream words(DeviceText(cl, id, CL_DEVICE_EXTENSIONS));
  for (std::string word; words >> word;) info.extensions.push_back(word);
  const auto has = [&](const char* name) {
    return std::find(info.extensions.begin(), info.extensions.end(), name) != info.extensions.end();
  };
  info.fp16 = has("cl_khr_fp16");
  info.fp64 = has("cl_khr_fp64") || Number<cl_device_fp_config>(cl, id, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
  info.exact_division =
      (Number<cl_device_fp_config>(cl, id, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
  const auto type = Number<cl_device_type>(cl, id, CL_DEVICE_TYPE);
  info.kind = (type & CL_DEVICE_TYPE_CPU)   ? DeviceKind::kCpu
              : (type & CL_DEVICE_TYPE_GPU) ? DeviceKind::kGpu
                                            : DeviceKind::kAccelerator;
  // Deprecated since OpenCL 2.0, whose replacement (fine-grained sharing) says less; all drivers still support it.
  const bool unified = Number<cl_bool>(cl, id, CL_DEVICE_HOST_UNIFIED_MEMORY) != CL_FALSE;
  info.unified = !faults.Discrete() && (unified || faults.Integrated());
  // The standard allows drivers to copy the memory at a host pointer. Intel's CPU driver does; PoCL works in place,
  // except for devices of other machines (PoCL-Remote), which do not report host memory.
  const bool in_place = info.kind == DeviceKind::kCpu && IsPocl(info) && !faults.Integrated();
  info.shares_host_memory = info.unified && in_place;
  info.software = info.kind == DeviceKind::kCpu || NamesSoftware(info);
  info.memory = Number<cl_ulong>(cl, id, CL_DEVICE_GLOBAL_MEM_SIZE);
  info.max_alloc = Number<cl_ulong>(cl, id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  info.local_memory = Number<cl_ulong>(cl, id, CL_DEVICE_LOCAL_MEM_SIZE);
  info.max_group = std::max<size_t>(1, Number<size_t>(cl, id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  info.compute_units = Number<cl_uint>(cl, id, CL_DEVICE_MAX_COMPUTE_UNITS);
  info.clock_mhz = Number<cl_uint>(cl, id, CL_DEVICE_MAX_CLOCK_FREQUENCY);
  info.alignment = std::max<cl_uint>(8, Number<cl_uint>(cl, id, CL_DEVICE_MEM_BASE_ADDR_ALIGN)) / 8;
  const auto dimensions = Number<cl_uint>(cl, id, CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS);
  std::vector<size_t> sizes(std::max<cl_uint>(3, dimensions), 1);
  cl.clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizes.size() * sizeof(size_t), sizes.data(), nullptr);
  std::copy_n(sizes.begin(), 3, info.max_group_sizes);
  return info;
}

int Rank(const DeviceInfo& info) {
  if (info.software) return 2;
  return info.kind == DeviceKind::kGpu ? 0 : 1;
}

struct Found {
  std::vector<DeviceInfo> devices;
  std::string problem;

  Found() {
    const Driver* cl = FindDriver();
    if (cl == nullptr) {
      problem = WhyNoDriver();
      return;
    }
    cl_uint count = 0;
    cl_int code = cl->clGetPlatformIDs(0, nullptr, &count);
    if (code != CL_SUCCESS || count == 0) {
      problem = "libOpenCL.so.1 is here, but no driver is installed behind it";
      if (code != CL_SUCCESS) problem += " (" + Describe(code) + ")";
      return;
    }
    std::vector<cl_platform_id> platforms(count);
    cl->clGetPlatformIDs(count, platforms.data(), nullptr);
    for (cl_platform_id platform : platforms) Add(*cl, platform);
    std::stable_sort(devices.begin(), devices.end(),
                     [](const DeviceInfo& a, const DeviceInfo& b) { return Rank(a) < Rank(b); });
    if (devices.empty()) problem = "the installed OpenCL drivers offer no usable device";
  }

  void Add(const Driver& cl, cl_platform_id platform) {
    cl_uint count = 0;
    if (cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS || count == 0) return;
    std::vector<cl_device_id> ids(count);
    cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr);
    for (cl_device_id id : ids) {
      const bool usable = Number<cl_bool>(cl, id, CL_DEVICE_AVAILABLE) &&
                          Number<cl_bool>(cl, id, CL_DEVICE_COMPILER_AVAILABLE) &&
                          Number<cl_bool>(cl, id, CL_DEVICE_ENDIAN_LITTLE);
      if (usable) devices.push_back(Inspect(cl, platform, id));
    }
  }
};

const Found& Find() {
  static const Found* found = new Found();
  return *found;
}

}  // namespace

bool IsPocl(const DeviceInfo& info) {
  return info.platform_name == "Portable Computing Language";
}

const std::vector<DeviceInfo>& AllDevices() {
  return Find().devices;
}

const std::string& WhyNoDevices() {
  return Find().problem;
}

}  // namespace heterocc::opencl_plugin
