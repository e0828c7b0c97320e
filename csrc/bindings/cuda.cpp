// Binds the InfoNCE kernels to Python as mirror_train._cuda. Tensors are passed as addresses and
// the stream as its handle, so that one build serves every version of torch. The caller
// (mirror_train.loss.cuda_kernel) validates and owns all memory; nothing here waits for the device.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "infonce/gpu/loss.h"

namespace py = pybind11;
using namespace mirror_train;  // NOLINT: this file only binds this namespace

namespace {

using Address = std::uintptr_t;
using BlockList = std::vector<std::pair<Address, std::int64_t>>;  // (address, rows)

template <typename T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

Blocks make_blocks(const BlockList& list, Dtype dtype) {
  if (list.size() > Blocks::kMax) {
    throw py::value_error("at most " + std::to_string(Blocks::kMax) + " blocks, got " +
                          std::to_string(list.size()));
  }
  Blocks blocks{{}, {}, dtype};
  for (std::size_t b = 0; b < list.size(); ++b) {
    blocks.data[b] = pointer<void>(list[b].first);
    blocks.rows[b] = list[b].second;
  }
  return blocks;
}

void bind_types(py::module_& m) {
  py::enum_<Dtype>(m, "Dtype", py::module_local())
      .value("float32", Dtype::kFloat32)
      .value("float16", Dtype::kFloat16)
      .value("bfloat16", Dtype::kBFloat16);
  py::class_<Rows>(m, "Rows", py::module_local())
      .def(py::init([](Address unit, Address norms, std::int64_t count, std::int64_t dim,
                       std::int64_t stride, bool split) {
             return Rows{
                 pointer<std::uint16_t>(unit), pointer<float>(norms), count, dim, stride, split};
           }),
           py::arg("unit"), py::arg("norms"), py::arg("count"), py::arg("dim"), py::arg("stride"),
           py::arg("split"));
  py::class_<Negatives>(m, "Negatives", py::module_local())
      .def(py::init([](std::int64_t n_rows, std::int64_t n_columns, std::int64_t period,
                       Address row_ids, Address column_ids) {
             return Negatives{n_rows, n_columns, period, pointer<const std::int64_t>(row_ids),
                              pointer<const std::int64_t>(column_ids)};
           }),
           py::arg("n_rows"), py::arg("n_columns"), py::arg("period"), py::arg("row_ids"),
           py::arg("column_ids"));
  py::class_<Pairs>(m, "Pairs", py::module_local())
      .def(py::init<std::int64_t, std::int64_t, bool>(), py::arg("count"), py::arg("shift"),
           py::arg("mutual"));
}

void bind_forward(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  m.def(
      "normalize",
      [](const BlockList& blocks, Dtype dtype, const Rows& rows, Address stream) {
        normalize(make_blocks(blocks, dtype), rows, pointer<void>(stream));
      },
      py::arg("blocks"), py::arg("dtype"), py::arg("rows"), py::arg("stream"), unlocked);
  m.def(
      "logsumexp",
      [](const Rows& rows, const Rows& columns, const Negatives& negatives, double scale,
         std::pair<int, int> wave, Address row_partials, Address column_partials, Address state,
         Address n, Address stream) {
        const LogsumexpWork work{{wave.first, wave.second},
                                 pointer<Partial>(row_partials),
                                 pointer<Partial>(column_partials),
                                 pointer<Partial>(state)};
        logsumexp(rows, columns, negatives, scale, work, pointer<float>(n), pointer<void>(stream));
      },
      py::arg("rows"), py::arg("columns"), py::arg("negatives"), py::arg("scale"), py::arg("wave"),
      py::arg("row_partials"), py::arg("column_partials"), py::arg("state"), py::arg("n"),
      py::arg("stream"), unlocked);
  m.def(
      "objective",
      [](const Rows& rows, const Rows& partners, const Pairs& pairs, Address n, double scale,
         bool decoupled, double factor, Address loss, Address weights, Address log_weights,
         Address work, Address stream) {
        const ObjectiveResult result{pointer<float>(loss), pointer<float>(weights),
                                     pointer<float>(log_weights), pointer<double>(work)};
        objective(rows, partners, pairs, pointer<const float>(n), scale, decoupled, factor, result,
                  pointer<void>(stream));
      },
      py::arg("rows"), py::arg("partners"), py::arg("pairs"), py::arg("n"), py::arg("scale"),
      py::arg("decoupled"), py::arg("factor"), py::arg("loss"), py::arg("weights"),
      py::arg("log_weights"), py::arg("work"), py::arg("stream"), unlocked);
}

void bind_backward(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  m.def(
      "contract",
      [](const Rows& rows, const Rows& columns, const Negatives& negatives, Address row_log_weights,
         Address column_log_weights, double scale, std::pair<int, int> wave, Address panel,
         Address row_sums, Address column_sums, Address stream) {
        const ContractWork work{{wave.first, wave.second}, pointer<std::uint16_t>(panel)};
        contract(rows, columns, negatives, pointer<const float>(row_log_weights),
                 pointer<const float>(column_log_weights), scale, work, pointer<float>(row_sums),
                 pointer<float>(column_sums), pointer<void>(stream));
      },
      py::arg("rows"), py::arg("columns"), py::arg("negatives"), py::arg("row_log_weights"),
      py::arg("column_log_weights"), py::arg("scale"), py::arg("wave"), py::arg("panel"),
      py::arg("row_sums"), py::arg("column_sums"), py::arg("stream"), unlocked);
  m.def(
      "finish",
      [](Address sums, const Rows& rows, const Rows& partners, const Pairs& pairs, Address weights,
         double factor, Address grad_output, const BlockList& gradients, Dtype dtype,
         Address stream) {
        finish(pointer<const float>(sums), rows, partners, pairs, pointer<const float>(weights),
               factor, pointer<const float>(grad_output), make_blocks(gradients, dtype),
               pointer<void>(stream));
      },
      py::arg("sums"), py::arg("rows"), py::arg("partners"), py::arg("pairs"), py::arg("weights"),
      py::arg("factor"), py::arg("grad_output"), py::arg("gradients"), py::arg("dtype"),
      py::arg("stream"), unlocked);
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "InfoNCE on an NVIDIA GPU; see mirror_train.loss.cuda_kernel.";
  m.attr("TILE") = kTile;
  m.attr("ROWS_PER_BLOCK") = kRowsPerBlock;
  m.def("set_device", &set_device, py::arg("device"));
  bind_types(m);
  bind_forward(m);
  bind_backward(m);
}
