#include "thalweg/scheduler/prompted_queue.hpp"

#include <vector>

#include "check.hpp"
#include "thalweg/scheduler/sequence_store.hpp"

using namespace thalweg::scheduler;

namespace {

using Sequences = std::vector<Sequence*>;

struct Queue {
  SequenceStore store;
  PromptedQueue queue;
  Sequences all;

  explicit Queue(int count) {
    for (int i = 0; i < count; ++i) {
      all.push_back(&store.create());
      queue.push(*all.back());
    }
  }
};

void who_is_still_loading_holds_nobody_up() {
  Queue made(4);
  made.all[1]->is_schedulable = false;
  Sequences taken;
  made.queue.take_schedulable(2, taken);
  CHECK((taken == Sequences{made.all[0], made.all[2]}));
  CHECK(!made.all[0]->is_prompted && made.all[1]->is_prompted && made.queue.size() == 2);
  made.queue.take_schedulable(0, taken);
  CHECK(made.queue.size() == 2);
  made.queue.take_schedulable(9, taken);
  CHECK(taken.back() == made.all[3] && made.queue.size() == 1);
}

void finished_ones_leave_in_order() {
  Queue made(3);
  Sequences taken;
  made.queue.take_finished(taken);
  CHECK(taken.empty());
  for (const std::size_t i : {std::size_t{2}, std::size_t{0}}) {
    made.all[i]->status = Status::finished_aborted;
    made.queue.note_finished();
  }
  made.queue.take_finished(taken);
  CHECK((taken == Sequences{made.all[0], made.all[2]}) && made.queue.size() == 1);
}

}  // namespace

int main() {
  who_is_still_loading_holds_nobody_up();
  finished_ones_leave_in_order();
}
