// What rejection sampling makes of a draft: whether it holds, and what replaces it. A block per row.
#pragma once
#include "weighted_rows.cuh"

namespace thalweg {

// What is left of the target's distribution behind the draft's, both given as log-probabilities.
struct ResidualWeights {
  const float *target, *draft;  // draft: null = none
  int certain;                  // column that holds all of the draft's distribution, -1 = none
  float alpha;

  __device__ __forceinline__ float operator()(int i) const {
    float taken = 0.0f;
    if (draft) taken = expf(__ldg(draft + i));
    if (i == certain) taken = 1.0f;
    return fmaxf(__fsub_rn(expf(__ldg(target + i)), __fmul_rn(taken, alpha)), 0.0f);
  }
};

template <class Position>
struct JudgedArguments {
  const float* logprobs;
  const int* draft_ids;
  const unsigned char* has_draft;
  const float* draft_logprobs;
  const long long *draft_rows, *rows;  // rows: the entry of draft_ids, has_draft and draft_rows for each row
  const u64* seeds;
  const Position* positions;
  int* tokens;
  unsigned char* is_accepted;
  float *accept_probs, *drawn_with;
  long long stride, draft_stride, num_draft_rows;
  int columns, keeps;  // keeps: whether a row that yields nothing leaves its token as it is
};

template <int THREADS, class Position>
struct JudgedRows {
  using Team = Block<THREADS>;
  using Shared = typename Chunks<THREADS>::Shared;

  static __device__ __forceinline__ void body(const JudgedArguments<Position>& a, int row, double alpha, void* memory) {
    Shared& s = *static_cast<Shared*>(memory);
    const long long entry = a.rows[row], draft_row = a.draft_rows[entry];
    const int id = a.draft_ids[entry];
    const bool has_draft = a.has_draft[entry], has_row = draft_row < a.num_draft_rows;
    const bool is_known = has_draft && has_row && id >= 0 && id < a.columns;
    const bool is_stored = has_draft && has_row && draft_row >= 0;
    const float* target = a.logprobs + row * a.stride;
    const float* draft = is_stored ? a.draft_logprobs + draft_row * a.draft_stride : nullptr;
    const ResidualWeights weight = {target, draft, is_known && !is_stored ? id : -1, static_cast<float>(alpha)};
    Chunks<THREADS>::add(s, weight, a.columns);
    if (Team::warp() != 0) return;
    float drawn_with = has_draft ? -INFINITY : 0.0f;
    bool holds = false;
    if (is_known) {
      drawn_with = is_stored ? __ldg(draft + id) : 0.0f;
      const double gain = static_cast<double>(__ldg(target + id)) - static_cast<double>(drawn_with);
      holds = unit_interval(stream_of(a.seeds[row], a.positions[row], COIN_CASE)) < exp(gain);
    }
    double mass;
    const double u = unit_interval(stream_of(a.seeds[row], a.positions[row], has_draft ? RESIDUAL_CASE : FRESH_CASE));
    const int token = Chunks<THREADS>::find(s, weight, a.columns, u, mass);
    if (Team::lane() != 0) return;
    if (holds || token >= 0 || !a.keeps) a.tokens[entry] = holds ? id : token;
    a.is_accepted[entry] = holds || !has_draft;
    a.accept_probs[entry] = has_draft ? static_cast<float>(fmax(1.0 - mass, 0.0)) : 1.0f;
    a.drawn_with[entry] = drawn_with;
  }
};

}  // namespace thalweg
