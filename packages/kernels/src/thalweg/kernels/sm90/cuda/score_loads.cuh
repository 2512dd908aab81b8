// How tiles of keys come into a block's memory: 16 bytes at a time, by all threads, some tiles ahead.
//
// A warp fetches 32 neighbouring keys: a thread 16 bytes, one scale group, of every AT_ONCE-th of them, and the scales
// of one key. Chunks of neighbouring keys change places, so that the eight of a matrix that ldmatrix reads fill all
// banks. Instructions are what limits scores: whole tiles, which are almost all, take few.
#pragma once
#include "score_plan.cuh"

namespace thalweg {

__device__ __forceinline__ void copy_chunk(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// The scales of a key, one byte to a group.
template <int GROUPS>
__device__ __forceinline__ void copy_scales(uint32_t target, const uint8_t* source) {
  if constexpr (GROUPS == 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
  } else {
    const unsigned short pair = __ldg(reinterpret_cast<const unsigned short*>(source));
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(target), "h"(pair) : "memory");
  }
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

template <class Plan>
struct ScoreLoader {
  using Run = typename Plan::Run;
  static constexpr int GROUPS = Plan::GROUPS, KEYS = 32, AT_ONCE = 32 / GROUPS, TURNS = KEYS / AT_ONCE;
  static constexpr int KEY_BYTES = Plan::KEY_BYTES, ENTRIES = Plan::ENTRIES, BLOCK = Plan::BLOCK;
  static constexpr bool IS_PAGED = Plan::IS_PAGED, IS_LISTED = Plan::IS_LISTED;
  static_assert(TURNS == GROUPS && (TILE / 4) % KEYS == 0);
  // Whether a warp's keys lie together.
  static constexpr bool IS_EVEN = !IS_LISTED && (!IS_PAGED || ENTRIES % KEYS == 0);

  const ScoreArguments& a;
  uint32_t memory;  // of the first stage
  Run run;
  int tile;
  int left;       // tiles to come in later runs, once this one is begun
  int until = 0;  // tiles to come in this run
  int limit = 0;  // entries of the run that may be read
  int listed_entries[IS_LISTED ? TURNS : 1] = {};
  int pages[IS_EVEN ? 1 : TURNS] = {};

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int first_key() { return int(threadIdx.x) / 32 * KEYS; }
  static __device__ __forceinline__ int chunk() { return threadIdx.x % GROUPS; }
  static __device__ __forceinline__ int key(int turn) { return first_key() + turn * AT_ONCE + lane() / GROUPS; }

  // Begin a run: at a tile of it at first, at its first one later.
  __device__ __forceinline__ void start() {
    until = min(left, run.tiles() - tile);
    left -= until;
    limit = Plan::limit(a, run);
  }

  // Which entry of the run a turn fetches.
  __device__ __forceinline__ int entry(int turn) const {
    if constexpr (IS_LISTED) return listed_entries[turn];
    return tile * TILE + key(turn);
  }

  // Fetch what the addresses of the tile depend on. A table is not read behind its end.
  __device__ __forceinline__ void look_up() {
    if (until <= 0) return;
    if constexpr (IS_LISTED) {
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {
        const int column = tile * TILE + key(turn), place = column / BLOCK;
        const int block = place < a.listed ? __ldg(a.blocks + (long long)run.row * a.listed + place) : -1;
        listed_entries[turn] = block < 0 ? limit : block * BLOCK + column % BLOCK;
      }
    }
    if constexpr (IS_PAGED) {
#pragma unroll
      for (int i = 0; i < (IS_EVEN ? 1 : TURNS); ++i) {
        const int cell = (IS_EVEN ? tile * TILE + first_key() : entry(i)) / ENTRIES;
        pages[i] = __ldg(a.tables + (run.row * a.table_width + min(cell, a.table_width - 1)));
      }
    }
  }

  __device__ __forceinline__ void load(uint32_t stage) {
    if (until > 0) {
      const uint32_t place = memory + stage;
      const uint32_t target = place + key(0) * KEY_BYTES + (chunk() ^ Plan::swizzle(key(0))) * 16;
      if (IS_EVEN && (tile + 1) * TILE <= limit) load_whole(place, target);
      else load_some(place, target);
      ++tile;
      if (--until == 0) next_run();
      look_up();
    }
    copies_commit();
  }

  // All keys of the tile.
  __device__ __forceinline__ void load_whole(uint32_t place, uint32_t target) {
    const uint8_t *codes, *scales;
    if constexpr (IS_PAGED) {
      const int first = (tile * TILE + first_key()) % ENTRIES;
      const uint8_t* page = page_start(pages[0]);
      codes = page + first * KEY_BYTES;
      scales = page + ENTRIES * KEY_BYTES + first * GROUPS;
    } else {
      const long long first = run.begin + (long long)(tile * TILE + first_key());
      codes = a.keys + first * KEY_BYTES;
      scales = a.key_scales + first * GROUPS;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
      copy_chunk(target + turn * AT_ONCE * KEY_BYTES, codes + lane() * 16 + turn * AT_ONCE * KEY_BYTES);
    copy_scales<GROUPS>(place + Plan::DATA_BYTES + threadIdx.x * GROUPS, scales + lane() * GROUPS);
  }

  __device__ __forceinline__ const uint8_t* page_start(int page) const {
    return a.keys + uint64_t(uint32_t(page)) * a.page_stride;
  }

  // Keys up to the limit, wherever they lie. The scales that a thread fetches are of one of its keys.
  __device__ __forceinline__ void load_some(uint32_t place, uint32_t target) {
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const int own = entry(turn);
      if (own >= limit) continue;
      const uint8_t *codes, *scales;
      if constexpr (IS_PAGED) {
        const uint8_t* page = page_start(pages[IS_EVEN ? 0 : turn]);
        codes = page + own % ENTRIES * KEY_BYTES;
        scales = page + ENTRIES * KEY_BYTES + own % ENTRIES * GROUPS;
      } else {
        codes = a.keys + (run.begin + (long long)own) * KEY_BYTES;
        scales = a.key_scales + (run.begin + (long long)own) * GROUPS;
      }
      copy_chunk(target + turn * AT_ONCE * KEY_BYTES, codes + chunk() * 16);
      if (chunk() == turn) copy_scales<GROUPS>(place + Plan::DATA_BYTES + key(turn) * GROUPS, scales);
    }
  }

  __device__ __forceinline__ void next_run() {
    if (left == 0) return;
    do run = Plan::run_at(a, run.row + run.rows);
    while (run.tiles() == 0);
    tile = 0;
    start();
  }
};

}  // namespace thalweg
