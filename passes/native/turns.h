// The cheapest sequence of turns of devices that executes a placed graph.
#ifndef HETEROCC_PASSES_TURNS_H_
#define HETEROCC_PASSES_TURNS_H_

#include <vector>

#include "solver.h"

namespace heterocc {

// The number of each node's turn, the cost of all turns, and a lower bound of it. See heterocc_turns.
struct Turns {
  std::vector<int64_t> of;
  double cost;
  double proven;
};

Turns CheapestTurns(int64_t nodes, int64_t devices, const int64_t* first_source, const int64_t* sources,
                    const int64_t* labels, const double* weights, const double* loads, int64_t work);

}  // namespace heterocc

#endif  // HETEROCC_PASSES_TURNS_H_
