// Bytes passed between the two sockets of a pair, in both directions, by one thread of this library, until one end is
// closed: for a service whose interpreter would take longer to pass them than to answer them.
//
// Threading: to be called by any thread.
// Ownership: the descriptors are the caller's, who keeps them open until the pair's number was written to `ended`.
#ifndef HETEROCC_CPU_SOCKET_PAIRS_H_
#define HETEROCC_CPU_SOCKET_PAIRS_H_

#include <cstdint>

extern "C" {

// Passes bytes between two sockets that do not block. When one end is closed and what came from it is sent, or when an
// end has taken nothing for `seconds`, the pair's number is written to the descriptor `ended` as eight bytes.
// Returns 0, or an error's number (errno) if the pair cannot be passed.
int32_t heterocc_cpu_pass_between(int32_t first, int32_t second, double seconds, int32_t ended, int64_t number);
}

#endif  // HETEROCC_CPU_SOCKET_PAIRS_H_
