#include "thalweg/scheduler/queues.hpp"

#include <vector>

#include "check.hpp"
#include "thalweg/scheduler/sequence_store.hpp"

using namespace thalweg::scheduler;

namespace {

Sequence& make(SequenceStore& store, bool holds_blocks) {
  Sequence& sequence = store.create();
  if (holds_blocks) sequence.blocks.push_back(1);
  return sequence;
}

void block_holders_go_first_under_the_default_policy() {
  SequenceStore store;
  WaitingQueues queues(true);
  Sequence& fresh = make(store, false);
  Sequence& half = make(store, true);
  Sequence& victim = make(store, false);
  queues.push_new(fresh);
  queues.push_half_prefilled(half);
  queues.push_restarted(victim);
  CHECK(queues.size() == 3 && queues.num_half_prefilled() == 1);
  for (Sequence* expected : {&half, &victim, &fresh}) {
    CHECK(queues.head() == expected);
    queues.pop_head();
  }
  CHECK(queues.head() == nullptr && queues.num_half_prefilled() == 0);
}

void victims_stand_before_holders_under_the_reference_policy() {
  SequenceStore store;
  WaitingQueues queues(false);
  Sequence& half = make(store, true);
  Sequence& victim = make(store, false);
  queues.push_half_prefilled(half);
  queues.push_restarted(victim);
  CHECK(queues.head() == &victim);
}

void finished_ones_are_skipped_and_taken_out_in_order() {
  SequenceStore store;
  WaitingQueues queues(true);
  std::vector<Sequence*> sequences;
  for (int i = 0; i < 4; ++i) {
    sequences.push_back(&make(store, i == 0));
    if (i == 0) queues.push_half_prefilled(*sequences[0]);
    else queues.push_new(*sequences.back());
  }
  std::vector<Sequence*> taken;
  queues.take_finished(taken);
  CHECK(taken.empty());
  for (const std::size_t i : {std::size_t{2}, std::size_t{0}}) {
    queues.note_finished(*sequences[i]);
    sequences[i]->status = Status::finished_aborted;
  }
  CHECK(queues.num_half_prefilled() == 0 && queues.first_other() == sequences[1]);
  queues.take_finished(taken);
  CHECK((taken == std::vector<Sequence*>{sequences[0], sequences[2]}));
  CHECK(queues.size() == 2);
}

}  // namespace

int main() {
  block_holders_go_first_under_the_default_policy();
  victims_stand_before_holders_under_the_reference_policy();
  finished_ones_are_skipped_and_taken_out_in_order();
}
