// Binds functions that take pointers: Python passes the addresses as integers, 0 for null. The
// Python caller has checked the memory that they lead to, and keeps it alive.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <type_traits>

template <class T>
struct Address {
  T* pointer;

  operator T*() const { return pointer; }
};

template <class T>
struct pybind11::detail::type_caster<Address<T>> {
  PYBIND11_TYPE_CASTER(Address<T>, const_name("int"));

  bool load(handle source, bool convert) {
    make_caster<std::uintptr_t> number;
    if (!number.load(source, convert)) return false;
    value.pointer = reinterpret_cast<T*>(cast_op<std::uintptr_t>(number));
    return true;
  }
};

/// Whether Python passes a T* as an address: not if T is a bound class.
template <class T>
inline constexpr bool is_plain = std::is_arithmetic_v<T> || std::is_void_v<T>;

/// How Python passes a parameter.
template <class T>
using Passed = std::conditional_t<std::is_pointer_v<T> && is_plain<std::remove_pointer_t<T>>,
                                  Address<std::remove_pointer_t<T>>, T>;

/// Binds a function that runs without the GIL.
template <class Result, class... Arguments, class... Names>
void define(pybind11::module_& m, const char* name, Result (*function)(Arguments...),
            Names... names) {
  m.def(
      name, [function](Passed<Arguments>... arguments) { return function(arguments...); },
      pybind11::arg(names)..., pybind11::call_guard<pybind11::gil_scoped_release>());
}

/// Returns a method as a function that takes addresses.
template <class T, class Result, class... Arguments>
auto passing(Result (T::*method)(Arguments...) const) {
  return [method](const T& object, Passed<Arguments>... arguments) {
    return (object.*method)(arguments...);
  };
}

/// Binds a structure whose constructor takes its `Fields`.
template <class T, class... Fields, class... Names>
auto define_struct(pybind11::module_& m, const char* type, Names... names) {
  return pybind11::class_<T>(m, type, pybind11::module_local())
      .def(pybind11::init([](Passed<Fields>... fields) { return T{fields...}; }),
           pybind11::arg(names)...);
}
