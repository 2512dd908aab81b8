// Other threads allocate, pin and release while the scheduler plans: a store, or a hand-over. For the thread sanitizer.
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "driver.hpp"
#include "thalweg/scheduler/errors.hpp"
#include "thalweg/scheduler/pool_mutex.hpp"

using namespace thalweg::scheduler;

namespace {

// Takes some ids, shares them with itself, and lets go, until told to stop.
void borrow(BlockPool& pool, const std::atomic<bool>& is_over) {
  while (!is_over.load()) {
    std::array<std::int32_t, 3> ids;
    if (pool.try_allocate(ids)) {
      pool.pin(ids);
      pool.release(ids);
      CHECK(pool.can_allocate(1) != Fit::never);
      pool.release(ids);
    }
    pool.free_ids();
    std::this_thread::yield();
  }
}

// A store that still reads the blocks of a plan.
void pin_some(Scheduler& scheduler, const StepPlan& plan, std::vector<std::int32_t>& pinned) {
  if (plan.block_ids.empty() || !pinned.empty()) return;
  pinned.assign(plan.block_ids.begin(), plan.block_ids.begin() + 1);
  scheduler.blocks().pin(pinned);
}

void run_to_the_end(Scheduler& scheduler, std::mt19937& random) {
  std::vector<std::int32_t> pinned;
  for (int step = 0; step < 4000 && (step < 100 || scheduler.has_unfinished()); ++step) {
    if (step < 100 && random() % 3 == 0) add(scheduler, 1 + static_cast<std::int32_t>(random() % 30), 20);
    const StepPlan plan = thalweg::scheduler::plan(scheduler);
    pin_some(scheduler, plan, pinned);
    process(scheduler, plan, random() % 3);
    scheduler.release(plan.step);
    if (random() % 4 == 0) {
      scheduler.blocks().release(pinned);
      pinned.clear();
    }
  }
  scheduler.blocks().release(pinned);
}

void the_pools_may_be_used_while_steps_are_planned() {
  Options options = small_options();
  options.num_blocks = 40;
  Scheduler scheduler(options);
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (BlockPool* pool : {&scheduler.blocks(), &scheduler.blocks(), &scheduler.state_slots()})
    threads.emplace_back([pool, &is_over] { borrow(*pool, is_over); });
  std::mt19937 random(5);
  run_to_the_end(scheduler, random);
  is_over.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(!scheduler.has_unfinished() && scheduler.state().sequences.size() == 0);
  CHECK(scheduler.blocks().num_free() == 39 && scheduler.state_slots().num_free() == 10);
}

void who_does_not_get_the_lock_gives_up() {
  PoolMutex mutex(std::chrono::milliseconds(10));
  mutex.lock();
  std::thread([&] { check_throws<LockTimeoutError>([&] { mutex.lock(); }, "for 10 ms"); }).join();
  mutex.unlock();
  mutex.lock();
  mutex.unlock();
}

}  // namespace

int main() {
  the_pools_may_be_used_while_steps_are_planned();
  who_does_not_get_the_lock_gives_up();
}
