// Draws from weights that are given, and sums of them: a block per row.
//
// A warp sums chunks of neighbouring columns. Sums of chunks are few, and lead to the chunk that holds the token; its
// weights alone are computed a second time.
#pragma once
#include "random_numbers.cuh"
#include "row_block.cuh"

namespace thalweg {

constexpr int CHUNK = 256, MAX_CHUNKS = 2048;

template <int THREADS>
struct Chunks {
  using Team = Block<THREADS>;
  struct Shared {
    double sums[MAX_CHUNKS];
    u64 slots[Team::WARPS];
    u32 ids[Team::WARPS];
  };

  // Sums of all chunks, in the shared memory of the block.
  template <class Weights>
  static __device__ __forceinline__ void add(Shared& s, const Weights& weight, int columns) {
    const int chunks = (columns + CHUNK - 1) / CHUNK;
    for (int c = Team::warp(); c < chunks; c += Team::WARPS) {
      double sum = 0;
      if ((c + 1) * CHUNK <= columns) {
#pragma unroll
        for (int j = 0; j < CHUNK / 32; ++j) sum += weight(c * CHUNK + j * 32 + Team::lane());
      } else {
        for (int i = c * CHUNK + Team::lane(); i < columns; i += 32) sum += weight(i);
      }
      sum = over_warp(sum, Sum());
      if (Team::lane() == 0) s.sums[c] = sum;
    }
    __syncthreads();
  }

  // Of one warp: the first column whose running sum exceeds u times the total, -1 where that is 0 or not finite.
  template <class Weights>
  static __device__ __forceinline__ int find(const Shared& s, const Weights& weight, int columns, double u,
                                             double& total) {
    const int chunks = (columns + CHUNK - 1) / CHUNK, each = (chunks + 31) / 32;
    const int from = min(Team::lane() * each, chunks), to = min(from + each, chunks);
    double own = 0;
    for (int c = from; c < to; ++c) own += s.sums[c];
    const double before = before_in_warp(own);
    total = __shfl_sync(0xFFFFFFFFu, before + own, 31);
    const double target = u * total;
    int hit = MAX_CHUNKS, last = -1;
    double running = before, hit_before = 0, last_before = 0;
    for (int c = from; c < to; ++c) {
      if (hit == MAX_CHUNKS && s.sums[c] > 0 && running + s.sums[c] > target) {
        hit = c;
        hit_before = running;
      }
      if (s.sums[c] > 0) {
        last = c;
        last_before = running;
      }
      running += s.sums[c];
    }
    const int first_hit = over_warp(hit, Smaller()), last_chunk = -over_warp(-last, Smaller());
    if (!(total > 0) || !(total < INFINITY)) return -1;
    const bool has_hit = first_hit < MAX_CHUNKS;
    const int chunk = has_hit ? first_hit : last_chunk;
    const u32 owner = __ballot_sync(0xFFFFFFFFu, has_hit ? hit == chunk : last == chunk);
    const double sum = __shfl_sync(0xFFFFFFFFu, has_hit ? hit_before : last_before, __ffs(owner) - 1);
    return find_in_chunk(weight, chunk, columns, sum, target);
  }

 private:
  // The same within a chunk, before which weights sum to `sum`; where rounding leaves none, the last that has a weight.
  template <class Weights>
  static __device__ __forceinline__ int find_in_chunk(const Weights& weight, int chunk, int columns, double sum,
                                                      double target) {
    int last_positive = 0;
    for (int base = chunk * CHUNK; base < min((chunk + 1) * CHUNK, columns); base += 32) {
      const int i = base + Team::lane();
      const double w = i < columns ? static_cast<double>(weight(i)) : 0.0;
      const double earlier = sum + before_in_warp(w);
      const u32 hits = __ballot_sync(0xFFFFFFFFu, w > 0 && earlier + w > target);
      if (hits) return base + __ffs(hits) - 1;
      const u32 positive = __ballot_sync(0xFFFFFFFFu, w > 0);
      if (positive) last_positive = base + 31 - __clz(positive);
      sum = __shfl_sync(0xFFFFFFFFu, earlier + w, 31);
    }
    return last_positive;
  }
};

enum Use { DRAWN, RACED, SMALLER };

template <class Position>
struct WeightedArguments {
  const float* rows;
  const double* u;             // of DRAWN
  const u64* seeds;            // of RACED, as positions
  const Position* positions;
  const int* ids;              // of SMALLER
  void* out;
  long long stride;
  int columns;
};

struct PlainWeights {
  const float* row;
  __device__ __forceinline__ float operator()(int i) const { return __ldg(row + i); }
};

// Mass of what is no more probable than the token, rows being log-probabilities.
struct SmallerWeights {
  const float* row;
  float own;
  int column;
  __device__ __forceinline__ double operator()(int i) const {
    const float v = __ldg(row + i);
    return v < own || (v == own && i <= column) ? exp(static_cast<double>(v)) : 0.0;
  }
};

template <int THREADS, class Position>
struct WeightedRows {
  using Team = Block<THREADS>;
  using Shared = typename Chunks<THREADS>::Shared;
  using Arguments = WeightedArguments<Position>;

