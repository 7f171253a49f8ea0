// Files that plug-ins keep on disk between processes: written whole, read without trust.
//
// The folder is `$HETEROCC_CACHE` (`off` for none), else `heterocc` in the XDG cache directory.
// Threading: any thread; any number of processes.
#ifndef HETEROCC_COMMON_CACHE_FOLDER_H_
#define HETEROCC_COMMON_CACHE_FOLDER_H_

#include <cstddef>
#include <string>

namespace heterocc::common {

// The folder, which need not exist yet; empty if nothing is to be kept.
std::string CacheFolder();

// The content of a file; empty if it is missing, is not a regular file, is larger than `most` bytes, or could have been
// written by another user.
std::string ReadCacheFile(const std::string& path, size_t most);

// Writes a file for this user alone beside `path` and renames it: readers see an old file, a new one or none. Makes the
// folders on the way. Gives whether that succeeded.
bool WriteCacheFile(const std::string& path, const std::string& content);

}  // namespace heterocc::common

#endif  // HETEROCC_COMMON_CACHE_FOLDER_H_
