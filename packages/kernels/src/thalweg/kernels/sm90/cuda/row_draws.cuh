// A token out of a row that a cluster holds in shared memory, by the probabilities of what the filters keep.
#pragma once
#include "random_numbers.cuh"
#include "row_search.cuh"

namespace thalweg {

// Whether a column is kept.
struct Kept {
  float last;
  int end;  // of the columns in which `last` is kept
  __device__ __forceinline__ bool operator()(int i, float t) const { return t > last || (t == last && i < end); }
};
// The same where `last` is kept in all columns, as nearly always.
struct AllKept {
  float last;
  __device__ __forceinline__ bool operator()(int, float t) const { return t >= last; }
};

// Log-probabilities: values less the log of what all kept tokens weigh, which is the sum of two floats. All but exact:
// what the first difference loses goes into the second one.
struct Logprob {
  float high, low;

  __device__ __forceinline__ explicit Logprob(double log_total)
      : high(static_cast<float>(log_total)), low(static_cast<float>(log_total - static_cast<double>(high))) {}

  __device__ __forceinline__ float operator()(float t) const {
    const float difference = __fsub_rn(t, high), lost = __fsub_rn(t, __fadd_rn(difference, high));
    return __fadd_rn(difference, fmaxf(__fsub_rn(lost, low), -1.0f));  // NaN, of infinite differences, becomes -1
  }
};

template <int WARPS>
struct DrawShared {
  double sums[WARPS], hit_before, hit_target;
  u64 times[WARPS];
  u32 ids[WARPS];
  int hit_warp;
};

template <int THREADS, int CLUSTER>
struct RowDraws {
  using Team = Cluster<THREADS, CLUSTER>;
  using Shared = DrawShared<Team::WARPS>;
  static constexpr u32 NONE = 0xFFFFFFFFu;

  // Where to draw: the part of the row, its first column, the block's rank.
  struct Row {
    const Slice& slice;
    int first, rank;
    Logprob logprob;
  };

  // Weights of the four columns of a quad.
  template <class Filter>
  static __device__ __forceinline__ void weigh(const Row& row, const Filter& is_kept, int q, float (&w)[4]) {
    const float4 v = row.slice.quads[q];
    const float t[4] = {row.slice.temper(v.x), row.slice.temper(v.y), row.slice.temper(v.z), row.slice.temper(v.w)};
    bool kept[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      kept[j] = is_kept(4 * q + j, t[j]);
      w[j] = 0.0f;
    }
    if (kept[0] || kept[1] || kept[2] || kept[3]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = expf(row.logprob(t[j]));
        w[j] = kept[j] ? weight : 0.0f;
      }
    }
  }
  static __device__ __forceinline__ double sum_of(const float (&w)[4]) {
    return (static_cast<double>(w[0]) + w[1]) + (static_cast<double>(w[2]) + w[3]);
  }

  // The first column of the row at which the sum of weights exceeds u times their total, as the block that has it.
  template <class Filter>
  static __device__ __forceinline__ void draw(Shared& s, const Row& row, const Filter& is_kept, double u, int* token) {
    const int per = (row.slice.num_quads + Team::WARPS - 1) / Team::WARPS;  // quads of a warp
    const int from = min(Team::warp() * per, row.slice.num_quads), to = min(from + per, row.slice.num_quads);
    double sum = 0;
#pragma unroll 2
    for (int q = from + Team::lane(); q < to; q += 32) {
      float w[4];
      weigh(row, is_kept, q, w);
      sum += sum_of(w);
    }
    Team::put(sum, s.sums, Sum());
    if (threadIdx.x == 0) s.hit_warp = -1;
    Team::meet();
    if (Team::warp() == 0) choose_warp(s, row.rank, u, token);
    __syncthreads();
    if (Team::warp() == s.hit_warp) choose_column(s, row, is_kept, from, to, token);
  }

