// Files that plug-ins keep on disk between processes: replaced atomically, and not trusted when read.
//
// The folder is `$HETEROCC_CACHE` (`off` for none), else `heterocc` in the XDG cache directory.
// Threading: any thread; any number of processes.
#ifndef HETEROCC_COMMON_CACHE_FOLDER_H_
#define HETEROCC_COMMON_CACHE_FOLDER_H_

#include <cstddef>
#include <string>

namespace heterocc::common {

// The folder, which may not exist yet; empty if no files are to be kept.
std::string CacheFolder();

// The content of a file; empty if it is missing, is not a regular file, is larger than `most` bytes, or could have been
// written by another user.
std::string ReadCacheFile(const std::string& path, size_t most);

// Writes a file for this user alone beside `path` and renames it: readers see an old file, a new one or none. Creates
// missing folders. Returns whether it succeeded.
bool WriteCacheFile(const std::string& path, const std::string& content);

}  // namespace heterocc::common

#endif  // HETEROCC_COMMON_CACHE_FOLDER_H_
