#include "program.h"

#include <algorithm>

#include "binary_cache.h"
#include "error.h"
#include "fault.h"

namespace heterocc::opencl_plugin {
namespace {

constexpr size_t kMaxBuildLog = 4000;

// Without this option a quotient may be wrong by 2.5 units in the last place, and 41 / 41 less than 1, with a floor of
// 0.
const char* OptionsFor(const DeviceInfo& info) {
  return info.exact_division ? "-cl-fp32-correctly-rounded-divide-sqrt" : "";
}

std::string BuildLog(const Driver& cl, cl_program program, cl_device_id device) {
  size_t size = 0;
  cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
  std::string log(size, '\0');
  if (size != 0) cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  log.resize(std::min({log.find('\0'), log.size(), kMaxBuildLog}));
  return log;
}

// Compiles; on failure `program` is null, and the driver's code and message are returned.
cl_int Compile(const DeviceInfo& info, cl_context context, const std::string& source, cl_program* program,
               std::string* log) {
  const Driver& cl = RequireDriver();
  const char* text = source.c_str();
  const size_t size = source.size();
  cl_int code = CL_SUCCESS;
  *program = cl.clCreateProgramWithSource(context, 1, &text, &size, &code);
  Check(code, "clCreateProgramWithSource", "device '" + info.name + "'");
  code = cl.clBuildProgram(*program, 1, &info.id, OptionsFor(info), nullptr, nullptr);
  if (code == CL_SUCCESS) return code;
  *log = BuildLog(cl, *program, info.id);
  cl.clReleaseProgram(*program);
  *program = nullptr;
  return code;
}

// Throws if the device cannot run a kernel with the work group that its source requires: every kernel has its own
// limit, which depends on the registers that it uses, and a launch above it fails.
void CheckWorkGroup(const DeviceInfo& info, const std::string& name, cl_kernel kernel) {
  const Driver& cl = RequireDriver();
  size_t group[3] = {0, 0, 0};  // zeros if the source requires none
  size_t most = info.max_group;
  cl.clGetKernelWorkGroupInfo(kernel, info.id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof group, group, nullptr);
  cl.clGetKernelWorkGroupInfo(kernel, info.id, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, nullptr);
  bool fits = group[0] * group[1] * group[2] <= most;
  for (int i = 0; i < 3; ++i) fits = fits && group[i] <= info.max_group_sizes[i];
  if (fits) return;
  Throw(ErrorClass::kBuild, "kernel '" + name + "' needs work groups of " + Extent(group, 3) + " items; '" + info.name +
                                "' runs it with " + std::to_string(most) + " at most, and " +
                                Extent(info.max_group_sizes, 3) + " along the axes");
}

// The binary of a program built for a device, one of the program's context; empty if the driver has none.
std::string BinaryOf(cl_program program, cl_device_id device) {
  const Driver& cl = RequireDriver();
  cl_uint count = 0;
  if (cl.clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof count, &count, nullptr) != CL_SUCCESS) return "";
  std::vector<cl_device_id> devices(count);
  std::vector<size_t> sizes(count);
  std::vector<unsigned char*> places(count, nullptr);  // null: not needed
  const auto ask = [&](cl_program_info what, auto* values) {
    return cl.clGetProgramInfo(program, what, values->size() * sizeof values->front(), values->data(), nullptr) ==
           CL_SUCCESS;
  };
  if (!ask(CL_PROGRAM_DEVICES, &devices) || !ask(CL_PROGRAM_BINARY_SIZES, &sizes)) return "";
  const auto place = static_cast<size_t>(std::find(devices.begin(), devices.end(), device) - devices.begin());
  if (place == devices.size() || sizes[place] == 0) return "";
  std::string binary(sizes[place], '\0');
  places[place] = reinterpret_cast<unsigned char*>(binary.data());
  return ask(CL_PROGRAM_BINARIES, &places) ? binary : "";
}

}  // namespace

common::Digest ProgramKey(const DeviceInfo& info, const std::string& source) {
  std::string text;
  for (const std::string& part : {info.name, info.vendor, info.version, info.driver, info.platform_name,
                                  info.platform_version, std::string(OptionsFor(info)), source}) {
    text += std::to_string(part.size()) + ":" + part;
  }
  return common::Sha256(text.data(), text.size());
}

Program::Built::~Built() {
  const Driver& cl = RequireDriver();
  for (auto& [name, kernel] : kernels) cl.clReleaseKernel(kernel);
  for (cl_program program : programs) cl.clReleaseProgram(program);
}

Program::Program(std::vector<Source> kernels) : sources_(std::move(kernels)) {
  for (const auto& [name, source] : sources_) source_ += source + "\n";
}

Program::~Program() = default;

std::shared_ptr<_cl_kernel> Program::Get(const std::string& name, const std::shared_ptr<Queue>& queue,
                                         const Binaries& bundled) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<Built> built = BuildLocked(queue, bundled);
  return std::shared_ptr<_cl_kernel>(built, built->kernels.at(name));
}

