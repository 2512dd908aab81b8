// What is made of a row of logits by temperature and filters: log-probabilities, a mask, a list, or a token.
//
// A cluster of blocks reads a row once and keeps it in shared memory, each block a part of neighbouring columns.
#pragma once
#include "row_copies.cuh"

namespace thalweg {

enum Make { LOGPROBS, MASK, KEPT, LARGEST, ARGMAX, FRESH, COUPLED };

template <class Probability, class Position>
struct RowArguments {
  const float* logits;
  const float* temperature;
  const Probability *top_p, *min_p;
  const int* top_k;
  const u64* seeds;
  const Position* positions;
  void *out, *out_ids;
  long long row_stride, out_stride;
  int vocabulary, count;  // count: of KEPT and LARGEST
};

template <int THREADS, int CLUSTER, int MAKE, bool HAS_FILTERS, class Probability, class Position>
struct FilteredRows {
  using Team = Cluster<THREADS, CLUSTER>;
  using Finder = Search<THREADS, CLUSTER>;
  using Copies = RowCopies<THREADS, CLUSTER>;
  using Draws = RowDraws<THREADS, CLUSTER>;
  using Arguments = RowArguments<Probability, Position>;
  static constexpr bool DRAWS = MAKE == FRESH || MAKE == COUPLED, TEMPERS = DRAWS || MAKE == LOGPROBS;
  static constexpr float GREEDY_BELOW = 1e-5f;

  struct Shared {
    SearchShared<THREADS> search;
    typename Draws::Shared draw;
    float largest[Team::WARPS];
    double sums[Team::WARPS];
  };

  // `place`: of the block among all of them.
  static __device__ __forceinline__ void body(const Arguments& a, int place, void* memory) {
    Shared& s = *static_cast<Shared*>(memory);
    float* values = reinterpret_cast<float*>(static_cast<char*>(memory) + (sizeof(Shared) + 15) / 16 * 16);
    make_row(a, s, values, place / CLUSTER, place % CLUSTER);
    Team::meet();  // nobody leaves while others still read
  }

 private:
  static __device__ __forceinline__ void make_row(const Arguments& a, Shared& s, float* memory, int row, int rank) {
    const int per = (a.vocabulary + 4 * CLUSTER - 1) / (4 * CLUSTER) * 4, first = min(rank * per, a.vocabulary);
    const int count = min(first + per, a.vocabulary) - first;
    Histogram<THREADS, CLUSTER>::clear(s.search.bins);
    Team::put(Copies::load(a.logits + row * a.row_stride + first, memory, count), s.largest, LargerOrNan());
    Team::meet();
    float largest = Team::gathered(s.largest, -INFINITY, LargerOrNan());
    Slice slice = {reinterpret_cast<const float4*>(memory), count, (count + 3) / 4, 1.0f};
    const bool is_broken = !(fabsf(largest) < INFINITY);
    const float temperature = TEMPERS && HAS_FILTERS ? a.temperature[row] : 1.0f;
    const bool is_greedy = temperature < GREEDY_BELOW;
    if (MAKE == ARGMAX || (DRAWS && (is_greedy || is_broken))) {
      const u32 id = is_broken ? Finder::NONE : Copies::find_largest(s.draw.ids, slice, first, largest);
      if (rank == 0 && threadIdx.x == 0) static_cast<int*>(a.out)[row] = static_cast<int>(id);
      return;
    }
    if (MAKE == LOGPROBS && is_broken) {
      Copies::write(slice, static_cast<float*>(a.out) + row * a.out_stride + first, [](int, float) { return NAN; });
      return;
    }
    if (TEMPERS && HAS_FILTERS) set_scale(slice, memory, largest, is_greedy ? GREEDY_BELOW : temperature, is_broken);
    const float top = slice.temper(largest);
    bool is_active;
    const Filters filters = filters_of(a, row, is_greedy, top, is_active);
    Kept is_kept = {-INFINITY, count};
    double log_total = 0;
    if (is_active) {
      Finder finder(s.search, slice, filters, top, a.vocabulary, rank);
      const Bound bound = finder.find();
      is_kept.last = bound.last;
      if (bound.kept_ties < bound.ties) is_kept.end = finder.end_of_ties(bound);
      log_total = static_cast<double>(top) + log(finder.in_shares(bound.mass));
    } else if (TEMPERS) {
      log_total = log_of_sum(s, slice, top);
    }
    finish(a, s, slice, is_kept, is_active, log_total, row, rank, first);
  }

