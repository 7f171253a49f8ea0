// The interface of the solver of heterocc.passes, which Python calls with arrays of numpy (passes/native/__init__.py).
//
// Nothing is kept between calls and nothing is shared, so any number of threads may call. The caller owns all arrays.
// Work is counted, not timed: equal arguments give equal results.
#ifndef HETEROCC_PASSES_SOLVER_H_
#define HETEROCC_PASSES_SOLVER_H_

#include <cstdint>

#define HETEROCC_SOLVER extern "C" __attribute__((visibility("default")))

namespace heterocc {

// A placement problem: nodes in an order in which they can run, and values that are sent to readers on other devices.
//
// Node i takes seconds[i * devices + d] on device d, infinity if it cannot run there. Factor f is a value, or a part of
// one: its readers are entries first[f] to first[f + 1] of `readers`, in ascending order and behind its producer. It
// costs share[f] * (latency[a][d] + nbytes[f] * per_byte[a][d]) for each device d of a reader that is not the
// producer's, a. Entry e of `readers` costs launch[e] * overhead[d] more if the reader's device d is not the
// producer's, and node i costs start[i] * overhead[d]. Edges are (sources[j], i) for j from first_source[i] to
// first_source[i + 1].
struct Problem {
  int64_t nodes;
  int64_t devices;
  int64_t factors;
  const double* seconds;
  const int64_t* producer;
  const int64_t* first;
  const int64_t* readers;
  const double* launch;
  const double* share;
  const double* nbytes;
  const double* start;
  const double* latency;
  const double* per_byte;
  const double* overhead;
  const int64_t* first_source;
  const int64_t* sources;
};

// Limits on memory: capacity[d] is infinity without one. own[i] are the bytes of a node's results; its constants are
// entries first_constant[i] to first_constant[i + 1] of `constants`, of constant_bytes[c] bytes each.
struct Memory {
  const double* capacity;
  const double* own;
  const int64_t* first_constant;
  const int64_t* constants;
  const double* constant_bytes;
  int64_t count;
};

}  // namespace heterocc

// The minimum cut between vertices 0 and 1: `on_sink` gets 1 for each vertex on the side of vertex 1, as few as
// possible.
HETEROCC_SOLVER void heterocc_min_cut(int64_t vertices, int64_t arcs, const int64_t* tails, const int64_t* heads,
                                      const int64_t* capacities, uint8_t* on_sink);

// Sweeps of messages over the problem, in `messages` of (factors + readers) * devices numbers, which begin with zeros.
// Returns a lower bound of the cost; `labels`, unless null, gets labels that follow from the messages.
HETEROCC_SOLVER double heterocc_relax(const heterocc::Problem* problem, int64_t sweeps, double* messages,
                                      int64_t* labels);

// The group of each node in the cheapest sequence of groups found that covers the graph; returns its cost.
//
// weights[d] is the cost of a group on device d. If `loads` is not null the cost is the largest of loads[d] plus the
// groups' cost of d, in place of the sum. `work` limits the exact search; `proven`, unless null, gets a lower bound of
// the cost.
HETEROCC_SOLVER double heterocc_turns(int64_t nodes, int64_t devices, const int64_t* first_source,
                                      const int64_t* sources, const int64_t* labels, const double* weights,
                                      const double* loads, int64_t work, int64_t* turns, double* proven);

// Tries all placements but those that cannot be better than the one at hand, whose cost is `best`.
//
// Lower bounds are the sum of messages of `relaxations` problems with the same nodes, values and edges; those with
// launch costs count groups, to the others the groups that paths need are added. With `slowest` the cost is that of the
// slowest device. Returns a lower bound of the cost. `labels` gets the best placement, if one is better; `found` is 1
// then. Stops after `work` steps, and with `any` at the first placement.
HETEROCC_SOLVER double heterocc_enumerate(const heterocc::Problem* problem, const heterocc::Problem* relaxations,
                                          const double* const* messages, int64_t count, const heterocc::Memory* memory,
                                          double best, int64_t slowest, int64_t any, int64_t work, int64_t* labels,
                                          int64_t* found);

#endif  // HETEROCC_PASSES_SOLVER_H_
