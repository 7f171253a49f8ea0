// The arguments that a module's host code passes to a kernel: buffers and scalars, then one extent per launch tag.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
//
// Threading: stateless.
#ifndef HETEROCC_COMMON_KERNEL_ARGUMENTS_H_
#define HETEROCC_COMMON_KERNEL_ARGUMENTS_H_

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reader.h"

namespace heterocc::HETEROCC_PLUGIN {

constexpr size_t kMaxArguments = 1024;  // far above the limit of any device

// Launch tags by index: 0-2 count work groups, 3-5 work items, each x y z; 6 is shared memory sized at launch, in
// bytes.
constexpr int kFirstWorkItems = 3;
constexpr int kDynamicShared = 6;
constexpr int kLaunchTags = 7;

// The index of a launch tag by TVM's name for it; -1 for another text.
int LaunchTag(const std::string& name);

// Reads a count of launch tags and their names, each known and there once.
template <typename Length>
std::vector<int> ReadLaunchTags(Reader<Length>* in) {
  std::vector<int> tags;
  bool given[kLaunchTags] = {};
  for (Length left = in->Count(sizeof(Length), kLaunchTags); left > 0; --left) {
    const int tag = LaunchTag(in->Text());
    if (tag < 0) in->Damaged("an unknown launch tag");
    if (given[tag]) in->Damaged("a launch tag given twice");
    given[tag] = true;
    tags.push_back(tag);
  }
  return tags;
}

// Throws a `module` error unless the type is a scalar that kernels take: an integer or boolean of 8 to 64 bits, or a
// float of `smallest_float` to 64 bits.
void RequireScalar(DLDataType type, int smallest_float);

// Throws a `module` error unless a kernel was called with as many arguments as it has.
void RequireArgumentCount(const std::string& kernel, int32_t count, size_t expected);

// `argument 1 of kernel 'scale'`.
std::string ArgumentName(const std::string& kernel, size_t index);

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_KERNEL_ARGUMENTS_H_
