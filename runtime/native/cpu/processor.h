// What the processor says of itself, for machines without /proc/cpuinfo.
#ifndef HETEROCC_CPU_PROCESSOR_H_
#define HETEROCC_CPU_PROCESSOR_H_

#include <string>

namespace heterocc::cpu {

// The fields of /proc/cpuinfo that say which processor this is, and which instructions the system lets it run.
const std::string& Processor();

}  // namespace heterocc::cpu

#endif  // HETEROCC_CPU_PROCESSOR_H_
