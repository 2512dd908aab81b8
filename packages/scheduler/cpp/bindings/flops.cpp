#include "flops.hpp"

#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

#include "bind.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {
namespace {

template <class Value>
void read(const py::handle& owner, const char* name, Value& value) {
  value = owner.attr(name).cast<Value>();
}

FlopsLayer read_layer(const py::handle& given) {
  FlopsLayer layer;
  read(given, "compress_ratio", layer.compress_ratio);
  read(given, "has_window", layer.has_window);
  read(given, "topk", layer.topk);
  read(given, "index_heads", layer.index_heads);
  read(given, "index_head_dim", layer.index_head_dim);
  read(given, "is_kv_source", layer.is_kv_source);
  read(given, "is_index_source", layer.is_index_source);
  read(given, "is_index_key_source", layer.is_index_key_source);
  read(given, "candidate_blocks", layer.candidate_blocks);
  read(given, "candidate_block_size", layer.candidate_block_size);
  return layer;
}

py::int_ to_python(Int128 value) {
  const auto low = static_cast<std::uint64_t>(value);
  const auto high = static_cast<std::int64_t>(value >> 64);
  return py::int_((py::int_(high) << py::int_(64)) | py::int_(low));
}

}  // namespace

FlopsModel read_flops_model(const py::object& given) {
  if (!py::isinstance(given, py::module_::import("thalweg.scheduler.flops_model").attr("FlopsModel")))
    throw py::type_error("model is " + std::string(py::repr(given)) + "; it must be a FlopsModel");
  FlopsModel model;
  read(given, "hidden_size", model.hidden_size);
  read(given, "vocab_size", model.vocab_size);
  read(given, "num_heads", model.num_heads);
  read(given, "head_dim", model.head_dim);
  read(given, "query_rank", model.query_rank);
  read(given, "output_rank", model.output_rank);
  read(given, "output_groups", model.output_groups);
  read(given, "window_size", model.window_size);
  read(given, "expert_size", model.expert_size);
  read(given, "experts_per_token", model.experts_per_token);
  read(given, "shared_experts", model.shared_experts);
  read(given, "routed_experts", model.routed_experts);
  for (const py::handle layer : given.attr("layers")) model.layers.push_back(read_layer(layer));
  read(given, "first_consumer_layer", model.first_consumer_layer);
  read(given, "hyper_connections", model.hyper_connections);
  read(given, "shifted_hyper_connections", model.shifted_hyper_connections);
  read(given, "engram_layers", model.engram_layers);
  read(given, "engram_width", model.engram_width);
  read(given, "fp8_attention", model.fp8_attention);
  read(given, "fp8_experts", model.fp8_experts);
  read(given, "fp8_engram", model.fp8_engram);
  read(given, "fp4_indexer", model.fp4_indexer);
  const auto replay = given.attr("replay").cast<std::string>();
  model.replay = replay == "off" ? ReplayMode::off : replay == "mask" ? ReplayMode::mask : ReplayMode::compact;
  read(given, "replay_keep_tokens", model.replay_keep_tokens);
  return model;
}

void bind_flops(py::module_& module) {
  py::class_<FlopsEstimator>(module, "FlopsEstimator", "Estimates rows of one model, like thalweg.scheduler.flops.")
      .def(py::init([](const py::object& model) { return FlopsEstimator(read_flops_model(model)); }), py::arg("model"))
      .def(
          "estimate",
          [](const FlopsEstimator& estimator, std::int64_t query_length, std::int64_t context_length, bool is_prefill,
             std::int64_t full_length, std::int64_t window_valid_start) {
            const Flops flops =
                estimator.estimate({query_length, context_length, is_prefill, full_length, window_valid_start});
            return py::make_tuple(to_python(flops.attention), to_python(flops.total));
          },
          py::arg("query_length"), py::arg("context_length"), py::arg("is_prefill"), py::arg("full_length") = -1,
          py::arg("window_valid_start") = 0,
          "(attention, total) operations of one row. Raises ValueError for lengths that no row can have.")
      .def(
          "estimate_decode",
          [](const FlopsEstimator& estimator, const std::vector<std::int32_t>& query_lengths,
             const std::vector<std::int32_t>& context_lengths) {
            if (query_lengths.size() != context_lengths.size())
              throw std::invalid_argument("query_lengths has " + std::to_string(query_lengths.size()) +
                                          " items and context_lengths has " + std::to_string(context_lengths.size()) +
                                          "; they must have as many");
            for (std::size_t row = 0; row < query_lengths.size(); ++row)
              check_flops_row({query_lengths[row], context_lengths[row]});
            const Flops flops = estimator.estimate_decode(query_lengths, context_lengths);
            return py::make_tuple(to_python(flops.attention), to_python(flops.total));
          },
          py::arg("query_lengths"), py::arg("context_lengths"),
          "(attention, total) operations of decode rows together. Raises ValueError like `estimate`.");
}

}  // namespace thalweg::scheduler
