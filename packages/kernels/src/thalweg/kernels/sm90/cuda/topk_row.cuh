// A row of bfloat16 scores, as those who select from it see it.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

namespace thalweg {

struct TopkArguments {
  const __nv_bfloat16* scores;
  const int* visible;
  int* ids;  // [rows, k]
  long long row_stride;
  int columns;
  int k;
  int per_entry;  // visible counts so many times finer than columns
};

constexpr int CHUNK = 8;
constexpr int INFINITE = 0x7F80, NOTHING = -INFINITE, LEAST = NOTHING + 1;

__device__ __forceinline__ int ordered(uint32_t bits) {
  const int magnitude = bits & 0x7FFF;
  return bits & 0x8000 ? -magnitude : magnitude;
}

// A pair of the bfloat16 that `ordered` maps to this.
__device__ __forceinline__ __nv_bfloat162 score_pair(int value) {
  const __nv_bfloat16 score = __ushort_as_bfloat16(value < 0 ? 0x8000 | -value : value);
  return {score, score};
}

__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t bits) { return *reinterpret_cast<__nv_bfloat162*>(&bits); }

// One bit for each of the 8 scores, from all ones or zeros in halves of words.
__device__ __forceinline__ uint32_t bits_of(uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
  const uint32_t bits =
      (first & 0x00010001u) | (second & 0x00040004u) | (third & 0x00100010u) | (fourth & 0x00400040u);
  return (bits | bits >> 15) & 0xFFu;
}

__device__ __forceinline__ uint32_t at_least(const uint4& chunk, __nv_bfloat162 least) {
  return bits_of(__hge2_mask(as_pair(chunk.x), least), __hge2_mask(as_pair(chunk.y), least),
                 __hge2_mask(as_pair(chunk.z), least), __hge2_mask(as_pair(chunk.w), least));
}

__device__ __forceinline__ uint32_t above(const uint4& chunk, __nv_bfloat162 last) {
  return bits_of(__hgt2_mask(as_pair(chunk.x), last), __hgt2_mask(as_pair(chunk.y), last),
                 __hgt2_mask(as_pair(chunk.z), last), __hgt2_mask(as_pair(chunk.w), last));
}

__device__ __forceinline__ uint32_t larger(uint32_t one, uint32_t other) {
  uint32_t result;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(one), "r"(other));
  return result;
}

__device__ __forceinline__ uint32_t larger(const uint4& words) {
  return larger(larger(words.x, words.y), larger(words.z, words.w));
}

__device__ __forceinline__ int score_of(const uint4& chunk, int i) {
  const uint32_t word = i < 4 ? (i < 2 ? chunk.x : chunk.y) : (i < 6 ? chunk.z : chunk.w);
  return ordered(i % 2 ? word >> 16 : word & 0xFFFF);
}

// What is visible of a row, in chunks of 16 aligned bytes. The first may begin before it, the last may end behind it;
// those are edges, which are never taken as they are.
struct TopkRow {
  const uint4* chunks;
  int offset;  // columns of the first chunk before the row
  int visible;
  int num_chunks;
  int first;  // of the chunks between the edges
  int past;

  __device__ __forceinline__ TopkRow(const TopkArguments& a, int row) {
    const __nv_bfloat16* scores = a.scores + row * a.row_stride;
    offset = int(reinterpret_cast<uintptr_t>(scores) % 16 / 2);
    chunks = reinterpret_cast<const uint4*>(scores - offset);
    visible = max(0, min((a.visible[row] + a.per_entry - 1) / a.per_entry, a.columns));
    num_chunks = visible > 0 ? (visible + offset + CHUNK - 1) / CHUNK : 0;
    first = offset > 0;
    past = max(first, (visible + offset) / CHUNK);
    if (visible == 0) past = first;
  }

  __device__ __forceinline__ bool is_between(int chunk) const { return chunk >= first && chunk < past; }

  // The two edges by number, -1 where there is none.
  __device__ __forceinline__ int edge(int which) const {
    if (which == 0) return first > 0 && num_chunks > 0 ? 0 : -1;
    return num_chunks > max(past, first) ? num_chunks - 1 : -1;
  }

  // A chunk, with negative infinity outside of what is visible.
  __device__ __forceinline__ uint4 load(int chunk) const {
    uint4 part = __ldg(chunks + chunk);
    if (!is_between(chunk)) {
      const int from = chunk == 0 ? offset : 0, to = min(visible + offset - chunk * CHUNK, CHUNK);
      part = {hidden(part.x, 0, from, to), hidden(part.y, 2, from, to), hidden(part.z, 4, from, to),
              hidden(part.w, 6, from, to)};
    }
    return part;
  }

  static __device__ __forceinline__ uint32_t hidden(uint32_t word, int place, int from, int to) {
    const uint32_t low = place >= from && place < to ? word & 0xFFFFu : 0xFF80u;
    return low | (place + 1 >= from && place + 1 < to ? word & 0xFFFF0000u : 0xFF800000u);
  }
};

}  // namespace thalweg