  // Temper the slice; where that would leave the range of float32, as if the largest were 0, which changes no
  // probability.
  static __device__ __forceinline__ void set_scale(Slice& slice, float* memory, float& largest, float temperature,
                                                   bool is_broken) {
    slice.scale = __fdiv_rn(1.0f, temperature);
    if (is_broken || fabsf(__fmul_rn(largest, slice.scale)) < INFINITY) return;
    for (int i = threadIdx.x; i < slice.count; i += THREADS)
      memory[i] = __fmul_rn(__fsub_rn(memory[i], largest), slice.scale);
    largest = 0.0f;
    slice.scale = 1.0f;
    __syncthreads();
  }

  static __device__ __forceinline__ Filters filters_of(const Arguments& a, int row, bool is_greedy, float largest,
                                                       bool& is_active) {
    Filters filters = {1.0, 0, -INFINITY, true};
    is_active = false;
    if constexpr (MAKE == KEPT || MAKE == LARGEST) {
      is_active = a.count < a.vocabulary;
      filters.top_k = a.count;
      filters.has_masses = false;
    } else if constexpr (HAS_FILTERS) {
      const double top_p = a.top_p[row], min_p = a.min_p[row];
      const int top_k = a.top_k[row];
      if (top_p < 1) filters.top_p = fmax(top_p, 0.0);
      if (top_k > 0 && top_k < a.vocabulary) filters.top_k = top_k;
      if (min_p > 1) filters.top_k = 1;
      else if (min_p > 0) filters.least = least_of(min_p, largest);
      is_active = !is_greedy && (top_p < 1 || filters.top_k > 0 || min_p > 0);
    }
    return filters;
  }

  // Smallest float whose share is at least min_p: 0 < min_p <= 1.
  static __device__ __forceinline__ float least_of(double min_p, float largest) {
    const double top = largest;
    u32 low = key_of(-INFINITY), high = key_of(largest);
    while (high - low > 1) {  // near 0 many floats have the same share
      const u32 middle = low + (high - low) / 2;
      if (exp(static_cast<double>(value_of(middle)) - top) >= min_p) high = middle;
      else low = middle;
    }
    return value_of(high);
  }

  // Log of the sum of the exponentials of a whole row, in the order of threads and ranks.
  static __device__ __forceinline__ double log_of_sum(Shared& s, const Slice& slice, float top) {
    const Exponential exponential(top);
    double sum = 0;
    if (exponential.is_coarse) slice.each<THREADS>([&](int, float t) { sum += exponential.share(t); });
    else slice.each<THREADS>([&](int, float t) { sum += exponential.fine_times_power(t, 0); });
    Team::put(sum, s.sums, Sum());
    Team::meet();
    return static_cast<double>(top) + log(Team::gathered(s.sums, 0.0, Sum()));
  }

  static __device__ __forceinline__ void finish(const Arguments& a, Shared& s, const Slice& slice, const Kept& is_kept,
                                                bool is_active, double log_total, int row, int rank, int first) {
    const bool keeps_ties = is_kept.end >= slice.count;
    if constexpr (DRAWS) {
      int* token = static_cast<int*>(a.out) + row;
      const typename Draws::Row here = {slice, first, rank, Logprob(log_total)};
      const u64 stream = stream_of(a.seeds[row], a.positions[row], FRESH_CASE);
      // All blocks of a cluster meet in a draw, wherever each of them is.
      if (MAKE == COUPLED) Draws::race(s.draw, here, is_kept, stream, token);
      else if (keeps_ties) Draws::draw(s.draw, here, AllKept{is_kept.last}, unit_interval(stream), token);
      else Draws::draw(s.draw, here, is_kept, unit_interval(stream), token);
    } else if constexpr (MAKE == LARGEST) {
      Copies::list_largest(s.search, slice, is_kept, rank, first, a.count, a.logits + row * a.row_stride,
                           static_cast<float*>(a.out) + row * a.out_stride,
                           static_cast<int*>(a.out_ids) + row * a.out_stride);
    } else if constexpr (MAKE == MASK) {
      unsigned char* to = static_cast<unsigned char*>(a.out) + row * a.out_stride + first;
      for (int i = threadIdx.x; i < slice.count; i += THREADS) to[i] = !is_active || is_kept(i, slice.at(i));
    } else if constexpr (MAKE == KEPT) {
      float* to = static_cast<float*>(a.out) + row * a.out_stride + first;
      for (int i = threadIdx.x; is_active && i < slice.count; i += THREADS)
        if (!is_kept(i, slice.at(i))) to[i] = -INFINITY;
    } else if constexpr (MAKE == LOGPROBS) {
      float* to = static_cast<float*>(a.out) + row * a.out_stride + first;
      const Logprob logprob(log_total);
      const auto write_kept = [&](const auto& filter) {
        Copies::write(slice, to, [&](int i, float x) {
          const float t = slice.temper(x), value = logprob(t);
          return filter(i, t) ? value : -INFINITY;
        });
      };
      if (keeps_ties) write_kept(AllKept{is_kept.last});
      else write_kept(is_kept);
    }
  }
};

}  // namespace thalweg