  // The column that arrives first. Its time is known roughly before it is computed exactly, which few need.
  static __device__ __forceinline__ void race(Shared& s, const Row& row, const Kept& is_kept, u64 stream, int* token) {
    double best = INFINITY;
    float bound = INFINITY;
    u32 id = NONE;
    row.slice.template each<THREADS>([&](int i, float t) {
      if (!is_kept(i, t)) return;
      const float w = expf(row.logprob(t));
      if (!(w > 0)) return;
      const u64 z = splitmix(stream + static_cast<u64>(row.first + i) * GAMMA);
      const float rough = -log1pf(-static_cast<float>(z >> 11) * 0x1p-53f) / w;
      if (rough > bound) return;
      const double arrival = -log1p(-unit_interval(z)) / static_cast<double>(w);
      if (arrival < best) {  // columns of a thread ascend
        best = arrival;
        id = row.first + i;
        bound = static_cast<float>(arrival) * 1.0001f;
      }
    });
    // Times are positive, so that their bits have their order.
    const u64 time = static_cast<u64>(__double_as_longlong(best));
    Team::put(time, s.times, Smaller());
    Team::meet();
    const u64 winner = Team::gathered(s.times, ~0ull, Smaller());
    Team::put(time == winner && best < INFINITY ? id : NONE, s.ids, Smaller());
    Team::meet();
    const u32 lowest = Team::gathered(s.ids, NONE, Smaller());
    if (row.rank == 0 && threadIdx.x == 0) *token = static_cast<int>(lowest);
  }

 private:
  // Of one warp of each block: which warp of the cluster has the column, from the sums of all. Where rounding leaves
  // none that goes beyond the target, the last one that weighs anything.
  static __device__ __forceinline__ void choose_warp(Shared& s, int rank, double u, int* token) {
    constexpr int ITEMS = CLUSTER * Team::WARPS, EACH = (ITEMS + 31) / 32;
    double sums[EACH], own = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int item = Team::lane() * EACH + i;
      sums[i] = item < ITEMS ? Team::of(s.sums, item / Team::WARPS)[item % Team::WARPS] : 0.0;
      own += sums[i];
    }
    const double before = before_in_warp(own);
    const double total = __shfl_sync(0xFFFFFFFFu, before + own, 31), target = u * total;
    int hit = ITEMS, last = -1;
    double running = before, hit_before = 0, last_before = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int item = Team::lane() * EACH + i;
      if (hit == ITEMS && running + sums[i] > target && sums[i] > 0) {
        hit = item;
        hit_before = running;
      }
      if (sums[i] > 0) {
        last = item;
        last_before = running;
      }
      running += sums[i];
    }
    const int first_hit = over_warp(hit, Smaller());
    const int last_item = -over_warp(-last, Smaller());
    const int chosen = first_hit < ITEMS ? first_hit : last_item;
    const bool is_mine = chosen >= 0 && (first_hit < ITEMS ? hit == first_hit : last == last_item);
    if (is_mine && chosen / Team::WARPS == rank) {
      s.hit_warp = chosen % Team::WARPS;
      s.hit_before = first_hit < ITEMS ? hit_before : last_before;
      s.hit_target = target;
    }
    if (chosen < 0 && rank == 0 && Team::lane() == 0) *token = -1;
  }

  // Of that warp: the column.
  template <class Filter>
  static __device__ __forceinline__ void choose_column(Shared& s, const Row& row, const Filter& is_kept, int from,
                                                       int to, int* token) {
    const double target = s.hit_target;
    double running = s.hit_before;
    int last_positive = 0;
    for (int base = from; base < to; base += 32) {
      const int q = base + Team::lane();
      float w[4] = {};
      if (q < to) weigh(row, is_kept, q, w);
      const double own = sum_of(w), before = running + before_in_warp(own);
      const u32 hits = __ballot_sync(0xFFFFFFFFu, own > 0 && before + own > target);
      if (hits) {
        if (Team::lane() == __ffs(hits) - 1) {
          double sum = before;
          int place = 0;
          for (int j = 0; j < 4; ++j) {
            if (w[j] > 0) place = j;
            sum += w[j];
            if (sum > target && w[j] > 0) break;
          }
          *token = row.first + 4 * q + place;
        }
        return;
      }
      if (own > 0)
        for (int j = 0; j < 4; ++j)
          if (w[j] > 0) last_positive = 4 * q + j;
      running = __shfl_sync(0xFFFFFFFFu, before + own, 31);
    }
    last_positive = -over_warp(-last_positive, Smaller());
    if (Team::lane() == 0) *token = row.first + last_positive;
  }
};

}  // namespace thalweg
