// How the stages of fp8_stream.cuh are filled.

#include "asynchronous.cuh"

namespace thalweg {

constexpr int kStepGroups = 4;  // groups of 32 columns in a stage
constexpr int kFillers = 128;   // threads that fill stages
constexpr int kTilesDown = 4;   // tiles of 32 rows that a block has of the weight

// The columns of a block: steps of kStepGroups groups, of which the last may have fewer.
struct Steps {
  int count, last_groups;
  __device__ __forceinline__ int groups(int step) const { return step + 1 < count ? kStepGroups : last_groups; }
};

// What a block reads.
struct StreamSource {
  const uint8_t *codes, *scales;       // x, from its first row and the block's first column on
  const uint8_t *tiles, *tile_scales;  // the weight, likewise
  int num_rows, x_groups;              // rows that there are, and groups of 32 columns from one to the next
  int num_tile_rows, width;            // tile rows that there are, and tiles from one to the next
};

// Shared memory of a block.
template <int ROWS, int STAGES>
struct Stream {
  static constexpr int kLaneFactors = ROWS / 4 + 4;  // those of a lane's rows side by side; four keep banks apart
  alignas(1024) uint8_t rows[STAGES][ROWS * 128];
  uint8_t weights[STAGES][kTilesDown][kStepGroups * 1024];
  alignas(16) float factors[STAGES][kStepGroups][kTilesDown][4 * kLaneFactors];
  uint32_t scales[STAGES][ROWS + kTilesDown];  // of the groups of a step, those of x first
  alignas(8) uint64_t full[STAGES], empty[STAGES];

  __device__ __forceinline__ void init() {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(shared_address(&full[stage]), kFillers / 32 + 1);
      barrier_init(shared_address(&empty[stage]), 8);
    }
    publish_shared();
  }
};

// 4 bytes, by this thread. Groups of copies are waited for in the order that they were committed in.
__device__ __forceinline__ void copy_word(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_words() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_words() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// 2^(byte - 127) of byte `index` of a word; infinite for 255, which no number has.
__device__ __forceinline__ float power_of_two(uint32_t word, int index) {
  return __uint_as_float((word >> (8 * index) & 0xff) << 23);
}

// The work of the threads that fill stages. They are asked for STAGES - 1 ahead. A row or a tile row beyond the last one
// is that one, and its results are not written.
template <int ROWS, int STAGES>
struct Filling {
  Stream<ROWS, STAGES>& stream;
  const StreamSource& from;
  const Steps& steps;

  __device__ __forceinline__ void ask_for_weights(int step, int stage) const {
    const uint32_t full = shared_address(&stream.full[stage]);
    const int bytes = steps.groups(step) * 1024;
    barrier_expect(full, kTilesDown * bytes);
#pragma unroll
    for (int i = 0; i < kTilesDown; ++i) {
      const size_t tile = static_cast<size_t>(min(i, from.num_tile_rows - 1)) * from.width + step * kStepGroups;
      fetch_once(shared_address(stream.weights[stage][i]), from.tiles + tile * 1024, bytes, full);
    }
  }

  // A warp copies 128 columns of a row, word by word. Of a group's words come 0, 2, 4, 6 first, and then 1, 3, 5, 7: the
  // eight columns that a lane has of a tile are two words, the first of which the product takes to be of columns 0 to
  // 15. Chunks of 16 bytes are swizzled by the row.
  __device__ __forceinline__ void ask_for_rows(int step, int stage) const {
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 8, word = threadIdx.x % 8;
    if (group >= steps.groups(step)) return;
    const uint8_t* columns = from.codes + (step * kStepGroups + group) * 32 + word * 4;
#pragma unroll
    for (int i = 0; i < ROWS / 4; ++i) {
      const int row = i * 4 + warp, chunk = (group * 2 + word % 2) ^ (row % 8);
      copy_word(stream.rows[stage] + row * 128 + chunk * 16 + word / 2 * 4,
                columns + static_cast<size_t>(min(row, from.num_rows - 1)) * from.x_groups * 32);
    }
  }

  __device__ __forceinline__ void ask_for_scales(int step, int stage) const {
    if (threadIdx.x >= ROWS + kTilesDown) return;
    const int row = min(static_cast<int>(threadIdx.x), from.num_rows - 1);
    const int tile_row = min(static_cast<int>(threadIdx.x) - ROWS, from.num_tile_rows - 1);
    const uint8_t* scales = threadIdx.x < ROWS ? from.scales + static_cast<size_t>(row) * from.x_groups
                                               : from.tile_scales + static_cast<size_t>(tile_row) * from.width;
    scales += step * kStepGroups;
    uint32_t* to = &stream.scales[stage][threadIdx.x];
    if (from.width % kStepGroups == 0)
      copy_word(to, scales);
    else
      for (int u = 0; u < steps.groups(step); ++u) reinterpret_cast<uint8_t*>(to)[u] = __ldg(scales + u);
  }

  // Wait for what was asked for first, and hand it on.
  __device__ __forceinline__ void publish(int stage) const {
    wait_words<STAGES - 2>();
    wait_for_others(2, kFillers);
    constexpr int kAtOnce = kFillers / ROWS;  // tile rows whose factors are written at once
    const int row = threadIdx.x % ROWS, place = row % 8 / 2 * stream.kLaneFactors + row / 8 * 2 + row % 2;
    const uint32_t row_scales = stream.scales[stage][row];
#pragma unroll
    for (int first = 0; first < kTilesDown; first += kAtOnce) {
      const int tile_row = first + threadIdx.x / ROWS;
      if (tile_row >= kTilesDown) continue;
      const uint32_t tile_scales = stream.scales[stage][ROWS + tile_row];
#pragma unroll
      for (int u = 0; u < kStepGroups; ++u)
        stream.factors[stage][u][tile_row][place] = power_of_two(row_scales, u) * power_of_two(tile_scales, u);
    }
    publish_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&stream.full[stage]));
  }

  __device__ __forceinline__ void ask_for_words(int step, int stage) const {
    if (step < steps.count) {
      ask_for_rows(step, stage);
      ask_for_scales(step, stage);
    }
    commit_words();
  }

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) {
      stream.init();
      for (int step = 0; step < min(STAGES, steps.count); ++step) ask_for_weights(step, step);
    }
    for (int step = 0; step < STAGES - 1; ++step) ask_for_words(step, step);
    __syncthreads();
    int stage = 0, next_stage = STAGES - 1;
    uint32_t phase = 1;
    for (int step = 0; step < steps.count; ++step) {
      publish(stage);
      const int next = step + STAGES - 1;
      if (step > 0 && next < steps.count) {
        barrier_wait(shared_address(&stream.empty[next_stage]), phase);
        if (threadIdx.x == 0) ask_for_weights(next, next_stage);
      }
      ask_for_words(next, next_stage);
      if (++next_stage == STAGES) next_stage = 0, phase ^= 1;
      if (++stage == STAGES) stage = 0;
    }
  }
};

}  // namespace thalweg
