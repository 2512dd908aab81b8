#include <pybind11/gil_safe_call_once.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bind.hpp"
#include "correction.hpp"
#include "debug_state.hpp"
#include "elements.hpp"
#include "outcome.hpp"
#include "plan.hpp"
#include "result.hpp"
#include "step_times.hpp"
#include "thalweg/scheduler/errors.hpp"
#include "thalweg/scheduler/scheduler.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {
namespace {

// Python objects that every call needs, looked up once per process.
struct Interfaces {
  PlanConverter plans;
  ResultReader results;
  OutcomeConverter outcomes;
  CorrectionConverter corrections;
  py::object ballots[4][2];  // by round and wish

  Interfaces() {
    const py::module_ module = py::module_::import("thalweg.interfaces");
    for (int round = 0; round < 4; ++round)
      for (int wants = 0; wants < 2; ++wants)
        ballots[round][wants] = module.attr("Ballot")(module.attr("VoteRound")(round), py::bool_(wants != 0));
  }

  static const Interfaces& get() {
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Interfaces> storage;
    return storage.call_once_and_store_result([] { return Interfaces(); }).get_stored();
  }
};

std::int32_t end_token(std::int64_t eos_token_id, bool ignore_eos) {
  const bool is_an_id = eos_token_id >= 0 && eos_token_id <= std::numeric_limits<std::int32_t>::max();
  return is_an_id && !ignore_eos ? static_cast<std::int32_t>(eos_token_id) : -1;
}

std::int64_t add(Scheduler& scheduler, const py::array& token_ids, std::int64_t max_tokens, std::int64_t eos_token_id,
                 bool ignore_eos, const std::vector<std::int32_t>& checkpoints, bool is_schedulable,
                 bool is_structured) {
  const std::vector<std::int32_t> tokens = prompt_tokens(token_ids);
  return scheduler.add({.token_ids = tokens,
                        .max_tokens = max_tokens,
                        .end_token = end_token(eos_token_id, ignore_eos),
                        .checkpoints = checkpoints,
                        .is_schedulable = is_schedulable,
                        .is_structured = is_structured});
}

py::object begin_step(Scheduler& scheduler, bool anyone_running, bool anyone_half_prefilled) {
  const Ballot ballot = scheduler.begin_step(anyone_running, anyone_half_prefilled);
  return Interfaces::get().ballots[static_cast<int>(ballot.round)][ballot.wants ? 1 : 0];
}

py::object finish_step(Scheduler& scheduler, int kind) {
  if (kind != 0 && kind != 1)
    throw std::invalid_argument("kind is " + std::to_string(kind) + "; it must be a StepKind");
  std::unique_ptr<StepPlan> plan;
  {
    const py::gil_scoped_release release;
    plan.reset(new StepPlan(scheduler.finish_step(static_cast<StepKind>(kind))));
  }
  return Interfaces::get().plans.convert(std::move(plan));
}

py::object process(Scheduler& scheduler, const py::object& result) {
  const Interfaces& interfaces = Interfaces::get();
  const Step& due = scheduler.due(interfaces.results.step_of(result));
  const std::size_t draft_length = scheduler.state().drafts.length();
  const std::size_t width = due.kind == StepKind::decode ? draft_length : 0;
  const ReadResult read = interfaces.results.read(result, due.rows.size(), width);
  StepOutcome outcome;
  {
    const py::gil_scoped_release release;
    outcome = scheduler.process(read.result);
  }
  return interfaces.outcomes.convert(std::move(outcome), draft_length);
}

std::optional<std::int64_t> add_loaded(Scheduler& scheduler, const py::array& token_ids,
                                       std::int64_t num_computed_tokens, std::int64_t max_tokens,
                                       std::int64_t eos_token_id, bool ignore_eos,
                                       std::optional<std::int64_t> prompt_length,
                                       const std::vector<std::int32_t>& checkpoints, bool is_structured) {
  const std::vector<std::int32_t> tokens = prompt_tokens(token_ids);
  return scheduler.add_loaded({.token_ids = tokens,
                               .max_tokens = max_tokens,
                               .end_token = end_token(eos_token_id, ignore_eos),
                               .checkpoints = checkpoints,
                               .is_structured = is_structured,
                               .prompt_length = prompt_length},
                              num_computed_tokens);
}

py::tuple memory_of(const Scheduler& scheduler, std::int64_t sequence_id) {
  const Sequence& sequence = scheduler.sequence(sequence_id);
  py::array_t<std::int32_t> blocks(static_cast<py::ssize_t>(sequence.blocks.size()));
  std::copy(sequence.blocks.begin(), sequence.blocks.end(), blocks.mutable_data());
  return py::make_tuple(blocks, sequence.state_slot);
}

py::object correct(Scheduler& scheduler, std::int64_t step, const py::object& query_lengths) {
  scheduler.check_may_correct(step);
  py::object keep;
  std::optional<std::span<const std::int32_t>> lengths;
  if (!query_lengths.is_none()) {
    const std::size_t shape[] = {scheduler.due(step).rows.size()};
    lengths = elements<std::int32_t>(query_lengths, "query_lengths", shape, false, keep);
  }
  StepCorrection correction;
  {
    const py::gil_scoped_release release;
    correction = scheduler.correct(step, lengths);
  }
  return Interfaces::get().corrections.convert(std::move(correction), scheduler.state().drafts.length());
}

void set_step_time_curve(Scheduler& scheduler, const std::vector<std::pair<std::int64_t, double>>& points) {
  scheduler.set_step_time_curve(step_times(points));
}

EngineType engine_type(const std::string& name) {
  if (name == "normal") return EngineType::normal;
  if (name == "prompt") return EngineType::prompt;
  if (name == "completion") return EngineType::completion;
  throw ConfigError("engine_type is " + name + "; it must be one of normal, prompt, completion");
}

// An argument that takes integers only: converting would cut the fraction off a numpy number.
py::arg integer(const char* name) { return py::arg(name).noconvert(); }

}  // namespace