void Program::Build(int device, const Binaries& bundled) {
  std::lock_guard<std::mutex> lock(mutex_);
  BuildLocked(Queue::Of(device), bundled);
}

void Program::Count(int device, Origins* origins) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = built_.find(device);
  if (found == built_.end() || found->second == nullptr) return;
  const Origins& own = found->second->origins;
  origins->bundle += own.bundle;
  origins->disk += own.disk;
  origins->source += own.source;
  origins->refused += own.refused;
}

void Program::Collect(int device, Binaries* binaries) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = built_.find(device);
  if (found == built_.end() || found->second == nullptr || found->second->programs.size() != 1) return;
  const DeviceInfo& info = RequireDevice(device);
  std::string binary = BinaryOf(found->second->programs[0], info.id);
  if (!binary.empty()) binaries->emplace(ProgramKey(info, source_), std::move(binary));
}

std::shared_ptr<Program::Built> Program::BuildLocked(const std::shared_ptr<Queue>& queue, const Binaries& bundled) {
  const DeviceInfo& info = queue->info();
  std::shared_ptr<Built>& known = built_[static_cast<int>(&info - AllDevices().data())];
  if (known != nullptr && known->queue == queue) return known;
  const bool keeps = KeepsBinaries(info);
  auto built = std::make_shared<Built>();
  built->queue = queue;
  common::Digest key{};
  if (keeps || !bundled.empty()) key = ProgramKey(info, source_);
  const auto brought = bundled.find(key);
  if (brought != bundled.end()) {
    built->origins.bundle = FromBinary(info, queue->context(), brought->second, built.get());
    built->origins.refused += 1 - built->origins.bundle;
  }
  if (built->origins.bundle == 0 && keeps) {
    const std::string kept = LoadBinary(key);
    if (!kept.empty()) {
      built->origins.disk = FromBinary(info, queue->context(), kept, built.get());
      built->origins.refused += 1 - built->origins.disk;
    }
  }
  if (built->programs.empty()) {
    FromSource(info, queue->context(), built.get());
    built->origins.source = 1;
    if (keeps && built->programs.size() == 1) StoreBinary(key, BinaryOf(built->programs[0], info.id));
  }
  for (const auto& [name, kernel] : built->kernels) CheckWorkGroup(info, name, kernel);
  return known = std::move(built);
}

bool Program::FromBinary(const DeviceInfo& info, cl_context context, const std::string& binary, Built* built) const {
  const Driver& cl = RequireDriver();
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  cl_int status = CL_SUCCESS;
  cl_int code = CL_SUCCESS;
  cl_program program = cl.clCreateProgramWithBinary(context, 1, &info.id, &size, &data, &status, &code);
  if (code != CL_SUCCESS) return false;
  Built made;
  made.programs.push_back(program);
  if (status != CL_SUCCESS ||
      cl.clBuildProgram(program, 1, &info.id, OptionsFor(info), nullptr, nullptr) != CL_SUCCESS) {
    return false;
  }
  for (const auto& [name, source] : sources_) {
    cl_kernel kernel = cl.clCreateKernel(program, name.c_str(), &code);
    if (code != CL_SUCCESS) return false;
    made.kernels.emplace(name, kernel);
  }
  built->programs.swap(made.programs);
  built->kernels.swap(made.kernels);
  return true;
}

void Program::FromSource(const DeviceInfo& info, cl_context context, Built* built) const {
  const Driver& cl = RequireDriver();
  const auto take = [&](cl_program program, const std::vector<Source>& kernels) {
    built->programs.push_back(program);
    for (const auto& [name, source] : kernels) {
      cl_int code = CL_SUCCESS;
      cl_kernel kernel = cl.clCreateKernel(program, name.c_str(), &code);
      Check(code, "clCreateKernel", "kernel '" + name + "'");
      built->kernels.emplace(name, kernel);
    }
  };
  const auto fail = [&](const std::string& kernel, cl_int code, const std::string& log) {
    Throw(ErrorClass::kBuild, "kernel '" + kernel + "' does not build on '" + info.name + "': clBuildProgram gave " +
                                  Describe(code) + (log.empty() ? "" : "\n" + log));
  };
  if (Faults::Global().BuildFails()) fail(sources_.front().first, CL_BUILD_PROGRAM_FAILURE, "");
  std::string log;
  cl_program program = nullptr;
  cl_int code = sources_.size() == 1 ? CL_SUCCESS : Compile(info, context, source_, &program, &log);
  if (program != nullptr) return take(program, sources_);
  // One by one, so that the error names the kernel, and kernels that define the same helper compile.
  for (const Source& kernel : sources_) {
    code = Compile(info, context, kernel.second + "\n", &program, &log);
    if (program == nullptr) fail(kernel.first, code, log);
    take(program, {kernel});
  }
}

}  // namespace heterocc::opencl_plugin
