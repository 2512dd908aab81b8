#include "thalweg/scheduler/step_vote.hpp"

#include "check.hpp"
#include "driver.hpp"

using namespace thalweg::scheduler;

namespace {

// intervals: all 4, any 6, continue 2
StepVote after(int decode_steps, Policy policy) {
  Options options = small_options();
  options.policy = policy;
  StepVote vote(options);
  for (int i = 0; i < decode_steps; ++i) vote.count_decode();
  return vote;
}

void the_cadence_follows_the_intervals() {
  for (const Policy policy : {Policy::standard, Policy::reference}) {
    CHECK(after(0, policy).round(true, false) == VoteRound::all);
    CHECK(after(1, policy).round(true, false) == VoteRound::none);
    CHECK(after(4, policy).round(true, false) == VoteRound::all);
    CHECK(after(6, policy).round(true, false) == VoteRound::any);
    CHECK(after(12, policy).round(true, false) == VoteRound::any);
    StepVote vote = after(5, policy);
    vote.count_prefill();
    CHECK(vote.decode_steps() == 0);
  }
}

void an_idle_or_half_prefilled_group_does_not_wait_under_the_default_policy() {
  CHECK(after(1, Policy::standard).round(false, false) == VoteRound::any);
  CHECK(after(1, Policy::reference).round(false, false) == VoteRound::none);
  CHECK(after(2, Policy::standard).round(true, true) == VoteRound::any);
  CHECK(after(0, Policy::standard).round(true, true) == VoteRound::all);
  CHECK(after(2, Policy::reference).round(true, true) == VoteRound::none);
}

}  // namespace

int main() {
  the_cadence_follows_the_intervals();
  an_idle_or_half_prefilled_group_does_not_wait_under_the_default_policy();
}
