#include "driver.h"

#include <dlfcn.h>

#include "error.h"
#include "fault.h"

namespace heterocc::opencl_plugin {
namespace {

struct Opened {
  Driver driver;
  bool found = false;
  std::string problem;

  Opened() {
    if (Faults::Global().NoDriver()) {
      problem = "libOpenCL.so.1 cannot be opened: hidden by HETEROCC_OPENCL_FAULT";
      return;
    }
    void* library = nullptr;
    for (const char* name : {"libOpenCL.so.1", "libOpenCL.so"}) {
      library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) break;
      if (problem.empty()) {
        const char* reason = dlerror();
        problem = std::string("libOpenCL.so.1 cannot be opened: ") + (reason != nullptr ? reason : "no reason given");
      }
    }
    if (library == nullptr) return;
    problem.clear();
#define HETEROCC_CL_RESOLVE(name)                                            \
  driver.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));  \
  if (driver.name == nullptr) {                                              \
    problem = "libOpenCL.so.1 lacks " #name ": it is older than OpenCL 1.2"; \
    return;                                                                  \
  }
    HETEROCC_CL_FUNCTIONS(HETEROCC_CL_RESOLVE)
#undef HETEROCC_CL_RESOLVE
    found = true;
  }
};

const Opened& Open() {
  static const Opened* opened = new Opened();  // never destroyed: tensors may be freed while the process exits
  return *opened;
}

}  // namespace

const Driver* FindDriver() {
  const Opened& opened = Open();
  return opened.found ? &opened.driver : nullptr;
}

const std::string& WhyNoDriver() {
  return Open().problem;
}

const Driver& RequireDriver() {
  const Opened& opened = Open();
  if (!opened.found) Throw(ErrorClass::kDriver, opened.problem);
  return opened.driver;
}

}  // namespace heterocc::opencl_plugin
