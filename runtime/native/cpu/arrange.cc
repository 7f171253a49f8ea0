#include "arrange.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "thread_pool.h"

namespace heterocc::cpu {
namespace {

// Elements of a source row that are copied together: a cache line of float32. Rows of a weight often lie a multiple of
// 4096 bytes apart, in the same sets of the cache, so that a line must be used up before the next row is read.
constexpr int64_t kLine = 16;
// Elements that are worth a task.
constexpr int64_t kTask = 1 << 14;

struct Axis {
  int64_t extent = 1;
  int64_t from = 0;
  int64_t to = 0;
};

// A block as loops: `inner` has the least steps in the result, `row` the least in the source.
struct Nest {
  Axis inner;
  Axis row;
  std::vector<Axis> outer;
  int64_t start = 0;
  int64_t to = 0;
  int64_t planes = 0;
  int64_t row_parts = 1;  // tasks along `row`
  int64_t units = 1;
};

Axis TakeLeast(std::vector<Axis>* axes, int64_t Axis::* step) {
  if (axes->empty()) return Axis{};
  const auto least =
      std::min_element(axes->begin(), axes->end(), [step](const Axis& a, const Axis& b) { return a.*step < b.*step; });
  const Axis found = *least;
  axes->erase(least);
  return found;
}

Nest NestOf(const Block& block) {
  Nest nest;
  for (int64_t i = 0; i < block.rank; ++i) {
    if (block.extents[i] > 1) nest.outer.push_back({block.extents[i], block.strides[i], block.to_strides[i]});
  }
  nest.inner = TakeLeast(&nest.outer, &Axis::to);
  nest.row = TakeLeast(&nest.outer, &Axis::from);
  nest.start = block.start;
  nest.to = block.to;
  nest.planes = block.planes;
  const int64_t elements = nest.inner.extent * nest.row.extent;
  nest.row_parts = std::min(std::max<int64_t>(elements / kTask, 1), (nest.row.extent + kLine - 1) / kLine);
  nest.units = nest.row_parts;
  for (const Axis& axis : nest.outer) nest.units *= axis.extent;
  return nest;
}

// The part of a nest's rows, and where it begins, for one unit of work.
struct Part {
  int64_t from;
  int64_t to;
  int64_t rows;
};

Part PartOf(const Nest& nest, int64_t unit) {
  const int64_t number = unit % nest.row_parts;
  int64_t rest = unit / nest.row_parts;
  const int64_t lines = (nest.row.extent + kLine - 1) / kLine;
  const int64_t first = lines * number / nest.row_parts * kLine;
  const int64_t last = std::min(lines * (number + 1) / nest.row_parts * kLine, nest.row.extent);
  Part part{nest.start + first * nest.row.from, nest.to + first * nest.row.to, last - first};
  for (const Axis& axis : nest.outer) {
    const int64_t index = rest % axis.extent;
    rest /= axis.extent;
    part.from += index * axis.from;
    part.to += index * axis.to;
  }
  return part;
}

template <typename Element>
void Copy(const Nest& nest, const Part& part, const Element* source, Element* result) {
  const Element* from = source + part.from;
  Element* to = result + part.to;
  const Axis inner = nest.inner, row = nest.row;
  if (inner.from == 1 && inner.to == 1) {
    for (int64_t r = 0; r < part.rows; ++r) {
      std::memcpy(to + r * row.to, from + r * row.from, static_cast<size_t>(inner.extent) * sizeof(Element));
    }
    return;
  }
  for (int64_t r = 0; r < part.rows; r += kLine) {
    const int64_t count = std::min(kLine, part.rows - r);
    for (int64_t i = 0; i < inner.extent; ++i) {
      const Element* line = from + i * inner.from + r * row.from;
      Element* place = to + i * inner.to + r * row.to;
      if (count == kLine && row.from == 1) {
        for (int64_t k = 0; k < kLine; ++k) place[k * row.to] = line[k];
      } else {
        for (int64_t k = 0; k < count; ++k) place[k * row.to] = line[k * row.from];
      }
    }
  }
}

// Groups that are transformed together, in vector registers.
constexpr int kLanes = 8;

template <int kRows>
[[gnu::always_inline]] inline void TransformLanes(const float (&taps)[9][kLanes], const double* matrix,
                                                  float (&planes)[kRows * kRows][kLanes]) {
  for (int i = 0; i < kRows; ++i) {
    double half[3][kLanes];
    for (int k = 0; k < 3; ++k) {
      for (int lane = 0; lane < kLanes; ++lane) {
        half[k][lane] = matrix[3 * i] * static_cast<double>(taps[k][lane]) +
                        matrix[3 * i + 1] * static_cast<double>(taps[3 + k][lane]) +
                        matrix[3 * i + 2] * static_cast<double>(taps[6 + k][lane]);
      }
    }
    for (int j = 0; j < kRows; ++j) {
      for (int lane = 0; lane < kLanes; ++lane) {
        planes[i * kRows + j][lane] = static_cast<float>(
            half[0][lane] * matrix[3 * j] + half[1][lane] * matrix[3 * j + 1] + half[2][lane] * matrix[3 * j + 2]);
      }
    }
  }
}

template <int kRows>
[[gnu::always_inline]] inline void TransformRows(const Nest& nest, const Part& part, const double* matrix,
                                                 const float* source, float* result) {
  alignas(64) float taps[9][kLanes] = {};
  alignas(64) float planes[kRows * kRows][kLanes];
  double numbers[3 * kRows];
  std::copy_n(matrix, 3 * kRows, numbers);
  const Axis inner = nest.inner;
  for (int64_t r = 0; r < part.rows; ++r) {
    const float* from = source + part.from + r * nest.row.from;
    float* to = result + part.to + r * nest.row.to;
    for (int64_t i = 0; i < inner.extent; i += kLanes) {
      const int count = static_cast<int>(std::min<int64_t>(kLanes, inner.extent - i));
      for (int lane = 0; lane < count; ++lane) {
        const float* group = from + (i + lane) * inner.from;
        for (int k = 0; k < 9; ++k) taps[k][lane] = group[k];
      }
      TransformLanes<kRows>(taps, numbers, planes);
      float* place = to + i * inner.to;
      for (int p = 0; p < kRows * kRows; ++p, place += nest.planes) {
        if (count == kLanes && inner.to == 1) {
          std::memcpy(place, planes[p], sizeof(planes[p]));
        } else {
          for (int lane = 0; lane < count; ++lane) place[lane * inner.to] = planes[p][lane];
        }
      }
    }
  }
}

using Transformer = void (*)(const Nest&, const Part&, const double*, const float*, float*);

template <int kRows>
void Transform(const Nest& nest, const Part& part, const double* matrix, const float* source, float* result) {
  TransformRows<kRows>(nest, part, matrix, source, result);
}

#if defined(__x86_64__) && defined(__GNUC__)
template <int kRows>
__attribute__((target("avx2,fma"))) void TransformAvx2(const Nest& nest, const Part& part, const double* matrix,
                                                       const float* source, float* result) {
  TransformRows<kRows>(nest, part, matrix, source, result);
}

template <int kRows>
Transformer BestTransformer() {
  static const bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return wide ? TransformAvx2<kRows> : Transform<kRows>;
}
#else
template <int kRows>
Transformer BestTransformer() {
  return Transform<kRows>;
}
#endif

Transformer TransformerFor(int rows) {
  switch (rows) {
    case 1:
      return BestTransformer<1>();
    case 2:
      return BestTransformer<2>();
    case 3:
      return BestTransformer<3>();
    case 4:
      return BestTransformer<4>();
    case 5:
      return BestTransformer<5>();
    case 6:
      return BestTransformer<6>();
    case 7:
      return BestTransformer<7>();
    default:
      return BestTransformer<8>();
  }
}

struct Work {
  const Nest* nest;
  const void* source;
  void* result;
  int size;
  const double* matrix;
  Transformer transform;
};

void RunUnit(const Work& work, int64_t unit) {
  const Part part = PartOf(*work.nest, unit);
  if (work.matrix != nullptr) {
    work.transform(*work.nest, part, work.matrix, static_cast<const float*>(work.source),
                   static_cast<float*>(work.result));
    return;
  }
  switch (work.size) {
    case 1:
      return Copy(*work.nest, part, static_cast<const uint8_t*>(work.source), static_cast<uint8_t*>(work.result));
    case 2:
      return Copy(*work.nest, part, static_cast<const uint16_t*>(work.source), static_cast<uint16_t*>(work.result));
    case 4:
      return Copy(*work.nest, part, static_cast<const uint32_t*>(work.source), static_cast<uint32_t*>(work.result));
    default:
      return Copy(*work.nest, part, static_cast<const uint64_t*>(work.source), static_cast<uint64_t*>(work.result));
  }
}

int RunTask(int number, RegionSize* size, void* closure) {
  const Work& work = *static_cast<const Work*>(closure);
  const int64_t units = work.nest->units;
  const int64_t last = units * (number + 1) / size->tasks;
  for (int64_t unit = units * number / size->tasks; unit < last; ++unit) RunUnit(work, unit);
  return 0;
}

}  // namespace

int Arrange(const void* source, void* result, int size, const Block* blocks, int count, const double* matrix, int rows,
            int threads) {
  if (size != 1 && size != 2 && size != 4 && size != 8) return -1;
  if (matrix != nullptr && (rows < 1 || rows > kMaxFilter || size != 4)) return -1;
  for (int i = 0; i < count; ++i) {
    if (blocks[i].rank < 0 || blocks[i].rank > kMaxRank) return -1;
    const Nest nest = NestOf(blocks[i]);
    const Work work{&nest, source, result, size, matrix, matrix != nullptr ? TransformerFor(rows) : nullptr};
    const int64_t elements = nest.units / nest.row_parts * nest.inner.extent * nest.row.extent;
    const auto tasks = static_cast<int>(
        std::min<int64_t>({nest.units, std::max<int64_t>(elements / kTask, 1), int64_t{16} * threads}));
    RunRegion(RunTask, const_cast<Work*>(&work), std::max(tasks, 1), threads);
  }
  return 0;
}

}  // namespace heterocc::cpu
