#include "thalweg/scheduler/block_pool.hpp"

#include <array>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "thalweg/scheduler/errors.hpp"

using namespace thalweg::scheduler;
using Ids = std::vector<std::int32_t>;

namespace {

void freed_ids_wait_behind_the_others() {
  BlockPool pool(5);
  CHECK(pool.capacity() == 5 && pool.num_free() == 4);
  CHECK((pool.allocate(3) == Ids{1, 2, 3}));
  pool.release(Ids{1, 3});
  CHECK((pool.free_ids() == Ids{4, 3, 1}));
  CHECK((pool.allocate(3) == Ids{4, 3, 1}));
}

void a_pinned_id_stays_until_its_last_holder_lets_go() {
  BlockPool pool(3);
  const Ids ids = pool.allocate(2);
  pool.pin(Ids{1, 1});
  pool.release(ids);
  CHECK(pool.num_free() == 1);
  pool.release(Ids{1, 1});
  CHECK((pool.free_ids() == Ids{2, 1}));
}

void refusals_change_nothing() {
  BlockPool pool(4);
  check_throws<CapacityError>([&] { pool.allocate(4); }, "need 4 blocks, 3 are free");
  check_throws<std::invalid_argument>([&] { pool.allocate(-1); }, "cannot allocate -1 blocks");
  const Ids ids = pool.allocate(2);
  check_throws<std::invalid_argument>([&] { pool.release(Ids{1, 2, 1}); }, "block 1 is released 2 times, it has 1");
  check_throws<std::invalid_argument>([&] { pool.release(Ids{1, 0}); }, "block 0 does not exist");
  check_throws<std::invalid_argument>([&] { pool.release(Ids{4}); }, "block 4 does not exist");
  check_throws<CapacityError>([&] { pool.pin(Ids{1, 3}); }, "block 3 is free");
  CHECK((pool.free_ids() == Ids{3}));
  pool.release(ids);
  CHECK((pool.free_ids() == Ids{3, 2, 1}));
  check_throws<ConfigError>([] { BlockPool empty(0); }, "at least 1");
}

void a_whole_pool_never_fits_one_sequence() {
  BlockPool pool(4);
  CHECK(pool.can_allocate(3) == Fit::ok && pool.can_allocate(4) == Fit::never);
  pool.allocate(1);
  CHECK(pool.can_allocate(3) == Fit::later && pool.can_allocate(2) == Fit::ok);
}

void threads_never_share_an_id() {
  BlockPool pool(65);
  const auto work = [&pool] {
    for (int i = 0; i < 2000; ++i) {
      std::array<std::int32_t, 3> ids;
      if (!pool.try_allocate(ids)) continue;
      pool.pin(ids);
      pool.release(ids);
      pool.release(ids);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  CHECK(pool.num_free() == 64);
}

}  // namespace

int main() {
  freed_ids_wait_behind_the_others();
  a_pinned_id_stays_until_its_last_holder_lets_go();
  refusals_change_nothing();
  a_whole_pool_never_fits_one_sequence();
  threads_never_share_an_id();
}
