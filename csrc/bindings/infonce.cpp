// Binds the InfoNCE steps. Pointers are passed as integers: mirror_train.loss.cpu_kernel has
// checked the arrays that they point to, and keeps them alive. Nothing here depends on torch.
#include "infonce/infonce.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace {

using namespace mirror_rt::infonce;
using Address = std::uintptr_t;

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT: null for 0
}

Dtype dtype_named(const std::string& name) {
  if (name == "float32") return Dtype::float32;
  if (name == "float16") return Dtype::float16;
  if (name == "bfloat16") return Dtype::bfloat16;
  throw py::value_error("no kernel for dtype " + name);
}

Rows make_rows(const std::vector<std::pair<Address, std::int64_t>>& blocks, std::int64_t dim,
               const std::string& dtype, Address inverse_norms) {
  Rows rows{{}, dim, dtype_named(dtype), pointer<const float>(inverse_norms)};
  for (const auto& [data, count] : blocks) rows.blocks.push_back({pointer<void>(data), count});
  return rows;
}

Negatives make_negatives(std::int64_t n_rows, std::int64_t n_columns, std::int64_t period,
                         Address row_ids, Address column_ids) {
  return {n_rows, n_columns, period, pointer<const std::int64_t>(row_ids),
          pointer<const std::int64_t>(column_ids)};
}

Execution make_execution(const std::string& isa, int threads) {
  const Isa* found = find_isa(isa.c_str());
  if (found == nullptr) throw py::value_error("this processor has no " + isa);
  return {found, threads};
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Isa* const* isa = kIsas; *isa != nullptr; ++isa) {
    if ((*isa)->supported()) names.emplace_back((*isa)->name);
  }
  return names;
}

std::optional<std::string> best_instruction_set(bool pairs) {
  const Isa* isa = best_isa(pairs);
  return isa == nullptr ? std::nullopt : std::optional<std::string>(isa->name);
}

void bind_steps(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  m.def(
      "infonce_inverse_norms",
      [](const Rows& rows, const Execution& execution, Address out) {
        inverse_norms(rows, execution, pointer<float>(out));
      },
      py::arg("rows"), py::arg("execution"), py::arg("out"), release());
  m.def(
      "infonce_logsumexp",
      [](const Rows& rows, const Rows* columns, const Negatives& negatives, float scale,
         const Execution& execution,
         Address n) { logsumexp(rows, columns, negatives, scale, execution, pointer<float>(n)); },
      py::arg("rows"), py::arg("columns").none(true), py::arg("negatives"), py::arg("scale"),
      py::arg("execution"), py::arg("n"), release());
  m.def(
      "infonce_objective",
      [](const Rows& rows, const Rows& partners, const Pairs& pairs, Address n, float scale,
         bool decoupled, double factor, const Execution& execution, Address weights,
         Address log_weights) {
        return objective(rows, partners, pairs, pointer<const float>(n), scale, decoupled, factor,
                         execution, pointer<float>(weights), pointer<float>(log_weights));
      },
      py::arg("rows"), py::arg("partners"), py::arg("pairs"), py::arg("n"), py::arg("scale"),
      py::arg("decoupled"), py::arg("factor"), py::arg("execution"), py::arg("weights"),
      py::arg("log_weights"), release());
  m.def(
      "infonce_contract",
      [](const Rows& rows, const Rows* columns, const Negatives& negatives, Address a, Address b,
         float scale, const Execution& execution, Address sums, Address column_sums) {
        contract(rows, columns, negatives, pointer<const float>(a), pointer<const float>(b), scale,
                 execution, pointer<float>(sums), pointer<float>(column_sums));
      },
      py::arg("rows"), py::arg("columns").none(true), py::arg("negatives"), py::arg("a"),
      py::arg("b"), py::arg("scale"), py::arg("execution"), py::arg("sums"), py::arg("column_sums"),
      release());
  m.def(
      "infonce_finish",
      [](Address sums, std::int64_t sums_stride, const Rows& rows, const Rows& partners,
         const Pairs& pairs, Address weights, float factor, const Execution& execution,
         const std::vector<Address>& gradients) {
        std::vector<void*> out;
        for (Address address : gradients) out.push_back(pointer<void>(address));
        finish(pointer<const float>(sums), sums_stride, rows, partners, pairs,
               pointer<const float>(weights), factor, execution, out);
      },
      py::arg("sums"), py::arg("sums_stride"), py::arg("rows"), py::arg("partners"),
      py::arg("pairs"), py::arg("weights"), py::arg("factor"), py::arg("execution"),
      py::arg("gradients"), release());
}

}  // namespace

void bind_infonce(py::module_& m) {
  py::class_<Rows>(m, "InfonceRows", py::module_local())
      .def(py::init(&make_rows), py::arg("blocks"), py::arg("dim"), py::arg("dtype"),
           py::arg("inverse_norms"));
  py::class_<Negatives>(m, "InfonceNegatives", py::module_local())
      .def(py::init(&make_negatives), py::arg("n_rows"), py::arg("n_columns"), py::arg("period"),
           py::arg("row_ids"), py::arg("column_ids"));
  py::class_<Pairs>(m, "InfoncePairs", py::module_local())
      .def(py::init<std::int64_t, std::int64_t, bool>(), py::arg("count"), py::arg("shift"),
           py::arg("mutual"));
  py::class_<Execution>(m, "InfonceExecution", py::module_local())
      .def(py::init(&make_execution), py::arg("instruction_set"), py::arg("threads"))
      .def("padded_dim", [](const Execution& e, std::int64_t d) { return padded_dim(*e.isa, d); })
      .def("padded_rows",
           [](const Execution& e, std::int64_t n) { return padded_rows(*e.isa, n); });
  bind_steps(m);
  m.def("instruction_sets", &instruction_sets,
        "Instruction sets compiled in that this processor has, the most capable last.");
  m.def("best_instruction_set", &best_instruction_set, py::arg("pairs"),
        "The most capable one for float32 operands, or for bfloat16 pairs (None for none).");
}
