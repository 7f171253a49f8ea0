// Independent pieces of work on several threads.
//
// Every plug-in compiles this in a separate namespace, HETEROCC_PLUGIN: two plug-ins that share a class are merged at
// load.
#ifndef HETEROCC_COMMON_PARALLEL_H_
#define HETEROCC_COMMON_PARALLEL_H_

#include <cstddef>
#include <functional>

namespace heterocc::HETEROCC_PLUGIN {

// Calls `work(i)` for each i below `count`, on the calling thread and at most `threads` - 1 others, and waits. Uses
// fewer threads if the system has no more. After a failure no further piece is started; the failure of the lowest i is
// thrown.
void InParallel(size_t count, size_t threads, const std::function<void(size_t)>& work);

}  // namespace heterocc::HETEROCC_PLUGIN

#endif  // HETEROCC_COMMON_PARALLEL_H_
