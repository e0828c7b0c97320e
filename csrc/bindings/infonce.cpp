// Binds the InfoNCE steps for mirror_train.loss.cpu_kernel. Nothing here depends on torch.
#include "infonce/infonce.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/addresses.h"
#include "bindings/bindings.h"
#include "isa_list.h"

namespace py = pybind11;

namespace {

using namespace mirror_rt::infonce;

Dtype dtype_named(const std::string& name) {
  if (name == "float32") return Dtype::float32;
  if (name == "float16") return Dtype::float16;
  if (name == "bfloat16") return Dtype::bfloat16;
  throw py::value_error("no kernel for dtype " + name);
}

Rows make_rows(const std::vector<std::pair<Address<void>, std::int64_t>>& blocks, std::int64_t dim,
               const std::string& dtype, Address<const float> inverse_norms) {
  Rows rows{{}, dim, dtype_named(dtype), inverse_norms};
  for (const auto& [data, count] : blocks) rows.blocks.push_back({data, count});
  return rows;
}

Execution make_execution(const std::string& isa, int threads) {
  const Isa* found = find_isa(isa.c_str());
  if (found == nullptr) throw py::value_error("this processor has no " + isa);
  return {found, threads};
}

std::optional<std::string> best_instruction_set(bool pairs) {
  const Isa* isa = best_isa(pairs);
  return isa == nullptr ? std::nullopt : std::optional<std::string>(isa->name);
}

void finish_gradients(const float* sums, std::int64_t sums_stride, const Rows& rows,
                      const Rows& partners, const Pairs& pairs, const float* weights, float factor,
                      const Execution& execution, const std::vector<Address<void>>& gradients) {
  finish(sums, sums_stride, rows, partners, pairs, weights, factor, execution,
         {gradients.begin(), gradients.end()});
}

}  // namespace

void bind_infonce(py::module_& m) {
  py::class_<Rows>(m, "InfonceRows", py::module_local())
      .def(py::init(&make_rows), py::arg("blocks"), py::arg("dim"), py::arg("dtype"),
           py::arg("inverse_norms"));
  define_struct<Negatives, std::int64_t, std::int64_t, std::int64_t, const std::int64_t*,
                const std::int64_t*>(m, "InfonceNegatives", "n_rows", "n_columns", "period",
                                     "row_ids", "column_ids");
  define_struct<Pairs, std::int64_t, std::int64_t, bool>(m, "InfoncePairs", "count", "shift",
                                                         "mutual");
  define_struct<Teacher, const Rows*, const float*, float>(m, "InfonceTeacher", "rows", "a",
                                                           "scale");
  py::class_<Execution>(m, "InfonceExecution", py::module_local())
      .def(py::init(&make_execution), py::arg("instruction_set"), py::arg("threads"))
      .def("padded_dim", [](const Execution& e, std::int64_t d) { return padded_dim(*e.isa, d); })
      .def("padded_rows",
           [](const Execution& e, std::int64_t n) { return padded_rows(*e.isa, n); });
  define(m, "infonce_inverse_norms", &inverse_norms, "rows", "execution", "out");
  define(m, "infonce_logsumexp", &logsumexp, "rows", "columns", "negatives", "scale", "execution",
         "n");
  define(m, "infonce_objective", &objective, "rows", "partners", "pairs", "n", "scale", "decoupled",
         "factor", "execution", "weights", "log_weights");
  define(m, "infonce_contract", &contract, "rows", "columns", "negatives", "a", "b", "scale",
         "teacher", "execution", "sums", "column_sums");
  define(m, "infonce_finish", &finish_gradients, "sums", "sums_stride", "rows", "partners", "pairs",
         "weights", "factor", "execution", "gradients");
  m.def(
      "instruction_sets", [] { return mirror_rt::supported_names(kIsas); },
      "Instruction sets compiled in that this processor has, the most capable last.");
  m.def("best_instruction_set", &best_instruction_set, py::arg("pairs"),
        "The most capable one for float32 operands, or for bfloat16 pairs (None for none).");
}
