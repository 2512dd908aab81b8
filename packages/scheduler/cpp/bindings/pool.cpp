#include <pybind11/stl.h>

#include "bind.hpp"
#include "thalweg/scheduler/block_pool.hpp"

namespace py = pybind11;

namespace thalweg::scheduler {

// Whoever waits for the pool's lock lets other Python threads run.
using unlocked = py::call_guard<py::gil_scoped_release>;

void bind_block_pool(py::module_& module) {
  py::class_<BlockPool>(module, "BlockPool", R"(A pool of numbered cache units, counted references, first in first out.

Hands out the ids 1..capacity-1; id 0 means "none". A call that raises changes nothing; every call is safe from any
thread.)")
      .def(py::init<std::int32_t>(), py::arg("capacity"),
           "capacity: number of ids, the null id 0 included; at least 1. Raises ConfigError.")
      .def_property_readonly("capacity", &BlockPool::capacity)
      .def_property_readonly("num_free", &BlockPool::num_free)
      .def("free_ids", &BlockPool::free_ids, unlocked(), "The free ids in the order in which they will be handed out.")
      .def(
          "can_allocate",
          [](const BlockPool& pool, std::int64_t count) {
            const Fit fit = pool.can_allocate(count);
            return py::module_::import("thalweg.interfaces").attr("Fit")(static_cast<int>(fit));
          },
          py::arg("count"), "Whether `allocate(count)` would succeed now, later or never.")
      .def("allocate", &BlockPool::allocate, py::arg("count"), unlocked(),
           "Take `count` ids. Raises CapacityError when fewer are free, ValueError for a negative count.")
      .def(
          "release", [](BlockPool& pool, const std::vector<std::int32_t>& ids) { pool.release(ids); }, py::arg("ids"),
          unlocked(),
          "Take one holder off each id, last id first. Raises ValueError for an id that has too few or is no id.")
      .def(
          "pin", [](BlockPool& pool, const std::vector<std::int32_t>& ids) { pool.pin(ids); }, py::arg("ids"),
          unlocked(),
          "Add a holder to each id. Raises CapacityError for a free one, ValueError for one that is no id.");
}

}  // namespace thalweg::scheduler