void bind_scheduler(py::module_& module) {
  py::class_<Scheduler>(module, "SchedulerCore", "The native core behind thalweg.scheduler.Scheduler.")
      .def(py::init([](std::int32_t num_blocks, std::int32_t num_state_slots, std::int32_t block_size,
                       std::int32_t draft_length, std::int32_t tail_length, std::int32_t vocab_size,
                       std::int32_t chunk_alignment, std::int32_t max_num_seqs, std::int32_t max_num_batched_tokens,
                       std::int32_t max_model_len, bool chunked_prefill, bool stop_preempted_request,
                       std::int64_t prefill_max_sum_seqlen_k, std::int32_t lookahead_tokens,
                       std::int32_t prefill_interval_all, std::int32_t prefill_interval_any,
                       std::int32_t prefill_interval_continue, bool is_reference_policy, bool plans_ahead,
                       const std::string& engine_type_name, std::optional<FlopsEstimator> flops) {
             Options options;
             options.num_blocks = num_blocks;
             options.num_state_slots = num_state_slots;
             options.block_size = block_size;
             options.draft_length = draft_length;
             options.tail_length = tail_length;
             options.vocab_size = vocab_size;
             options.chunk_alignment = chunk_alignment;
             options.max_num_seqs = max_num_seqs;
             options.max_num_batched_tokens = max_num_batched_tokens;
             options.max_model_len = max_model_len;
             options.chunked_prefill = chunked_prefill;
             options.stop_preempted_request = stop_preempted_request;
             options.prefill_max_sum_context = prefill_max_sum_seqlen_k;
             options.lookahead_tokens = lookahead_tokens;
             options.prefill_interval_all = prefill_interval_all;
             options.prefill_interval_any = prefill_interval_any;
             options.prefill_interval_continue = prefill_interval_continue;
             options.policy = is_reference_policy ? Policy::reference : Policy::standard;
             options.plans_ahead = plans_ahead;
             options.engine_type = engine_type(engine_type_name);
             return std::make_unique<Scheduler>(options, std::move(flops));
           }),
           py::kw_only(), py::arg("num_blocks"), py::arg("num_state_slots"), py::arg("block_size"),
           py::arg("draft_length"), py::arg("tail_length"), py::arg("vocab_size"), py::arg("chunk_alignment"),
           py::arg("max_num_seqs"), py::arg("max_num_batched_tokens"), py::arg("max_model_len"),
           py::arg("chunked_prefill"), py::arg("stop_preempted_request"), py::arg("prefill_max_sum_seqlen_k"),
           py::arg("lookahead_tokens"), py::arg("prefill_interval_all"), py::arg("prefill_interval_any"),
           py::arg("prefill_interval_continue"), py::arg("is_reference_policy"), py::arg("plans_ahead"),
           py::arg("engine_type"), py::arg("flops"))
      .def("add", &add, py::arg("token_ids"), py::kw_only(), integer("max_tokens"), integer("eos_token_id"),
           py::arg("ignore_eos") = false, py::arg("checkpoints") = py::tuple(), py::arg("is_schedulable") = true,
           py::arg("is_structured") = false)
      .def("add_loaded", &add_loaded, py::arg("token_ids"), integer("num_computed_tokens"), py::kw_only(),
           integer("max_tokens"), integer("eos_token_id"), py::arg("ignore_eos") = false,
           py::arg("prompt_length") = py::none(), py::arg("checkpoints") = py::tuple(),
           py::arg("is_structured") = false)
      .def("fork", &Scheduler::fork, integer("sequence_id"), py::kw_only(), py::arg("last_token_id") = py::none())
      .def("memory_of", &memory_of, integer("sequence_id"))
      .def(
          "abort", [](Scheduler& scheduler, const std::vector<std::int64_t>& ids) { return scheduler.abort(ids); },
          py::arg("sequence_ids"))
      .def("set_schedulable", &Scheduler::set_schedulable, integer("sequence_id"))
      .def("begin_step", &begin_step, py::arg("anyone_running"), py::arg("anyone_half_prefilled") = false)
      .def("try_prefill", &Scheduler::try_prefill, py::call_guard<py::gil_scoped_release>())
      .def("finish_step", &finish_step, integer("kind"))
      .def("correct", &correct, integer("step"), py::arg("query_lengths") = py::none())
      .def("process", &process, py::arg("result"))
      .def("release", &Scheduler::release, integer("step"), py::call_guard<py::gil_scoped_release>())
      .def("hold", &Scheduler::hold, integer("sequence_id"))
      .def("release_one", &Scheduler::release_one, integer("sequence_id"))
      .def("set_step_time_curve", &set_step_time_curve, py::arg("points"))
      .def("record_step_time", &Scheduler::record_step_time, integer("num_rows"), integer("graph_size"),
           py::arg("forward_ms"), py::arg("sampler_ms"))
      .def_property_readonly("blocks", &Scheduler::blocks, py::return_value_policy::reference_internal)
      .def_property_readonly("state_slots", &Scheduler::state_slots, py::return_value_policy::reference_internal)
      .def_property_readonly("has_unfinished", &Scheduler::has_unfinished)
      .def_property_readonly("has_running", &Scheduler::has_running)
      .def_property_readonly("has_half_prefilled", &Scheduler::has_half_prefilled)
      .def("debug_state", &debug_state);
}

}  // namespace thalweg::scheduler
