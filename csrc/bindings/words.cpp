// Binds csrc/tokens/words to Python.
#include "tokens/words.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace {

constexpr std::size_t kFewTexts = 32;  // take less time than handing over the GIL

template <typename T>
py::array_t<T> copied(const std::vector<T>& values) {
  return py::array_t<T>(py::ssize_t(values.size()), values.data());
}

// -> (ids int32 [T], offsets int64 [n + 1], rest int64 [r], unknown list[str])
py::tuple find(const mirror_rt::WordIds& words, const py::list& texts, std::size_t most_tokens) {
  const py::list held = texts[py::slice(0, py::ssize_t(texts.size()), 1)];  // nobody else's
  std::vector<std::string_view> views;
  views.reserve(held.size());
  for (const py::handle text : held) views.push_back(py::cast<std::string_view>(text));
  mirror_rt::TextIds found;
  {
    std::optional<py::gil_scoped_release> release;
    if (views.size() > kFewTexts) release.emplace();
    found = words.find(views, most_tokens);
  }
  py::list unknown;
  for (const std::string_view word : found.unknown)
    unknown.append(py::str(word.data(), word.size()));
  return py::make_tuple(copied(found.ids), copied(found.offsets), copied(found.rest), unknown);
}

}  // namespace

void bind_words(py::module_& m) {
  py::class_<mirror_rt::WordIds>(m, "WordIds", py::module_local(),
                                 "The token ids of words (csrc/tokens/words.h).")
      .def(py::init<std::size_t>(), py::kw_only(), py::arg("most"))
      .def("find", &find, py::arg("texts"), py::kw_only(), py::arg("most_tokens"),
           "Ids, offsets, the texts that have none, and the unknown words of these.")
      .def("add", &mirror_rt::WordIds::add, py::arg("word"), py::arg("ids"),
           "Add a word that is not there.");
}
