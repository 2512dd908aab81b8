// What products of routed experts share: tiles of packed weights.

#include "asynchronous.cuh"

namespace thalweg {

// Rows and columns of a tile, and its bytes: codes, and then scales.
constexpr int kTileRows = 64, kTileColumns = 128, kCodeBytes = 4096, kTileBytes = 4352;

}  // namespace thalweg
