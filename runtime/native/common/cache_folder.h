// What plug-ins keep on disk between processes: where, and files that are written whole and read without trust.
//
// The folder is `$HETEROCC_CACHE` (`off` for none), else `heterocc` in the XDG cache directory.
// Threading: any thread; any number of processes.
#ifndef HETEROCC_COMMON_CACHE_FOLDER_H_
#define HETEROCC_COMMON_CACHE_FOLDER_H_

#include <cstddef>
#include <string>

namespace heterocc::common {

// The folder, which need not exist yet; empty where nothing is to be kept.
std::string CacheFolder();

// The content of a file; empty where there is none, or one that is no regular file, is larger than `most` bytes, or
// could have been written by somebody else.
std::string ReadCacheFile(const std::string& path, size_t most);

// Writes a file for this user alone beside `path` and renames it: readers see an old file, a new one or none. Makes the
// folders on the way. Gives whether that went well.
bool WriteCacheFile(const std::string& path, const std::string& content);

}  // namespace heterocc::common

#endif  // HETEROCC_COMMON_CACHE_FOLDER_H_