  template <int USE>
  static __device__ __forceinline__ void body(const Arguments& a, int row, void* memory) {
    Shared& s = *static_cast<Shared*>(memory);
    const float* weights = a.rows + row * a.stride;
    if constexpr (USE == DRAWN) draw(s, weights, a, row);
    else if constexpr (USE == RACED) race(s, weights, a, row);
    else sum_smaller(s, weights, a, row);
  }

 private:
  static __device__ __forceinline__ void draw(Shared& s, const float* weights, const Arguments& a, int row) {
    const PlainWeights weight = {weights};
    Chunks<THREADS>::add(s, weight, a.columns);
    if (Team::warp() != 0) return;
    double total;
    const int token = Chunks<THREADS>::find(s, weight, a.columns, a.u[row], total);
    if (Team::lane() == 0) static_cast<int*>(a.out)[row] = token;
  }

  // The column that arrives first. Its time is known roughly before it is computed exactly, which few need.
  static __device__ __forceinline__ void race(Shared& s, const float* weights, const Arguments& a, int row) {
    const u64 stream = stream_of(a.seeds[row], a.positions[row], FRESH_CASE);
    double best = INFINITY;
    float bound = INFINITY;
    u32 id = 0xFFFFFFFFu;
    for (int i = threadIdx.x; i < a.columns; i += THREADS) {
      const float w = __ldg(weights + i);
      if (!(w > 0)) continue;
      const u64 z = splitmix(stream + static_cast<u64>(i) * GAMMA);
      if (-log1pf(-static_cast<float>(z >> 11) * 0x1p-53f) / w > bound) continue;
      const double arrival = -log1p(-unit_interval(z)) / static_cast<double>(w);
      if (arrival < best) {
        best = arrival;
        id = i;
        bound = static_cast<float>(arrival) * 1.0001f;
      }
    }
    const u64 own = static_cast<u64>(__double_as_longlong(best)), of_warp = over_warp(own, Smaller());
    if (Team::lane() == 0) s.slots[Team::warp()] = of_warp;
    __syncthreads();
    u64 winner = ~0ull;
    for (int w = 0; w < Team::WARPS; ++w) winner = min(winner, s.slots[w]);
    const u32 lowest = over_warp(own == winner && best < INFINITY ? id : 0xFFFFFFFFu, Smaller());
    if (Team::lane() == 0) s.ids[Team::warp()] = lowest;
    __syncthreads();
    if (threadIdx.x != 0) return;
    u32 token = 0xFFFFFFFFu;
    for (int w = 0; w < Team::WARPS; ++w) token = min(token, s.ids[w]);
    static_cast<int*>(a.out)[row] = static_cast<int>(token);
  }

  static __device__ __forceinline__ void sum_smaller(Shared& s, const float* logprobs, const Arguments& a, int row) {
    float* masses = static_cast<float*>(a.out);
    const int id = a.ids[row];
    if (id < 0 || id >= a.columns) {
      if (threadIdx.x == 0) masses[row] = 0.0f;
      return;
    }
    Chunks<THREADS>::add(s, SmallerWeights{logprobs, __ldg(logprobs + id), id}, a.columns);
    if (Team::warp() != 0) return;
    double sum = 0;
    for (int c = Team::lane(); c < (a.columns + CHUNK - 1) / CHUNK; c += 32) sum += s.sums[c];
    sum = over_warp(sum, Sum());
    if (Team::lane() == 0) masses[row] = static_cast<float>(sum);
  }
};

}  // namespace thalweg
